/* left: its first thread ends when a file `go` is there, and another waits in calls that a timer's signals end: writes a line for each
 * into the file `lines`, until a file `enough` is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static int ends[2];

static void handle(int number)
{
	(void)number;
}

static void *wait_for_signals(void *nothing)
{
	char byte;
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	while (access("enough", F_OK)) {
		if (read(ends[0], &byte, 1) != -1 || errno != EINTR)
			_exit(3);
		dprintf(lines, "heard\n");
	}
	_exit(0);
	return nothing;
}

int main(void)
{
	pthread_t thread;
	struct sigaction action = {.sa_handler = handle};
	struct itimerval every = {{0, 100000}, {0, 100000}};
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	if (pipe(ends) || sigaction(SIGALRM, &action, NULL))
		return 2;
	if (pthread_create(&thread, NULL, wait_for_signals, NULL) || setitimer(ITIMER_REAL, &every, NULL))
		return 2;
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	while (access("go", F_OK))
		usleep(10000);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	syscall(SYS_exit, 0); /* pthread_exit() blocks all signals first */
}
