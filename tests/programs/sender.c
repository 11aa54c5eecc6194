/* sender ROUNDS: in so many rounds, and in more until a file `enough` is there, a thread sends its process a signal, and then lets the first
 * thread go on, which has had the signal by then: it waits for both. Says how often it had not. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static sem_t wanted, sent;
static int rounds;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void *send(void *first)
{
	for (int round = 0;; round++) {
		sem_wait(&wanted);
		usleep(2000); /* so that the first thread waits */
		if (round % 2)
			syscall(SYS_tgkill, getpid(), *(long *)first, SIGUSR1);
		else
			kill(getpid(), SIGUSR1);
		sem_post(&sent);
	}
	return NULL;
}

int main(int count, char **words)
{
	if (count != 2)
		return 2;
	rounds = atoi(words[1]);
	long first = syscall(SYS_gettid);
	int missed = 0;
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGUSR1, &action, NULL);
	sem_init(&wanted, 0, 0);
	sem_init(&sent, 0, 0);
	pthread_t sender;
	pthread_create(&sender, NULL, send, &first);
	FILE *lines = fopen("lines", "w");
	int round = 1;
	for (; round <= rounds || access("enough", F_OK); round++) {
		sem_post(&wanted);
		while (sem_wait(&sent) && errno == EINTR)
			;
		missed += signals != round;
		for (int i = 0; i < 2000 && signals != round; i++)
			usleep(1000);
		fprintf(lines, "%d\n", round);
		fflush(lines);
	}
	printf("missed %d\n", missed);
	return signals != round - 1;
}
