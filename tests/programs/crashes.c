/* crashes HOW: three threads with a mark in memory each; when there is a file `go`, one of them ends the process: segv, abort, overflow (of
 * its stack, with a handler that finds no room either); or wait: for a signal from elsewhere. Says "ready" before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARKS 4096
static volatile long beats[3];
static volatile int *volatile nowhere = (volatile int *)8;

static void handled(int number)
{
	(void)number;
}

static int deeper(int depth)
{
	volatile char room[4096];
	room[0] = depth;
	return depth < 0 ? 0 : deeper(depth + 1) + room[0];
}

static void *work(void *number)
{
	char mark[64];
	snprintf(mark, sizeof mark, "A-MARK-%s-%ld", "on-a-stack", (long)number);
	for (;;) {
		beats[(long)number] += mark[0] != 0;
		usleep(1000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "abort";
	char *marks = malloc(MARKS * 64);
	pthread_t thread;

	for (long i = 0; i < MARKS; i++)
		snprintf(marks + 64 * i, 64, "A-MARK-%s-%ld", "on-the-heap", i);
	for (long i = 1; i < 3; i++)
		pthread_create(&thread, NULL, work, (void *)i);
	if (!strcmp(how, "overflow"))
		signal(SIGSEGV, handled);
	while (!beats[1] || !beats[2])
		usleep(1000);
	puts("ready");
	fflush(stdout);
	while (access("go", F_OK))
		usleep(5000);
	if (!strcmp(how, "segv"))
		*nowhere = marks[0];
	if (!strcmp(how, "overflow"))
		return deeper(0);
	if (!strcmp(how, "wait"))
		for (;;)
			pause();
	abort();
}
