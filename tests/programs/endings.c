/* endings HOW MS: computes for about MS milliseconds of its own time, then ends in the way named.
 *
 * HOW: exit:N, return:N, abort, segv, fpe, signal:N (to itself), thread-exit:N (exit_group called by a second thread
 * while the first sleeps), last-thread:0 (the first thread leaves with pthread_exit, a second one ends later), wait
 * (until a signal ends it). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int number;
static long budget;
static volatile int *volatile nowhere = (volatile int *)8;

static void at_exit(void)
{
	printf("atexit ran\n");
}

static void compute(long milliseconds)
{
	struct timespec now;
	volatile double value = 1;
	do {
		for (int i = 0; i < 100000; i++)
			value = value * 1.0000001 + 1e-9;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < milliseconds);
}

static void *exit_from_thread(void *nothing)
{
	compute(budget);
	exit(number);
	return nothing;
}

static void *end_later(void *nothing)
{
	compute(budget);
	printf("the last thread ends\n");
	fflush(stdout);
	return nothing;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	if (argc != 3)
		return 64;
	char *how = argv[1], *colon = strchr(how, ':');
	number = colon ? atoi(colon + 1) : 0;
	budget = atol(argv[2]);
	if (colon)
		*colon = 0;
	atexit(at_exit);
	printf("ending by %s\n", how);
	fflush(stdout);
	if (!strcmp(how, "thread-exit")) {
		pthread_create(&thread, NULL, exit_from_thread, NULL);
		for (;;)
			pause();
	}
	if (!strcmp(how, "last-thread")) {
		pthread_create(&thread, NULL, end_later, NULL);
		pthread_detach(thread);
		pthread_exit(NULL);
	}
	compute(budget);
	if (!strcmp(how, "exit"))
		exit(number);
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "segv"))
		*nowhere = 1;
	if (!strcmp(how, "fpe"))
		raise(SIGFPE);
	if (!strcmp(how, "signal"))
		kill(getpid(), number);
	while (!strcmp(how, "wait") || !strcmp(how, "signal"))
		pause();
	return number;
}
