/* cputime MS [home]: computes for MS a round, in two threads, and samples all clocks and counters of cpu time, until there is a file `end`.
 *
 * Each round one line is added to the file `lines`: the cpu clocks of the process and of the first thread, user and system
 * time by getrusage(RUSAGE_SELF), by times, the thread's by RUSAGE_THREAD, the second thread's by its own clock; all in
 * microseconds, then page faults. Exit status: 0; 3 something went back or does not fit, named on standard output. With
 * `home` nothing is said of clocks that went back (they may, when a process comes home). */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

enum { PROCESS, THREAD, SELF_USER, SELF_SYSTEM, TIMES, THREAD_USAGE, OTHER, OWN_PID, FAULTS, COUNT };
static const char *const names[COUNT] = {"process clock", "thread clock",          "user time",        "system time", "times",
                                         "thread usage",  "second thread's clock", "clock of the pid", "page faults"};
static volatile int ends, work_on;
static clockid_t other_clock, pid_clock;

static long microseconds(clockid_t clock)
{
	struct timespec t;
	if (clock_gettime(clock, &t))
		return -1;
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static long interval(struct timeval t)
{
	return t.tv_sec * 1000000 + t.tv_usec;
}

static void burn(long long clock_us)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (volatile int i = 0; i < 100000; i++)
			;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000000LL + (now.tv_nsec - start.tv_nsec) / 1000 < clock_us);
}

static void *second(void *argument)
{
	(void)argument;
	while (!ends)
		if (work_on)
			burn(2000);
		else
			usleep(1000);
	return NULL;
}

static void sample(long now[COUNT])
{
	struct rusage usage;
	struct tms used;
	now[PROCESS] = microseconds(CLOCK_PROCESS_CPUTIME_ID);
	now[THREAD] = microseconds(CLOCK_THREAD_CPUTIME_ID);
	getrusage(RUSAGE_SELF, &usage);
	now[SELF_USER] = interval(usage.ru_utime);
	now[SELF_SYSTEM] = interval(usage.ru_stime);
	now[FAULTS] = usage.ru_minflt;
	times(&used);
	now[TIMES] = (used.tms_utime + used.tms_stime) * 10000;
	getrusage(RUSAGE_THREAD, &usage);
	now[THREAD_USAGE] = interval(usage.ru_utime) + interval(usage.ru_stime);
	now[OTHER] = microseconds(other_clock);
	now[OWN_PID] = microseconds(pid_clock);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	long before[COUNT], now[COUNT];
	if (argc < 2)
		return 64;
	int may_go_back = argc > 2 && !strcmp(argv[2], "home");
	pthread_create(&thread, NULL, second, NULL);
	if (pthread_getcpuclockid(thread, &other_clock) || clock_getcpuclockid(getpid(), &pid_clock))
		return 4;
	sample(before);
	FILE *lines = fopen("lines", "w");
	for (long round = 0; access("end", F_OK); round++) {
		work_on = 1;
		burn(atol(argv[1]) * 1000);
		work_on = 0;
		for (int again = 0; again < 5; again++) {
			sample(now);
			for (int i = 0; i < COUNT; i++) {
				if (now[i] < before[i] && !may_go_back) {
					printf("%s went back from %ld to %ld us in round %ld\n", names[i], before[i], now[i], round);
					return 3;
				}
				before[i] = now[i];
			}
		}
		for (int i = 0; i < COUNT; i++)
			fprintf(lines, "%ld%c", now[i], i + 1 < COUNT ? ' ' : '\n');
		fflush(lines);
	}
	ends = 1;
	pthread_join(thread, NULL);
	printf("sampled\n");
	return 0;
}
