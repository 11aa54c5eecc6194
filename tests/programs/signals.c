/* signals ROUNDS: every signal that is sent is handled once, with its own siginfo, at a moment that its sender would understand; a call
 * is interrupted when, and only when, a handler ran that asks for it.
 *
 * Exit status: 0; 3 with one line about the first thing that was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long round_number;

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			printf("round %ld, line %d: not so: %s (%s)\n", round_number, __LINE__, #condition, strerror(errno)); \
			fflush(stdout); \
			_exit(3); \
		} \
	} while (0)

enum { MOST = 64 };
static volatile sig_atomic_t handled;
static siginfo_t seen[MOST];
static pid_t handled_by[MOST];
static int ends[2];

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	seen[handled % MOST] = *info;
	handled_by[handled % MOST] = gettid();
	handled++;
}

static void catch(int number, int flags)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
	EXPECT(sigaction(number, &action, NULL) == 0);
}

static void fire_in(int ms)
{
	struct itimerval timer = {.it_value = {0, ms * 1000}};
	EXPECT(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void tick_each(int ms)
{
	struct itimerval timer = {.it_interval = {0, ms * 1000}, .it_value = {0, ms * 1000}};
	EXPECT(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* Calls that a handler interrupts, whatever SA_RESTART says. The ticks go on: a single one might come before the call begins, and
 * that would be the program's own race, natively too. */
static void interrupted_calls(int flags)
{
	char byte;
	int before;
	struct timespec seconds = {5, 0}, left = {0, 0};
	catch(SIGALRM, flags);
	handled = 0;
	tick_each(20);
	EXPECT(nanosleep(&seconds, &left) == -1 && errno == EINTR && handled > 0);
	EXPECT(left.tv_sec < 5 && left.tv_nsec >= 0);
	before = handled;
	EXPECT(poll(NULL, 0, 5000) == -1 && errno == EINTR && handled > before);
	before = handled;
	struct timeval wait = {5, 0};
	EXPECT(select(0, NULL, NULL, NULL, &wait) == -1 && errno == EINTR && handled > before);
	before = handled;
	EXPECT(pause() == -1 && errno == EINTR && handled > before);
	before = handled;
	if (!(flags & SA_RESTART))
		EXPECT(read(ends[0], &byte, 1) == -1 && errno == EINTR && handled > before);
	tick_each(0);
}

static void *write_later(void *nothing)
{
	sigset_t all;
	struct timespec pause = {0, 60000000};
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	nanosleep(&pause, NULL);
	EXPECT(write(ends[1], "late", 4) == 4);
	return nothing;
}

/* With SA_RESTART a read goes on behind a handler, and gets all its bytes. */
static void restarted_read(void)
{
	char buffer[8];
	pthread_t writer;
	catch(SIGALRM, SA_RESTART);
	handled = 0;
	fire_in(20);
	EXPECT(pthread_create(&writer, NULL, write_later, NULL) == 0);
	EXPECT(read(ends[0], buffer, 4) == 4 && !memcmp(buffer, "late", 4));
	while (handled == 0)
		poll(NULL, 0, 5);
	EXPECT(handled == 1 && pthread_join(writer, NULL) == 0);
}

/* Queued signals come all, in order, with their values; an ordinary one that is blocked comes once. */
static void queued(void)
{
	sigset_t set, old, pending;
	catch(SIGRTMIN + 2, 0);
	catch(SIGUSR1, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 2);
	sigaddset(&set, SIGUSR1);
	EXPECT(sigprocmask(SIG_BLOCK, &set, &old) == 0);
	handled = 0;
	for (int i = 0; i < 10; i++)
		EXPECT(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = i * 7}) == 0);
	EXPECT(kill(getpid(), SIGUSR1) == 0 && kill(getpid(), SIGUSR1) == 0);
	for (volatile int i = 0; i < 3000000; i++)
		;
	EXPECT(handled == 0 && sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) && sigismember(&pending, SIGRTMIN + 2));
	EXPECT(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
	EXPECT(handled == 11);
	int value = 0;
	for (int i = 0; i < 11; i++)
		if (seen[i].si_signo == SIGUSR1)
			EXPECT(seen[i].si_code == SI_USER && seen[i].si_pid == getpid() && seen[i].si_uid == getuid());
		else {
			EXPECT(seen[i].si_code == SI_QUEUE && seen[i].si_value.sival_int == value * 7);
			value++;
		}
	EXPECT(value == 10);
}

/* Signals that are taken, not handled. */
static void taken(void)
{
	sigset_t set, old;
	siginfo_t info;
	struct timespec soon = {0, 20000000}, later = {1, 0};
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGALRM);
	EXPECT(sigprocmask(SIG_BLOCK, &set, &old) == 0);
	EXPECT(sigtimedwait(&set, &info, &soon) == -1 && errno == EAGAIN);
	EXPECT(kill(getpid(), SIGUSR2) == 0);
	EXPECT(sigtimedwait(&set, &info, &later) == SIGUSR2 && info.si_pid == getpid());
	fire_in(20);
	EXPECT(sigwaitinfo(&set, &info) == SIGALRM && info.si_code == SI_KERNEL);

	/* The mask of ppoll holds only while it waits. */
	sigset_t none;
	sigemptyset(&none);
	catch(SIGALRM, 0);
	handled = 0;
	fire_in(20);
	for (volatile int i = 0; i < 20000000; i++)
		;
	EXPECT(handled == 0);
	EXPECT(ppoll(NULL, 0, &later, &none) == -1 && errno == EINTR && handled == 1);
	fire_in(20);
	EXPECT(sigsuspend(&none) == -1 && errno == EINTR && handled == 2);
	EXPECT(sigprocmask(SIG_SETMASK, &old, NULL) == 0);
}

/* Timers of POSIX, one with a signal for this thread alone. */
static void timers(void)
{
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3, .sigev_value.sival_int = 4242};
	struct itimerspec setting = {{0, 10000000}, {0, 10000000}}, left;
	catch(SIGRTMIN + 3, 0);
	handled = 0;
	EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &setting, NULL) == 0);
	int total = 0;
	while (total < 6) {
		int before = handled;
		while (handled == before)
			poll(NULL, 0, 5);
		EXPECT(seen[before % MOST].si_code == SI_TIMER && seen[before % MOST].si_value.sival_int == 4242);
		total += 1 + seen[before % MOST].si_overrun;
	}
	EXPECT(timer_gettime(timer, &left) == 0 && left.it_interval.tv_nsec == 10000000);
	EXPECT(timer_delete(timer) == 0);
}

static volatile pid_t other_tid;
static void *sleep_until_signal(void *nothing)
{
	sigset_t mask;
	sigfillset(&mask);
	sigdelset(&mask, SIGUSR2);
	other_tid = gettid();
	while (handled == 0)
		sigsuspend(&mask);
	return nothing;
}

/* A signal for one thread is handled by that thread. */
static void directed(void)
{
	pthread_t other;
	sigset_t set, old;
	catch(SIGUSR2, 0);
	handled = 0;
	other_tid = 0;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	EXPECT(pthread_create(&other, NULL, sleep_until_signal, NULL) == 0);
	while (!other_tid)
		sched_yield();
	EXPECT(pthread_kill(other, SIGUSR2) == 0);
	EXPECT(pthread_join(other, NULL) == 0);
	EXPECT(handled == 1);
	EXPECT(handled_by[0] == other_tid);
	EXPECT(seen[0].si_code == SI_TKILL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Ignored and default dispositions, SA_RESETHAND, SA_NODEFER; what sigaction says is what was set. */
static void dispositions(void)
{
	struct sigaction action = {.sa_handler = SIG_IGN}, found;
	EXPECT(sigaction(SIGPIPE, &action, NULL) == 0 && kill(getpid(), SIGPIPE) == 0);
	int broken[2];
	EXPECT(pipe2(broken, O_CLOEXEC) == 0 && close(broken[0]) == 0);
	EXPECT(write(broken[1], "x", 1) == -1 && errno == EPIPE && close(broken[1]) == 0);
	catch(SIGHUP, SA_RESETHAND);
	handled = 0;
	EXPECT(kill(getpid(), SIGHUP) == 0 && handled == 1);
	EXPECT(sigaction(SIGHUP, NULL, &found) == 0 && found.sa_handler == SIG_DFL);
	EXPECT(kill(getpid(), SIGCHLD) == 0 && kill(getpid(), SIGCONT) == 0 && kill(getpid(), SIGURG) == 0);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 64;
	long rounds = atol(argv[1]);
	/* What is left of a sleep is more than was asked for, by this slack, if a signal comes as it begins. */
	EXPECT(prctl(PR_SET_TIMERSLACK, 1) == 0);
	EXPECT(pipe2(ends, O_CLOEXEC) == 0);
	for (; round_number < rounds; round_number++) {
		interrupted_calls(0);
		interrupted_calls(SA_RESTART);
		restarted_read();
		queued();
		taken();
		timers();
		directed();
		dispositions();
	}
	printf("%ld rounds of signals\n", rounds);
	return 0;
}
