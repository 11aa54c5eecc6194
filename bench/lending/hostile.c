/* hostile KIND READY GO: makes the file READY, waits for the file GO, and takes then as much as it can get, until it is killed: forks,
 * memory, descriptors, processor or signals. Of its user's processes it takes MOST at most: what a node has no room for is born at home. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 200, THREADS = 16 };

static void forks(void)
{
	const struct rlimit most = {MOST, MOST};
	setrlimit(RLIMIT_NPROC, &most);
	for (;;)
		fork();
}

/* One child after the other takes all there is, and is killed for it. */
static void memory(void)
{
	for (;;) {
		pid_t child = fork();
		char *taken;
		while (child == 0 && (taken = malloc(1 << 20)))
			memset(taken, 1, 1 << 20);
		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
}

static void descriptors(void)
{
	int ends[2];
	for (;;) {
		while (pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && open("/dev/null", O_RDONLY) >= 0)
			continue;
		for (int number = 3; number < 40; number++)
			close(number);
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
	for (int begun = 0; begun < THREADS && pthread_create(&thread, NULL, compute, NULL) == 0; begun++)
		continue;
	compute(NULL);
}

static void take(int number)
{
	(void)number;
}

static void signals(void)
{
	const struct itimerval often = {{0, 1000}, {0, 1000}};
	signal(SIGUSR1, take);
	signal(SIGALRM, take);
	signal(SIGRTMIN, take);
	pid_t parent = getpid(), child = fork();
	setitimer(ITIMER_REAL, &often, NULL);
	for (;;) {
		kill(child > 0 ? child : parent, SIGUSR1);
		kill(child > 0 ? child : parent, SIGRTMIN);
		raise(SIGUSR1);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*act)(void);
	} kinds[] = {{"forks", forks}, {"memory", memory}, {"descriptors", descriptors}, {"processor", processor}, {"signals", signals}};
	if (argc != 4)
		return 64;
	close(open(argv[2], O_CREAT | O_WRONLY, 0644));
	while (access(argv[3], F_OK))
		usleep(20000);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(argv[1], kinds[i].name))
			kinds[i].act();
	return 64;
}
