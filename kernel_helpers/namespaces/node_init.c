// node_init SECONDS [CGROUP...] -- SETUP [ARGUMENT...]: starts a virtual node of the lab and is its process 1.
//
// Joins the cgroups (directories), which the node will see as the roots of their hierarchies, makes new mount, pid, network, UTS, IPC and cgroup namespaces, runs SETUP in them, prints the new process 1's id (as the
// caller sees it) when SETUP has succeeded, and returns. Process 1 stays and reaps whatever the node's processes leave. When
// it dies the kernel ends all that is in its pid namespace: that is how a node dies.
// SECONDS are added to the node's monotonic clock and uptime, which differ between real machines too; 0: they are the host's.
// Exit status: 0 the node is up; otherwise SETUP's own, 125 when it could not be started.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "namespaces/cgroup.h"

static int fail(const char *what)
{
	fprintf(stderr, "node_init: %s: %s\n", what, strerror(errno));
	return 125;
}

// Returns SETUP's exit status; reaps what it orphans on the way.
static int run_setup(char **argv)
{
	pid_t setup = fork();
	if (setup == 0) {
		execvp(argv[0], argv);
		_exit(fail(argv[0]));
	}
	if (setup < 0)
		return fail("fork");
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, __WALL);
		if (pid == setup)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
		if (pid < 0 && errno != EINTR)
			return fail("waitpid");
	}
}

// Process 1 of the node. Writes `ready` one byte, the exit status of SETUP; wipes the `arguments` of the command line, which name
// things of the host.
static int be_first_process(int ready, char **argv, char *arguments, size_t size)
{
	sigset_t children;
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	if (setsid() < 0)
		return fail("setsid");
	// Nothing that is mounted in the node is to be seen outside.
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return fail("make mounts private");
	unsigned char status = (unsigned char)run_setup(argv);
	sigprocmask(SIG_BLOCK, &children, NULL);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || chdir("/"))
		status = (unsigned char)fail("standard descriptors");
	if (write(ready, &status, 1) != 1 || status)
		return status ? status : 125;
	close_range(3, ~0U, 0);
	memset(arguments, 0, size);
	for (;;) {
		// __WALL: clone children without SIGCHLD count too; each of them becomes a SIGCHLD child when it is orphaned.
		while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
			;
		siginfo_t information;
		sigwaitinfo(&children, &information);
	}
}

// Returns 0, or -1 with errno: the children of this process find their clocks that many seconds ahead (or behind).
static int shift_clocks(const char *seconds)
{
	char text[128];
	int size = snprintf(text, sizeof text, "monotonic %s 0\nboottime %s 0\n", seconds, seconds);
	if (unshare(CLONE_NEWTIME))
		return -1;
	int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int failed = write(fd, text, (size_t)size) != size;
	close(fd);
	return failed ? -1 : 0;
}

int main(int argc, char **argv)
{
	int setup = 2;
	while (setup < argc && strcmp(argv[setup], "--"))
		setup++;
	if (setup + 1 >= argc) {
		fprintf(stderr, "usage: node_init SECONDS [CGROUP...] -- SETUP [ARGUMENT...]\n");
		return 64;
	}
	for (int i = 2; i < setup; i++)
		if (join_cgroup(argv[i]))
			return fail(argv[i]);
	if (strcmp(argv[1], "0") && shift_clocks(argv[1]))
		return fail("shift the clocks");
	int ready[2];
	if (pipe2(ready, O_CLOEXEC))
		return fail("pipe");
	if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP))
		return fail("unshare");
	pid_t first = fork();
	if (first < 0)
		return fail("fork");
	if (first == 0) {
		close(ready[0]);
		char *end = argv[argc - 1] + strlen(argv[argc - 1]);
		_exit(be_first_process(ready[1], argv + setup + 1, argv[1], (size_t)(end - argv[1])));
	}
	close(ready[1]);
	unsigned char status = 125;
	if (read(ready[0], &status, 1) != 1)
		status = 125; // it died: its message, if any, is on stderr
	if (status) {
		kill(first, SIGKILL);
		waitpid(first, NULL, __WALL);
		return status;
	}
	printf("%d\n", first);
	return fflush(stdout) ? 125 : 0;
}
