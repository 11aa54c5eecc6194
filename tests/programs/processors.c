/* processors: asks about processors, and sets on which ones it may run, until there is a file `end`.
 *
 * Each round adds a line to the file `lines`: how many processors there are by sysconf (online and configured) and by
 * sched_getaffinity, the masks of the process and of a second thread before and after they are set to the first processor of
 * theirs, and what the errors are. The masks are put back, so that every line is the same. Exit status: 0; 3 with a sentence
 * when something set is not read back, or getcpu fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int ends;
static volatile pid_t second_tid;

static void *second(void *argument)
{
	(void)argument;
	second_tid = gettid();
	while (!ends)
		usleep(10000);
	return NULL;
}

static unsigned long mask_of(pid_t tid)
{
	unsigned long bits[16] = {0};
	long length = syscall(SYS_sched_getaffinity, tid, sizeof bits, bits);
	return length < 8 ? ~0ul : bits[0];
}

static int set_mask(pid_t tid, unsigned long mask)
{
	return syscall(SYS_sched_setaffinity, tid, sizeof mask, &mask);
}

static int narrow(pid_t tid, const char *who, FILE *lines)
{
	unsigned long before = mask_of(tid), first = before & -before;
	if (set_mask(tid, first) || mask_of(tid) != first || set_mask(tid, before) || mask_of(tid) != before) {
		printf("the mask of %s is %lx, not what was set\n", who, mask_of(tid));
		return -1;
	}
	fprintf(lines, " %s %lx %lx", who, before, first);
	return 0;
}

int main(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, second, NULL);
	while (!second_tid)
		usleep(1000);
	FILE *lines = fopen("lines", "w");
	while (access("end", F_OK)) {
		cpu_set_t set, other;
		unsigned cpu, node, again;
		sched_getaffinity(0, sizeof set, &set);
		fprintf(lines, "%ld online %ld configured %d mine", sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF),
		        CPU_COUNT(&set));
		if (narrow(0, "self", lines) || narrow(getpid(), "pid", lines) || narrow(second_tid, "second", lines))
			return 3;
		pthread_getaffinity_np(thread, sizeof other, &other);
		fprintf(lines, " %d by pthread", CPU_COUNT(&other));
		fprintf(lines, " none %d", set_mask(0, 0) ? errno : 0);
		fprintf(lines, " nobody %d", set_mask(1 << 22, 1) ? errno : 0);
		fprintf(lines, " short %d", syscall(SYS_sched_getaffinity, 0, 1, &set) < 0 ? errno : 0);
		fprintf(lines, " unmapped %d\n", syscall(SYS_sched_getaffinity, 0, sizeof set, (void *)8) < 0 ? errno : 0);
		fflush(lines);
		if (getcpu(&cpu, &node) || syscall(SYS_getcpu, &again, NULL, NULL) || sched_getcpu() < 0) {
			printf("getcpu fails\n");
			return 3;
		}
		usleep(20000);
	}
	ends = 1;
	pthread_join(thread, NULL);
	printf("asked\n");
	return 0;
}
