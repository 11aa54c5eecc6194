/* ticks: timers too fast for any program to follow. Computes until a file `go` is there; then, for alarms and timers of several speeds,
 * with the signal blocked or not, reports whether it continued, received every expiration, and received none after the
 * timer had stopped. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long handled, overruns;

static void on_tick(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	handled++;
	if (info->si_code == SI_TIMER)
		overruns += info->si_overrun;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void compute(double length)
{
	for (double end = seconds() + length; seconds() < end;)
		;
}

static void try(const char *name, int number, long nanoseconds, int blocked)
{
	struct sigaction action = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
	struct itimerspec fast = {{0, nanoseconds}, {0, nanoseconds}}, none = {0};
	sigset_t set;
	timer_t timer;
	sigemptyset(&set);
	sigaddset(&set, number);
	sigaction(number, &action, NULL);
	if (blocked)
		sigprocmask(SIG_BLOCK, &set, NULL);
	handled = overruns = 0;
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &fast, NULL);
	compute(0.3);
	if (blocked)
		sigprocmask(SIG_UNBLOCK, &set, NULL);
	while (!blocked && handled + overruns < 300000000 / nanoseconds)
		;
	long received = handled + overruns;
	timer_settime(timer, 0, &none, NULL);
	long before = handled;
	compute(0.05);
	printf("%s, every %ld us%s: %s of what expired, %ld after\n", name, nanoseconds / 1000, blocked ? ", blocked" : "",
	       received >= 100 || !blocked ? "reported" : "not reported", handled - before);
	timer_delete(timer);
}

int main(void)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (access("go", F_OK)) {
		dprintf(lines, "waits\n");
		compute(0.05);
	}
	try("a signal of old", SIGUSR1, 10000000, 0);
	try("a signal of old", SIGUSR1, 100000, 0);
	try("a signal of old", SIGUSR1, 10000, 0);
	try("a signal of old", SIGUSR1, 2000000, 1);
	try("a realtime signal", SIGRTMIN + 2, 10000, 0);
	try("a realtime signal", SIGRTMIN + 2, 2000000, 1);
	struct sigaction action = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct itimerval fast = {{0, 20}, {0, 20}}, none = {{0, 0}, {0, 0}};
	sigaction(SIGALRM, &action, NULL);
	handled = 0;
	setitimer(ITIMER_REAL, &fast, NULL);
	compute(0.3);
	setitimer(ITIMER_REAL, &none, NULL);
	long before = handled;
	compute(0.05);
	printf("alarms: %s, %ld after\n", before > 10 ? "many" : "few", handled - before);
	return 0;
}
