// Joining cgroups, for the programs that start a virtual node and enter it.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

// Returns 0, or -1 with errno: moves this process into the cgroup.
static inline int join_cgroup(const char *directory)
{
	char path[4096];
	if (snprintf(path, sizeof path, "%s/cgroup.procs", directory) >= (int)sizeof path)
		return errno = ENAMETOOLONG, -1;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int failed = write(fd, "0", 1) != 1;
	close(fd);
	return failed ? -1 : 0;
}
