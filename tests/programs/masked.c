/* masked [alone]: calls that wait with a signal mask of their own, or for a signal: all that a kernel promises of them, again and again until
 * there is a file `enough`; each round writes a line into `lines`. alone: without other threads and children.
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
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
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

static volatile sig_atomic_t handled, handled_in_all;
static siginfo_t seen;
static sigset_t mask_within, mask_after;
static sigset_t none, all, usual; /* usual: USR1, USR2, ALRM, RTMIN, which the program blocks */
static int ends[2];
static const struct timespec at_once, five = {5, 0};

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	seen = *info;
	sigprocmask(SIG_BLOCK, NULL, &mask_within);
	mask_after = ((ucontext_t *)context)->uc_sigmask;
	handled++;
	handled_in_all++;
}

static int only(int number) /* whether that and nothing else waits */
{
	sigset_t pending;
	sigpending(&pending);
	for (int i = 1; i < 32; i++)
		if (sigismember(&pending, i) != (i == number))
			return 0;
	return 1;
}

static sigset_t set_of(int first, int second)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, first);
	if (second)
		sigaddset(&set, second);
	return set;
}

static void fire_in(int ms, int each_ms)
{
	EXPECT(setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = ms * 1000, .it_interval.tv_usec = each_ms * 1000}, NULL) ==
	       0);
}

/* What the handler of a call with the mask `mask` has seen: it ran under that, and the thread's own comes back behind it. */
static void was_under(const sigset_t *mask)
{
	sigset_t now;
	sigprocmask(SIG_BLOCK, NULL, &now);
	for (int i = 1; i < 32; i++) {
		if (i == SIGKILL || i == SIGSTOP)
			continue;
		EXPECT(sigismember(&now, i) == sigismember(&usual, i));
		EXPECT(sigismember(&mask_after, i) == sigismember(&usual, i));
		EXPECT(sigismember(&mask_within, i) == (i == seen.si_signo || sigismember(mask, i)));
	}
}

enum { PPOLL, PSELECT, EPOLL_PWAIT, EPOLL_PWAIT2, KINDS };

/* Waits for the pipe. `limit`: NULL: without an end. */
static int wait_by(int kind, int epoll, const struct timespec *limit, const sigset_t *mask)
{
	struct pollfd polled = {ends[0], POLLIN, 0};
	struct epoll_event event;
	struct timespec left = limit ? *limit : at_once, *time = limit ? &left : NULL;
	fd_set set;
	int result, error;
	switch (kind) {
	case PPOLL:
		result = (int)syscall(SYS_ppoll, &polled, 1, time, mask, 8);
		error = errno;
		EXPECT(result == 1 ? polled.revents == POLLIN : !polled.revents);
		EXPECT(!limit || left.tv_sec < limit->tv_sec || (!left.tv_sec && !limit->tv_sec));
		break;
	case PSELECT:
		FD_ZERO(&set);
		FD_SET(ends[0], &set);
		result = (int)syscall(SYS_pselect6, ends[0] + 1, &set, NULL, NULL, time, &(struct {
					      const sigset_t *s;
					      size_t n;
				      }){mask, 8});
		error = errno;
		EXPECT(!!FD_ISSET(ends[0], &set) == (result != 0)); /* interrupted, it writes no set */
		EXPECT(!limit || left.tv_sec < limit->tv_sec || (!left.tv_sec && !limit->tv_sec));
		break;
	case EPOLL_PWAIT:
		result = epoll_pwait(epoll, &event, 1, limit ? (int)(limit->tv_sec * 1000 + limit->tv_nsec / 1000000) : -1, mask);
		error = errno;
		break;
	default:
		result = (int)syscall(SYS_epoll_pwait2, epoll, &event, 1, limit, mask, 8);
		error = errno;
	}
	errno = error;
	return result;
}

static void masked_waits(int kind, int epoll)
{
	sigset_t but_usr1 = all;
	char byte = 0;
	int polls = kind == PPOLL || kind == PSELECT;
	sigdelset(&but_usr1, SIGUSR1);

	/* one that waits already */
	handled = 0;
	EXPECT(kill(getpid(), SIGUSR1) == 0 && handled == 0);
	EXPECT(wait_by(kind, epoll, &five, &none) == -1 && errno == EINTR && handled == 1 && seen.si_signo == SIGUSR1);
	EXPECT(seen.si_pid == getpid() && seen.si_code == SI_USER && only(0));
	was_under(&none);

	/* of two that wait the one that is let in, and of it a handler under the mask */
	handled = 0;
	EXPECT(kill(getpid(), SIGUSR2) == 0 && tgkill(getpid(), gettid(), SIGUSR1) == 0);
	EXPECT(wait_by(kind, epoll, NULL, &but_usr1) == -1 && errno == EINTR && handled == 1 && seen.si_signo == SIGUSR1);
	EXPECT(seen.si_code == SI_TKILL && only(SIGUSR2));
	was_under(&but_usr1);
	EXPECT(wait_by(kind, epoll, &five, &none) == -1 && errno == EINTR && handled == 2 && seen.si_signo == SIGUSR2 && only(0));

	/* with no time to wait signals come last, or not at all */
	handled = 0;
	EXPECT(kill(getpid(), SIGUSR1) == 0);
	int result = wait_by(kind, epoll, &at_once, &none);
	EXPECT(polls ? result == -1 && errno == EINTR && handled == 1 : !result && !handled);
	EXPECT(only(polls ? 0 : SIGUSR1));

	/* what is there comes before any signal */
	handled = 0;
	EXPECT(kill(getpid(), SIGUSR1) == 0 && write(ends[1], &byte, 1) == 1);
	EXPECT(wait_by(kind, epoll, NULL, &none) == 1 && !handled && only(SIGUSR1));
	EXPECT(wait_by(kind, epoll, &at_once, &none) == 1 && !handled && only(SIGUSR1));
	EXPECT(read(ends[0], &byte, 1) == 1);
	EXPECT(wait_by(kind, epoll, NULL, &none) == -1 && errno == EINTR && handled == 1 && only(0));

	/* one that comes while it waits, and one that comes then and is not let in, though the thread does not block it */
	handled = 0;
	fire_in(20, 0);
	EXPECT(wait_by(kind, epoll, NULL, &none) == -1 && errno == EINTR && handled == 1 && seen.si_signo == SIGALRM);
	EXPECT(seen.si_code == SI_KERNEL && only(0));
	was_under(&none);
	sigset_t alarm = set_of(SIGALRM, 0);
	handled = 0;
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	fire_in(30, 0); /* natively, too, it may come before the call */
	result = wait_by(kind, epoll, &(struct timespec){0, 60000000}, &all);
	EXPECT(result == 0);
	while (!handled)
		;
	sigprocmask(SIG_BLOCK, &alarm, NULL);
}

static void *interrupts(void *nothing)
{
	sigset_t usr1 = set_of(SIGUSR1, 0);
	(void)nothing;
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	EXPECT(kill(getpid(), SIGUSR1) == 0);
	while (!handled)
		sched_yield();
	EXPECT(write(ends[1], "", 1) == 1);
	return NULL;
}

/* A signal for the process comes to a thread that takes it, not to one whose call has it blocked. */
static void another_takes_it(void)
{
	struct pollfd polled = {ends[0], POLLIN, 0};
	sigset_t usr1 = set_of(SIGUSR1, 0);
	pthread_t thread;
	char byte;
	handled = 0;
	EXPECT(pthread_create(&thread, NULL, interrupts, NULL) == 0);
	sigprocmask(SIG_UNBLOCK, &usr1, NULL);
	int result = ppoll(&polled, 1, NULL, &usual);
	EXPECT((result == 1 && handled == 1) || (result == -1 && errno == EINTR));
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	EXPECT(pthread_join(thread, NULL) == 0 && handled == 1 && read(ends[0], &byte, 1) == 1);
}

/* sigtimedwait(3), which reports an si_code of SI_TKILL for a signal that was directed at the thread. */
static int take(const sigset_t *set, siginfo_t *info, const struct timespec *limit)
{
	return (int)syscall(SYS_rt_sigtimedwait, set, info, limit, 8);
}

static void taken(void)
{
	static const struct timespec soon = {0, 20000000};
	sigset_t both = set_of(SIGUSR1, SIGUSR2), alarm = set_of(SIGALRM, 0), queued = set_of(SIGRTMIN, 0);
	siginfo_t info;
	EXPECT(take(&both, &info, &at_once) == -1 && errno == EAGAIN);
	EXPECT(take(&both, &info, &soon) == -1 && errno == EAGAIN);
	handled = 0;

	/* the thread's own before the process's, each with its complete siginfo */
	EXPECT(kill(getpid(), SIGUSR1) == 0 && tgkill(getpid(), gettid(), SIGUSR2) == 0);
	EXPECT(take(&both, &info, &at_once) == SIGUSR2 && info.si_code == SI_TKILL && info.si_pid == getpid());
	EXPECT(take(&both, &info, NULL) == SIGUSR1 && info.si_code == SI_USER && info.si_uid == getuid());
	for (int i = 0; i < 3; i++)
		EXPECT(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 70 + i}) == 0);
	for (int i = 0; i < 3; i++)
		EXPECT(take(&queued, &info, &five) == SIGRTMIN && info.si_code == SI_QUEUE && info.si_value.sival_int == 70 + i);
	EXPECT(only(0) && !handled);

	/* one that comes while it waits; that it is not blocked does not matter */
	fire_in(20, 0);
	EXPECT(take(&alarm, &info, NULL) == SIGALRM && info.si_code == SI_KERNEL);
	sigprocmask(SIG_UNBLOCK, &alarm, NULL);
	fire_in(20, 20);
	EXPECT(take(&alarm, &info, NULL) == SIGALRM);
	handled = 0;
	EXPECT(take(&both, &info, &five) == -1 && errno == EINTR && handled);
	fire_in(0, 0);
	sigprocmask(SIG_BLOCK, &alarm, NULL);

	/* a pending tick reports how often its timer has expired; one that comes home while it waits, with the next */
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 4242};
	EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	EXPECT(timer_settime(timer, 0, &(struct itimerspec){{0, 1000000}, {0, 1000000}}, NULL) == 0);
	nanosleep(&(struct timespec){0, 60000000}, NULL);
	EXPECT(take(&queued, &info, &five) == SIGRTMIN && info.si_code == SI_TIMER && info.si_value.sival_int == 4242);
	int expirations = 1 + info.si_overrun;
	while (take(&queued, &info, &at_once) == SIGRTMIN)
		expirations += 1 + info.si_overrun;
	EXPECT(expirations > 50);
	EXPECT(timer_delete(timer) == 0);
	while (take(&queued, NULL, &at_once) == SIGRTMIN)
		;

	/* mistakes, with a signal that waits */
	EXPECT(kill(getpid(), SIGUSR1) == 0);
	EXPECT(syscall(SYS_rt_sigtimedwait, &both, NULL, &(struct timespec){0, 1000000000}, 8) == -1 && errno == EINVAL);
	EXPECT(syscall(SYS_rt_sigtimedwait, &both, NULL, NULL, 4) == -1 && errno == EINVAL);
	EXPECT(syscall(SYS_rt_sigtimedwait, NULL, NULL, NULL, 8) == -1 && errno == EFAULT);
	EXPECT(syscall(SYS_rt_sigtimedwait, &both, NULL, (void *)16, 8) == -1 && errno == EFAULT && only(SIGUSR1));
	void *unwritable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(syscall(SYS_rt_sigtimedwait, &both, unwritable, &five, 8) == -1 && errno == EFAULT && only(0));
	munmap(unwritable, 4096);
}

/* The end of a child. */
static void taken_of_a_child(void)
{
	sigset_t child = set_of(SIGCHLD, 0);
	siginfo_t info;
	sigprocmask(SIG_BLOCK, &child, NULL);
	pid_t pid = fork();
	if (!pid)
		_exit(7);
	EXPECT(take(&child, &info, &(struct timespec){60, 0}) == SIGCHLD && info.si_pid == pid && info.si_status == 7);
	EXPECT(info.si_code == CLD_EXITED && waitpid(pid, NULL, 0) == pid);
	sigprocmask(SIG_UNBLOCK, &child, NULL);
}

static void *takes(void *nothing)
{
	sigset_t usr2 = set_of(SIGUSR2, 0);
	siginfo_t info;
	EXPECT(take(&usr2, &info, NULL) == SIGUSR2 && info.si_code == SI_TKILL);
	return nothing;
}

/* Each of two threads takes what is directed at it. */
static void taken_by_threads(void)
{
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		EXPECT(pthread_create(&threads[i], NULL, takes, NULL) == 0);
	for (int i = 1; i >= 0; i--)
		EXPECT(pthread_kill(threads[i], SIGUSR2) == 0 && pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), epoll = epoll_create1(EPOLL_CLOEXEC);
	sigemptyset(&none);
	sigfillset(&all);
	usual = set_of(SIGUSR1, SIGUSR2);
	sigaddset(&usual, SIGALRM);
	sigaddset(&usual, SIGRTMIN);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	sigprocmask(SIG_BLOCK, &usual, NULL);
	EXPECT(pipe(ends) == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){.events = EPOLLIN}) == 0);
	int alone = argc == 2 && !strcmp(argv[1], "alone");
	while (access("enough", F_OK)) {
		round_number++;
		for (int kind = 0; kind < KINDS; kind++)
			masked_waits(kind, epoll);
		taken();
		if (!alone) {
			another_takes_it();
			taken_by_threads();
			taken_of_a_child();
		}
		dprintf(lines, "%ld\n", round_number);
	}
	return 0;
}
