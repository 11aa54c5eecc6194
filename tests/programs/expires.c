/* expires NANOSECONDS SIGNAL THREADS TIMERS: timers that share a signal, whose expirations the handler counts, each tick with its overruns, beside
 * so many threads that only wait. Computes until a file `enough` is there, writes a line into `lines` each tenth of a second, and says how many
 * of those that had been when the last tick was handled it did not hear of, and how often, once a file `settled` was there, timer_getoverrun(2)
 * of the only timer did not say what its tick did. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MOST 8

static volatile long delivered, differ;
static volatile int compares;
static volatile double last;
static timer_t timers[MOST];

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void on_tick(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	delivered += 1 + info->si_overrun;
	if (compares && timer_getoverrun(timers[0]) != info->si_overrun)
		differ++;
	last = seconds();
}

static void *wait_for_ever(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

int main(int argc, char **argv)
{
	if (argc != 5 || atoi(argv[4]) > MOST)
		return 64;
	long nanoseconds = atol(argv[1]);
	int number = atoi(argv[2]), lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	struct sigaction action = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
	struct itimerspec every = {{0, nanoseconds}, {0, nanoseconds}}, none = {0};
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, number);
	sigaction(number, &action, NULL);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < atoi(argv[3]); i++) {
		pthread_t thread;
		pthread_create(&thread, NULL, wait_for_ever, NULL);
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	double began[MOST], expired = 0;
	int count = atoi(argv[4]);
	for (int i = 0; i < count; i++)
		timer_create(CLOCK_MONOTONIC, &event, &timers[i]);
	for (int i = 0; i < count; i++) {
		began[i] = seconds();
		timer_settime(timers[i], 0, &every, NULL);
	}
	for (long k = 0; access("enough", F_OK); k++) {
		for (double end = seconds() + 0.1; seconds() < end;)
			;
		dprintf(lines, "%ld\n", k);
		compares = count == 1 && !access("settled", F_OK);
	}
	compares = 0;
	for (int i = 0; i < count; i++) {
		timer_settime(timers[i], 0, &none, NULL);
		expired += (long)((last - began[i]) * 1e9 / nanoseconds);
	}
	printf("lost %ld of %.0f, differ %ld\n", (long)expired - delivered, expired, differ);
	return 0;
}
