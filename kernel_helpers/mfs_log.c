/* What mfs-client and mfs-server say, and by which clock they go. */
#include "mfs_log.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *mfs_about;

long long mfs_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

void mfs_log(const char *format, ...)
{
	va_list arguments;
	char line[1024];

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s%s%s: %s\n", mfs_program, mfs_about ? " " : "", mfs_about ? mfs_about : "", line);
}

int mfs_fail(const char *what, int error)
{
	mfs_log("%s: %s", what, strerror(error));
	return 1;
}
