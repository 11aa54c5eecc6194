/* births ROUNDS: in each round makes eight threads, one after the other and all at once, joined and detached, each with its own
 * thread-local storage, file calls, a signal of its own and a name; checks ids, sums and storage; appends a line to `lines`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 8 };

static __thread long own = 40;
static __thread volatile sig_atomic_t signals;
static sem_t ended;
static int file;

static void must(int good, const char *what)
{
	if (!good) {
		printf("not so: %s (%s)\n", what, strerror(errno));
		exit(3);
	}
}

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void *work(void *argument)
{
	long index = (long)argument;
	char name[16], shown[16], line[32];
	must(own == 40, "fresh thread-local storage");
	own += index;
	snprintf(name, sizeof name, "worker-%ld", index);
	must(!prctl(PR_SET_NAME, name) && !prctl(PR_GET_NAME, shown) && !strcmp(name, shown), "a name of its own");
	must(syscall(SYS_gettid) != getpid(), "an id of its own");
	must(!syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1) && signals == 1, "a signal to this thread alone");
	int length = snprintf(line, sizeof line, "%ld", index);
	for (int i = 0; i < 20; i++)
		must(pwrite(file, line, length, index * 32) == length && pread(file, shown, length, index * 32) == length, "file calls");
	long sum = 0;
	for (volatile long i = 0; i < 2000000; i++)
		sum += i ^ own;
	must(own == 40 + index, "thread-local storage");
	sem_post(&ended);
	return (void *)(own + (sum & 0));
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 5;
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGUSR1, &action, NULL);
	sem_init(&ended, 0, 0);
	file = open("scratch", O_RDWR | O_CREAT | O_TRUNC, 0644);
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	must(file >= 0 && lines >= 0, "files");
	for (int round = 0; round < rounds; round++) {
		pthread_t threads[THREADS];
		void *result;
		for (long i = 0; i < THREADS; i++) {            /* one after the other */
			must(!pthread_create(&threads[i], NULL, work, (void *)i), "pthread_create");
			must(!pthread_join(threads[i], &result) && (long)result == 40 + i, "joined");
			sem_wait(&ended);
		}
		for (long i = 0; i < THREADS; i++) {            /* all at once, half of them detached */
			must(!pthread_create(&threads[i], NULL, work, (void *)i), "pthread_create");
			if (i % 2)
				pthread_detach(threads[i]);
		}
		for (long i = 0; i < THREADS; i += 2)
			must(!pthread_join(threads[i], &result) && (long)result == 40 + i, "joined");
		for (long i = 0; i < THREADS; i++)
			sem_wait(&ended);
		dprintf(lines, "round %d\n", round);
	}
	printf("%d rounds of births\n", rounds);
	return 0;
}
