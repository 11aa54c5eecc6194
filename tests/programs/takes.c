/* takes signals|ticks: what waits is found by a call that does not wait, until a file `enough` is there. signals: one that the process has
 * sent itself, by rt_sigtimedwait, and by ppoll, pselect6 and epoll_pwait whose mask lets it in, with no time to wait. ticks: 24 threads, each
 * with a timer that has expired many times before it takes the tick, which must report them. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#define THREADS 24
#define EXPECT(what) ((what) ? (void)0 : fails(__LINE__, #what))

static const struct timespec at_once;
static volatile int is_over, handled;

static void fails(int line, const char *what)
{
	printf("line %d: not so: %s (%s)\n", line, what, strerror(errno));
	fflush(stdout);
	_exit(3);
}

static void handler(int number)
{
	(void)number;
	handled++;
}

static int take(const sigset_t *set, siginfo_t *info)
{
	return (int)syscall(SYS_rt_sigtimedwait, set, info, &at_once, 8);  /* sigtimedwait(3) takes SI_TKILL for SI_USER */
}

static void signals(void)
{
	struct pollfd none = {-1, 0, 0};
	struct epoll_event event;
	sigset_t usual, both;
	siginfo_t info;
	int epoll = epoll_create1(0);
	sigprocmask(SIG_SETMASK, NULL, &usual);
	sigemptyset(&both);
	sigaddset(&both, SIGUSR1);
	sigaddset(&both, SIGUSR2);
	sigprocmask(SIG_BLOCK, &both, NULL);
	while (access("enough", F_OK)) {
		for (int i = 0; i < 20; i++) {
			EXPECT(kill(getpid(), SIGUSR1) == 0 && take(&both, &info) == SIGUSR1 && info.si_code == SI_USER);
			EXPECT(raise(SIGUSR2) == 0 && take(&both, &info) == SIGUSR2 && info.si_code == SI_TKILL);
			EXPECT(take(&both, &info) == -1 && errno == EAGAIN);
		}
		handled = 0;
		EXPECT(kill(getpid(), SIGUSR1) == 0 && ppoll(&none, 1, &at_once, &usual) == -1 && errno == EINTR && handled == 1);
		EXPECT(kill(getpid(), SIGUSR1) == 0 && pselect(0, NULL, NULL, NULL, &at_once, &usual) == -1 && errno == EINTR &&
		       handled == 2);
		EXPECT(kill(getpid(), SIGUSR1) == 0 && epoll_pwait(epoll, &event, 1, 0, &usual) == 0 && take(&both, &info) == SIGUSR1);
	}
}

static void *ticks(void *nothing)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN, .sigev_notify_thread_id = gettid()};
	event.sigev_value.sival_int = gettid();
	sigset_t set;
	siginfo_t info;
	timer_t timer;
	int expirations;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	while (!is_over) {
		EXPECT(timer_settime(timer, 0, &(struct itimerspec){{0, 1000000}, {0, 1000000}}, NULL) == 0);
		nanosleep(&(struct timespec){0, 60000000}, NULL);
		EXPECT(take(&set, &info) == SIGRTMIN && info.si_code == SI_TIMER && info.si_value.sival_int == gettid());
		for (expirations = 1 + info.si_overrun; take(&set, &info) == SIGRTMIN;) /* a second, if it has come home meanwhile */
			expirations += 1 + info.si_overrun;
		if (expirations <= 50)
			printf("%d of 60\n", expirations);
		EXPECT(expirations > 50);
		EXPECT(timer_settime(timer, 0, &(struct itimerspec){{0, 0}, {0, 0}}, NULL) == 0);
		while (take(&set, &info) == SIGRTMIN)
			;
	}
	return nothing;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct sigaction action = {.sa_handler = handler};
	sigset_t queued;
	if (argc != 2)
		return 64;
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	if (!strcmp(argv[1], "signals")) {
		signals();
		return 0;
	}
	sigemptyset(&queued);
	sigaddset(&queued, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &queued, NULL);
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_create(&threads[i], NULL, ticks, NULL));
	while (access("enough", F_OK))
		usleep(50000);
	is_over = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
