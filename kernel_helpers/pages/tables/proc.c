/* Files of /proc that describe a process. */
#define _GNU_SOURCE
#include "pages/tables/tables.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

int open_proc(int pid, const char *name, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	int fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}
