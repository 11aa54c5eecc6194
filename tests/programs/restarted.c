/* Threads that wait for an hour, in each of the calls that the kernel goes on with by restart_syscall after a stop. Prints their ids, each
 * with the number of its call, then `ready`. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HOUR = 3600, MANY = 137 };
static int word = 5, ends[2];
static struct timespec hour = {.tv_sec = HOUR}, rest;
static struct timespec wall, monotonic;
static pthread_barrier_t begun;

struct wait {
	long number;
	void (*wait)(void);
};

static void futex_shared(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT, 5, &hour, NULL, 0);
}
static void futex_private(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 5, &hour, NULL, 0);
}
static void futex_until(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 5, &monotonic, NULL, FUTEX_BITSET_MATCH_ANY);
}
static void futex_shared_until(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 5, &monotonic, NULL, FUTEX_BITSET_MATCH_ANY);
}
static void futex_wall(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 5, &wall, NULL, FUTEX_BITSET_MATCH_ANY);
}
static void poll_of(int count)
{
	struct pollfd polled[MANY];
	for (int i = 0; i < MANY; i++)
		polled[i] = (struct pollfd){.fd = ends[0], .events = POLLIN};
	syscall(SYS_poll, polled, (long)count, 1000 * HOUR);
}
static void poll_none(void)
{
	syscall(SYS_poll, NULL, 0L, 1000 * HOUR);
}
static void poll_one(void)
{
	poll_of(1);
}
static void poll_nine(void)
{
	poll_of(9);
}
static void poll_many(void)
{
	poll_of(MANY);
}
static void sleep_plain(void)
{
	syscall(SYS_nanosleep, &hour, NULL);
}
static void sleep_rest(void)
{
	syscall(SYS_nanosleep, &hour, &rest);
}
static void sleep_clock(void)
{
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &hour, NULL);
}
static void sleep_clock_rest(void)
{
	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &hour, &rest);
}

static const struct wait waits[] = {{SYS_futex, futex_shared},
                                    {SYS_futex, futex_private},
                                    {SYS_futex, futex_until},
                                    {SYS_futex, futex_shared_until},
                                    {SYS_futex, futex_wall},
                                    {SYS_poll, poll_none},
                                    {SYS_poll, poll_one},
                                    {SYS_poll, poll_nine},
                                    {SYS_poll, poll_many},
                                    {SYS_nanosleep, sleep_plain},
                                    {SYS_nanosleep, sleep_rest},
                                    {SYS_clock_nanosleep, sleep_clock},
                                    {SYS_clock_nanosleep, sleep_clock_rest}};
enum { WAITS = sizeof waits / sizeof *waits };

static void *wait_so(void *which)
{
	const struct wait *wait = which;
	printf("%ld %ld\n", syscall(SYS_gettid), wait->number);
	fflush(stdout);
	pthread_barrier_wait(&begun);
	wait->wait();
	return NULL;
}

int main(void)
{
	pthread_t thread;
	if (pipe(ends))
		return 1;
	clock_gettime(CLOCK_REALTIME, &wall);
	clock_gettime(CLOCK_MONOTONIC, &monotonic);
	wall.tv_sec += HOUR;
	monotonic.tv_sec += HOUR;
	pthread_barrier_init(&begun, NULL, WAITS + 1);
	for (int i = 0; i < WAITS; i++)
		if (pthread_create(&thread, NULL, wait_so, (void *)&waits[i]))
			return 1;
	pthread_barrier_wait(&begun);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
