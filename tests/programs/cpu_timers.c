/* cpu_timers virtual|profile|posix|sleep: computes and writes into `lines`. A timer rings at every second of its own processor time, and
 * it ends at the first ring that finds a file `enough`; or (sleep) the first of two threads is asleep for two such seconds. Exit status 0
 * when that was so, 7 after 30 s of the wall. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t rang;

static void on_timer(int number)
{
	if (access("enough", F_OK) == 0)
		rang = number;
}

static long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *compute(void *argument)
{
	FILE *lines = argument;
	long start = now(CLOCK_MONOTONIC), next = 0, elapsed;
	while (!rang && (elapsed = now(CLOCK_MONOTONIC) - start) < 30000) {
		for (volatile int i = 0; i < 200000; i++)
			;
		if (elapsed >= next) {
			next = elapsed + 50;
			fprintf(lines, "%ld\n", elapsed);
			fflush(lines);
		}
	}
	printf("%s\n", rang ? "rang" : "nothing came");
	fflush(stdout);
	_exit(rang ? 0 : 7);
}

int main(int argc, char **argv)
{
	FILE *lines = fopen("lines", "w");
	struct itimerval second = {.it_interval = {1, 0}, .it_value = {1, 0}};
	struct itimerspec the_same = {.it_interval = {1, 0}, .it_value = {1, 0}};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	timer_t timer;
	pthread_t thread;
	int failed = 1;
	if (argc != 2 || !lines)
		return 64;
	signal(SIGVTALRM, on_timer);
	signal(SIGPROF, on_timer);
	signal(SIGUSR1, on_timer);
	if (!strcmp(argv[1], "virtual"))
		failed = setitimer(ITIMER_VIRTUAL, &second, NULL);
	else if (!strcmp(argv[1], "profile"))
		failed = setitimer(ITIMER_PROF, &second, NULL);
	else if (!strcmp(argv[1], "posix"))
		failed = timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) || timer_settime(timer, 0, &the_same, NULL);
	else if (!strcmp(argv[1], "sleep"))
		failed = pthread_create(&thread, NULL, compute, lines);
	if (failed)
		return 4;
	if (!strcmp(argv[1], "sleep")) {
		the_same.it_value.tv_sec = 2;
		failed = clock_nanosleep(CLOCK_PROCESS_CPUTIME_ID, 0, &the_same.it_value, NULL);
		rang = 1;
		pthread_join(thread, NULL);
		return failed;
	}
	compute(lines);
}
