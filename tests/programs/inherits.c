/* inherits: a thread that is not the first sets what is its own, and makes a thread and a child: what have these of it? Says so when the
 * file `go` is there. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BEST_EFFORT_6 ((2 << 13) | 6)

static void report(const char *who)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {{0}};
	struct sched_param parameters = {0};
	cpu_set_t processors;
	char name[16] = "";
	CPU_ZERO(&processors);
	sched_getaffinity(0, sizeof processors, &processors);
	syscall(SYS_capget, &head, data);
	prctl(PR_GET_NAME, name);
	sched_getparam(0, &parameters);
	printf("%s: nice %d, policy %d, slack %d, io %ld, processors %d of them the first %d, rights %x, securebits %x, name %s\n", who,
	       getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), prctl(PR_GET_TIMERSLACK), syscall(SYS_ioprio_get, 1, 0),
	       CPU_COUNT(&processors), CPU_ISSET(0, &processors) != 0, data[0].effective, (unsigned)prctl(PR_GET_SECUREBITS), name);
	fflush(stdout);
}

static void *newborn(void *who)
{
	report(who);
	return NULL;
}

static void *maker(void *nothing)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	struct sched_param none = {0};
	cpu_set_t first;
	pthread_t thread;
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	prctl(PR_SET_NAME, "maker");
	if (sched_setscheduler(0, SCHED_BATCH, &none) || setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 7) ||
	    prctl(PR_SET_TIMERSLACK, 123456) || syscall(SYS_ioprio_set, 1, 0, BEST_EFFORT_6) ||
	    sched_setaffinity(0, sizeof first, &first) || prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) ||
	    syscall(SYS_capget, &head, data))
		_exit(2);
	data[0].effective &= ~(1u << CAP_SYS_TIME);
	data[0].permitted &= ~(1u << CAP_SYS_TIME);
	if (syscall(SYS_capset, &head, data))
		_exit(3);
	report("maker");
	if (pthread_create(&thread, NULL, newborn, "thread") || pthread_join(thread, NULL))
		_exit(4);
	pid_t child = fork();
	if (!child) {
		report("child");
		_exit(0);
	}
	waitpid(child, NULL, 0);
	return nothing;
}

int main(void)
{
	pthread_t thread;
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	dprintf(lines, "ready\n");
	while (access("go", F_OK))
		usleep(20000);
	if (pthread_create(&thread, NULL, maker, NULL) || pthread_join(thread, NULL) ||
	    pthread_create(&thread, NULL, newborn, "of the first") || pthread_join(thread, NULL))
		return 5;
	return 0;
}
