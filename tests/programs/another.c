/* another kill|queue|timer: a signal for the process comes to the thread that takes it, never to the one whose ppoll() has it blocked, though that
 * one lets it in just before and just after. Again and again until there is a file `enough`; each round writes a line into the file `lines`.
 * Ends with status 3 and a line if nobody takes it within 10 s: natively no round takes longer than one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WITHIN = 10 /* s */ };

static volatile sig_atomic_t handled;
static const char *how;
static timer_t timer;
static int ends[2];
static sigset_t blocked;
static long number;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

static int send_to_the_process(void)
{
	const struct itimerspec at_once = {.it_value.tv_nsec = 1};

	if (!strcmp(how, "timer"))
		return timer_settime(timer, 0, &at_once, NULL);
	return strcmp(how, "queue") ? kill(getpid(), SIGUSR1) : sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 7});
}

static void *takes(void *nothing)
{
	pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
	if (send_to_the_process())
		_exit(4);
	for (time_t end = time(NULL) + WITHIN; !handled; sched_yield())
		if (time(NULL) > end) {
			printf("round %ld: nobody takes the signal\n", number);
			fflush(stdout);
			_exit(3);
		}
	if (write(ends[1], "", 1) != 1)
		_exit(4);
	return nothing;
}

int main(int argc, char **argv)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

	how = argc > 1 ? argv[1] : "kill";
	signal(SIGUSR1, on_signal);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	if (pipe(ends) || timer_create(CLOCK_MONOTONIC, &event, &timer))
		return 4;
	while (access("enough", F_OK)) {
		struct pollfd polled = {.fd = ends[0], .events = POLLIN};
		pthread_t thread;
		char byte;

		number++;
		handled = 0;
		pthread_create(&thread, NULL, takes, NULL);
		sigprocmask(SIG_UNBLOCK, &blocked, NULL);
		ppoll(&polled, 1, NULL, &blocked);
		sigprocmask(SIG_BLOCK, &blocked, NULL);
		pthread_join(thread, NULL);
		if (handled != 1 || read(ends[0], &byte, 1) != 1)
			return 5;
		dprintf(lines, "%ld\n", number);
	}
	return 0;
}
