/* What a process of a sandbox sets of its own: with whom it dies, its cgroups, its user, what becomes of it when memory is short. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

void sandbox_die_with_parent(void)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		sandbox_fail("PR_SET_PDEATHSIG");
}

/* A descriptor for sandbox_enter_cgroup(). */
int sandbox_open_cgroup(const char *directory)
{
	char path[4096];
	if (snprintf(path, sizeof path, "%s/cgroup.procs", directory) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		sandbox_fail(directory);
	}
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		sandbox_fail(path);
	return fd;
}

void sandbox_enter_cgroup(int fd)
{
	if (write(fd, "0", 1) != 1)
		sandbox_fail("cgroup");
	close(fd);
}

void sandbox_become_root(void)
{
	if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
		sandbox_fail("becoming root of the sandbox");
}

void sandbox_offer_to_oom_killer(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "1000", 4) != 4)
		sandbox_fail("oom_score_adj");
	close(fd);
}
