/* What mosrun says, and where it is. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "mosrun_self.h"

void say(const char *format, ...)
{
	char line[PATH_MAX + 256] = "mosrun: ";
	va_list values;
	va_start(values, format);
	vsnprintf(line + 8, sizeof line - 9, format, values);
	va_end(values);
	strcat(line, "\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		return;
}

const char *above(int levels)
{
	static char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	for (int up = 0; up < levels && length > 0; up++)
		while (length > 0 && self[--length] != '/')
			;
	self[length > 0 ? length : 0] = 0;
	return self;
}
