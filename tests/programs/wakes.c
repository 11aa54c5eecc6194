/* wakes [N]: again and again, until a file `enough` is there: a line with the name of a call that waits, the Nth of those below at first,
 * goes to the file `lines`, the process computes without any call, and then makes that call, which one SIGUSR1 is to end. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 10
#define SECONDS 0.7
#define MILLISECONDS (LONGEST * 1000)

static int pipes[2], sockets[2], epoll, semaphores;
static volatile sig_atomic_t handled;

static void handler(int number)
{
	(void)number;
	handled++;
}

static int by_select(void)
{
	struct timeval limit = {LONGEST, 0};
	return select(0, NULL, NULL, NULL, &limit);
}

static int by_poll(void)
{
	struct pollfd one = {pipes[0], POLLIN, 0};
	return poll(&one, 1, MILLISECONDS);
}

static int by_epoll(void)
{
	struct epoll_event event;
	return epoll_wait(epoll, &event, 1, MILLISECONDS);
}

static int by_read(void)
{
	char byte;
	return (int)read(pipes[0], &byte, 1);
}

static int by_receive(void)
{
	char byte;
	return (int)recv(sockets[0], &byte, 1, 0);
}

static int by_sleep(void)
{
	struct timespec limit = {LONGEST, 0};
	return nanosleep(&limit, NULL);
}

static int by_semaphore(void)
{
	struct sembuf down = {0, -1, 0};
	struct timespec limit = {LONGEST, 0};
	return semtimedop(semaphores, &down, 1, &limit);
}

static const struct {
	const char *name;
	int (*wait)(void);
} waits[] = {{"select", by_select}, {"poll", by_poll},       {"epoll_wait", by_epoll},     {"read", by_read},
             {"recv", by_receive},  {"nanosleep", by_sleep}, {"semtimedop", by_semaphore}, {"pause", pause}};

/* Without any call. */
static void compute(double seconds)
{
	struct timespec begin, now;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
}

int main(int count, char **arguments)
{
	struct sigaction action = {.sa_handler = handler};
	struct epoll_event event = {.events = EPOLLIN};
	unsigned int first = count > 1 ? (unsigned int)atoi(arguments[1]) : 0;
	FILE *lines = fopen("lines", "a");
	sigaction(SIGUSR1, &action, NULL);
	epoll = epoll_create1(0);
	semaphores = semget(IPC_PRIVATE, 1, 0600);
	if (!lines || pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || epoll < 0 || semaphores < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event)) {
		perror("wakes");
		return 2;
	}
	for (unsigned int i = first; access("enough", F_OK); i++) {
		size_t which = i % (sizeof waits / sizeof *waits);
		fprintf(lines, "%s\n", waits[which].name);
		fflush(lines);
		alarm(2 * LONGEST);
		compute(SECONDS);
		int result = waits[which].wait();
		if (result != -1 || errno != EINTR || handled != 1) {
			printf("%s gave %d (%s), %d signals\n", waits[which].name, result, result < 0 ? strerror(errno) : "-", handled);
			break;
		}
		handled = 0;
	}
	semctl(semaphores, 0, IPC_RMID);
	return handled;
}
