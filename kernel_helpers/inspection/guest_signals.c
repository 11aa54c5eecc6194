/* See guest_signals.h. */
#define _GNU_SOURCE
#include "inspection/guest_signals.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t value_of(const char *text, const char *name)
{
	const char *line = strstr(text, name);
	return line ? strtoull(line + strlen(name), NULL, 16) : 0;
}

int guest_signals(int tid, struct signal_sets *sets)
{
	char path[40], text[4096];
	snprintf(path, sizeof path, "/proc/%d/status", tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t length = read(fd, text, sizeof text - 1);
	close(fd);
	if (length <= 0)
		return -ESRCH;
	text[length] = 0;
	*sets = (struct signal_sets){value_of(text, "\nSigPnd:") | value_of(text, "\nShdPnd:"), value_of(text, "\nSigBlk:")};
	return 0;
}
