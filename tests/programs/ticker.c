/* ticker ROUNDS: in each round a timer ticks, and is stopped, in one way after the other, at any moment. Once it is stopped no signal comes
 * any more: a tick from before has been handled by then. Says how many came nevertheless. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TICK 1500 /* microseconds */

static volatile sig_atomic_t ticks;

static void on_tick(int number)
{
	(void)number;
	ticks++;
}

static void compute(long us)
{
	struct timespec now, end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_nsec += us * 1000;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
}

int main(int argc, char **argv)
{
	const struct itimerspec ticking = {{0, TICK * 1000}, {0, TICK * 1000}}, still = {0};
	const struct itimerval alarming = {{0, TICK}, {0, TICK}}, silent = {0};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3};
	struct sigaction action = {.sa_handler = on_tick};
	const char *const ways[] = {"timer_delete", "timer_settime", "setitimer", "alarm"};
	unsigned chance = 1;
	int late[4] = {0};
	timer_t timer;

	if (argc != 2)
		return 64;
	sigaction(SIGRTMIN + 3, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	FILE *lines = fopen("lines", "w");
	for (long round = 0, rounds = atol(argv[1]); round < rounds; round++) {
		int way = round % 4;
		if (way < 2 && (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &ticking, NULL)))
			return 1;
		if (way >= 2 && setitimer(ITIMER_REAL, &alarming, NULL))
			return 1;
		compute(TICK + rand_r(&chance) % (2 * TICK));
		switch (way) {
		case 0:
			timer_delete(timer);
			break;
		case 1:
			timer_settime(timer, 0, &still, NULL);
			break;
		case 2:
			setitimer(ITIMER_REAL, &silent, NULL);
			break;
		default:
			alarm(0);
		}
		int before = ticks;
		compute(4000);
		late[way] += ticks - before;
		if (way == 1)
			timer_delete(timer);
		fprintf(lines, "%ld\n", round);
		fflush(lines);
	}
	for (int way = 0; way < 4; way++)
		printf("%d after %s\n", late[way], ways[way]);
	return 0;
}
