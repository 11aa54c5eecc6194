// enter PID UID GID[,GROUP...] DIRECTORY [CGROUP...] -- PROGRAM [ARGUMENT...]: runs PROGRAM inside the virtual node whose
// process 1 is PID, as that user, with DIRECTORY as its working directory (or / where the node has no such directory).
//
// Joins the cgroups (directories, before the namespaces hide them), then all namespaces of PID, on whose processors it runs. The program is a child, because
// only a child is in another pid namespace; SIGTERM and SIGHUP are passed on to it, its stops are shared, its end is ours.
// Exit status: the program's own (killed by a signal: so are we); 127, 126 as a shell; 125 when the node cannot be entered.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "namespaces/cgroup.h"

#define MAX_GROUPS 64

static int fail(const char *what)
{
	fprintf(stderr, "enter: %s: %s\n", what, strerror(errno));
	return 125;
}

static int become(uid_t user, char *group_list)
{
	gid_t groups[MAX_GROUPS];
	int count = 0;
	for (char *word = strtok(group_list, ","); word && count < MAX_GROUPS; word = strtok(NULL, ","))
		groups[count++] = (gid_t)strtoul(word, NULL, 10);
	if (count == 0)
		return errno = EINVAL, -1;
	return setgroups(count, groups) || setresgid(groups[0], groups[0], groups[0]) || setresuid(user, user, user) ? -1 : 0;
}

static int run_child(char **argv, uid_t user, char *group_list, const char *directory, const sigset_t *mask)
{
	if (become(user, group_list))
		return fail("become the user");
	if (chdir(directory) && chdir("/"))
		return fail(directory);
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(argv[0], argv);
	int status = errno == ENOENT ? 127 : 126;
	fail(argv[0]);
	return status;
}

// Follows the child until it ends; returns its exit status, or dies of the signal that it died of.
static int follow(pid_t child, const sigset_t *waited)
{
	for (;;) {
		int status;
		pid_t pid = waitpid(child, &status, WUNTRACED | WNOHANG);
		if (pid == child && WIFSTOPPED(status)) {
			raise(SIGSTOP);
			kill(child, SIGCONT);
		} else if (pid == child && WIFEXITED(status)) {
			return WEXITSTATUS(status);
		} else if (pid == child && WIFSIGNALED(status)) {
			struct rlimit none = {0, 0};
			sigset_t all;
			setrlimit(RLIMIT_CORE, &none);
			signal(WTERMSIG(status), SIG_DFL);
			sigfillset(&all);
			raise(WTERMSIG(status));
			sigprocmask(SIG_UNBLOCK, &all, NULL);
			return 128 + WTERMSIG(status);
		} else if (pid < 0 && errno != EINTR) {
			return fail("waitpid");
		} else if (pid == 0) {
			siginfo_t information;
			// From the terminal the whole process group has the signal already; only a kill(2) at us is passed on.
			if (sigwaitinfo(waited, &information) > 0 && information.si_signo != SIGCHLD && information.si_code <= 0)
				kill(child, information.si_signo);
		}
	}
}

int main(int argc, char **argv)
{
	int program = 5;
	while (program < argc && strcmp(argv[program], "--"))
		program++;
	if (program + 1 >= argc) {
		fprintf(stderr, "usage: enter PID UID GID[,GROUP...] DIRECTORY [CGROUP...] -- PROGRAM [ARGUMENT...]\n");
		return 64;
	}
	cpu_set_t processors;
	int node = (int)syscall(SYS_pidfd_open, atoi(argv[1]), 0);
	if (node < 0)
		return fail("open the node");
	if (sched_getaffinity(atoi(argv[1]), sizeof processors, &processors) || sched_setaffinity(0, sizeof processors, &processors))
		return fail("run on the node's processors");
	for (int i = 5; i < program; i++)
		if (join_cgroup(argv[i]))
			return fail(argv[i]);
	if (setns(node, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWTIME))
		return fail("enter the node");
	close(node);
	sigset_t waited, mask;
	sigemptyset(&waited);
	sigaddset(&waited, SIGCHLD);
	sigaddset(&waited, SIGTERM);
	sigaddset(&waited, SIGHUP);
	sigprocmask(SIG_BLOCK, &waited, &mask);
	signal(SIGCHLD, SIG_DFL);
	pid_t child = fork();
	if (child < 0)
		return fail("fork");
	if (child == 0)
		_exit(run_child(argv + program + 1, (uid_t)strtoul(argv[2], NULL, 10), argv[3], argv[4], &mask));
	// A terminal's interrupt is for the child; this process only reports how that ended.
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	return follow(child, &waited);
}
