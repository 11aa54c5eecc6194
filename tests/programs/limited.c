/* limited compute|reader|handler: uses up its limit on processor time (ulimit -t), and writes how far it is into `lines`.
 *
 * compute: the only thread computes. reader: the first thread waits in read(), a second one computes
 * and blocks all signals. handler: SIGXCPU is caught, said, and ends the program with status 5.
 * Until there is a file `go` it rests between any two lines. Without a limit it ends after 20 s of processor time with status 6. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t reached;

static void on_limit(int number)
{
	reached = number;
}

static long used(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *compute(void *argument)
{
	FILE *lines = argument;
	long now = used(), next = now + 50;
	while (now < 20000 && !reached) {
		for (volatile int i = 0; i < 200000; i++)
			;
		now = used();
		if (now >= next) {
			next = now + 50;
			fprintf(lines, "%ld\n", now);
			fflush(lines);
			if (access("go", F_OK))
				usleep(200000);
		}
	}
	if (reached)
		printf("signal %d\n", (int)reached);
	fflush(stdout);
	_exit(reached ? 5 : 6);
}

int main(int argc, char **argv)
{
	FILE *lines = fopen("lines", "w");
	if (argc != 2 || !lines)
		return 64;
	if (!strcmp(argv[1], "handler"))
		signal(SIGXCPU, on_limit);
	if (!strcmp(argv[1], "reader")) {
		pthread_t thread;
		int ends[2];
		char byte;
		sigset_t all, none;
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &none);
		if (pipe(ends) || pthread_create(&thread, NULL, compute, lines))
			return 4;
		pthread_sigmask(SIG_SETMASK, &none, NULL);
		return read(ends[0], &byte, 1) ? 3 : 2;
	}
	compute(lines);
}
