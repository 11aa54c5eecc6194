/* hostile KIND: waits for the file `go`, and takes then as much as it can get, until it is killed: forks, memory, descriptors, processor
 * or signals. A line in the file `lines` reports when it has all it can get; of memory it takes MOST at most, of children GENERATIONS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { CHILDREN = 4, GENERATIONS = 2, MOST = 2048 /* MiB */, THREADS = 8 };

static int lines;
static volatile sig_atomic_t taken;

static void forks(void)
{
	for (int generation = 0, born = 0; generation < GENERATIONS && born < CHILDREN; born++)
		if (fork() == 0) {
			generation++;
			born = -1;
		}
	dprintf(lines, "all\n");
	for (;;)
		pause();
}

static void memory(void)
{
	for (int mebibytes = 0; mebibytes < MOST; mebibytes++)
		memset(malloc(1 << 20), 1, 1 << 20);
	dprintf(lines, "no end\n");
	for (;;)
		pause();
}

static void descriptors(void)
{
	int ends[2], count = 0;
	while (dup(lines) >= 0)
		count++;
	dprintf(lines, "%d, then %d\n", count, errno);
	for (;;) {
		for (int number = lines + 1; number < lines + 40; number++)
			close(number);
		while (pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && open("/dev/null", O_RDONLY) >= 0)
			continue;
	}
}

static void *compute(void *unused)
{
	for (volatile unsigned long number = 0;; number++)
		continue;
	return unused;
}

static void processor(void)
{
	pthread_t thread;
	int begun = 0;
	while (begun < THREADS && pthread_create(&thread, NULL, compute, NULL) == 0)
		begun++;
	dprintf(lines, "%d threads\n", begun);
	compute(NULL);
}

static void take(int number)
{
	(void)number;
	taken++;
}

static void signals(void)
{
	const struct itimerval often = {{0, 1000}, {0, 1000}};
	sigset_t queued;
	sigemptyset(&queued);
	sigaddset(&queued, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &queued, NULL);
	signal(SIGUSR1, take);
	signal(SIGALRM, take);
	setitimer(ITIMER_REAL, &often, NULL);
	pid_t parent = getpid(), child = fork();
	for (long round = 0;; round++) {
		kill(child > 0 ? child : parent, SIGUSR1);
		kill(child > 0 ? child : parent, SIGRTMIN);
		raise(SIGUSR1);
		if (round == 200)
			dprintf(lines, "%d\n", (int)taken);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*act)(void);
	} kinds[] = {{"forks", forks}, {"memory", memory}, {"descriptors", descriptors}, {"processor", processor}, {"signals", signals}};
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	while (access("go", F_OK))
		usleep(20000);
	for (size_t i = 0; argc == 2 && i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(argv[1], kinds[i].name))
			kinds[i].act();
	return 64;
}
