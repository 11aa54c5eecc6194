/* Makes a child of each kind by turns, waits for its end, and writes how long that took: "KIND NANOSECONDS". Until it is killed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *nothing(void *argument)
{
	return argument;
}

static void thread(void)
{
	pthread_t made;
	if (pthread_create(&made, NULL, nothing, NULL) || pthread_join(made, NULL))
		exit(1);
}

static void await(pid_t child)
{
	if (child < 0 || waitpid(child, NULL, 0) != child)
		exit(1);
}

static void forked(void)
{
	pid_t child = fork();
	if (!child)
		_exit(0);
	await(child);
}

static void vforked(void)
{
	pid_t child = vfork();
	if (!child)
		_exit(0);
	await(child);
}

static void spawned(void)
{
	pid_t child;
	char *words[] = {"true", NULL}, *none[] = {NULL};
	if (posix_spawn(&child, "/bin/true", NULL, NULL, words, none))
		exit(1);
	await(child);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*make)(void);
	} kinds[] = {{"thread", thread}, {"fork", forked}, {"vfork", vforked}, {"spawn", spawned}};
	for (;;)
		for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
			struct timespec begin, end, rest = {0, 10000000};
			clock_gettime(CLOCK_MONOTONIC, &begin);
			kinds[i].make();
			clock_gettime(CLOCK_MONOTONIC, &end);
			if (printf("%s %ld\n", kinds[i].name, (end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) < 0 ||
			    fflush(stdout))
				return 1;
			nanosleep(&rest, NULL);
		}
}
