/* named: what can be asked of another thread by its id, and what cannot, when the file `go` is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t tid;
static volatile int ends;

static void *other(void *nothing)
{
	tid = syscall(SYS_gettid);
	while (!ends)
		usleep(10000);
	return nothing;
}

static void report(const char *what, long result)
{
	printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

static void report_proc(const char *name)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/%d/%s", tid, name);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file)) {
		int process, number;
		if (sscanf(line, "Tgid: %d", &process) == 1)
			printf("%s: of the process %d\n", name, process == getpid());
		if (sscanf(line, "TracerPid: %d", &number) == 1 || sscanf(line, "Threads: %d", &number) == 1)
			printf("%.7s %d\n", line, number);
	}
	if (!file)
		report(name, -1);
	else
		fclose(file);
}

int main(void)
{
	pthread_t thread;
	siginfo_t info;
	struct rlimit limit;
	cpu_set_t set;
	char byte = 'x', copy = 0;
	struct iovec here = {&copy, 1}, there = {&byte, 1};
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	pthread_create(&thread, NULL, other, NULL);
	dprintf(lines, "ready\n");
	while (access("go", F_OK) || !tid)
		usleep(10000);
	report("kill of a group", kill(-tid, 0));
	report("kill", kill(tid, 0));
	report("tgkill", syscall(SYS_tgkill, getpid(), tid, 0));
	report("tgkill of another process's", syscall(SYS_tgkill, tid, tid, 0));
	report("waitid", waitid(P_PID, tid, &info, WEXITED | WNOHANG));
	report("pidfd_open", syscall(SYS_pidfd_open, tid, 0));
	report("pidfd_open of a thread", syscall(SYS_pidfd_open, tid, O_EXCL));
	report("setpriority", setpriority(PRIO_PROCESS, tid, 3));
	printf("priorities %d and %d\n", getpriority(PRIO_PROCESS, 0), getpriority(PRIO_PROCESS, tid));
	report("sched_setscheduler", sched_setscheduler(tid, SCHED_BATCH, &(struct sched_param){0}));
	printf("policies %d and %d\n", sched_getscheduler(0), sched_getscheduler(tid));
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	report("sched_setaffinity", sched_setaffinity(tid, sizeof set, &set));
	sched_getaffinity(tid, sizeof set, &set);
	printf("processors %d\n", CPU_COUNT(&set));
	report("prlimit", prlimit(tid, RLIMIT_NOFILE, NULL, &limit));
	report("prlimit of a stack", prlimit(tid, RLIMIT_STACK, NULL, &limit));
	printf("group %d, session %d\n", getpgid(tid) == getpgrp(), getsid(tid) == getsid(0));
	report("setpgid", setpgid(tid, 0));
	printf("ioprio %ld\n", syscall(SYS_ioprio_get, 1, tid));
	report_proc("status");
	report_proc("task/1/status");
	fflush(stdout);
	report("process_vm_readv", process_vm_readv(tid, &here, 1, &there, 1, 0));
	printf("read %c\n", copy);
	ends = 1;
	return pthread_join(thread, NULL);
}
