/* Scenarios about signals and timers: see objects.h. */
#include "objects.h"

#include <poll.h>

static struct {
	volatile sig_atomic_t count, number, code, value, from_us, on_alternate, mask;
} taken;
static char *alternate;

static void handler(int number, siginfo_t *info, void *context)
{
	char here;
	ucontext_t *interrupted = context;
	taken.count++;
	taken.number = number;
	taken.code = info->si_code;
	taken.value = taken.value * 10 + info->si_value.sival_int;
	taken.from_us += info->si_pid == getpid();
	taken.on_alternate = alternate && &here >= alternate && &here < alternate + (1 << 16);
	taken.mask = sigismember(&interrupted->uc_sigmask, SIGUSR1) * 2 + sigismember(&interrupted->uc_sigmask, SIGUSR2);
}

static void handle(int number, int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
	CALL(sigaction(number, &action, NULL));
}

static void report_taken(void)
{
	show("  %d signals, the last %d, code %d, values %d, %d from us, %s, mask %d", taken.count, taken.number, taken.code, taken.value,
	     taken.from_us, taken.on_alternate ? "on the alternate stack" : "on the stack", taken.mask);
	memset((void *)&taken, 0, sizeof taken);
}

static sigset_t set_of(int one, int other)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, one);
	if (other)
		sigaddset(&set, other);
	return set;
}

/* Waits until a signal waits: before the step, so that the time that the step takes makes no difference. */
static void comes(int number)
{
	sigset_t set;
	do
		sigpending(&set);
	while (!sigismember(&set, number));
	step();
}

SCENARIO(signal_mask)
{
	sigset_t set = set_of(SIGUSR1, SIGRTMAX), now;
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(sigprocmask(SIG_BLOCK, NULL, &now));
	show("  %d %d %d", sigismember(&now, SIGUSR1), sigismember(&now, SIGRTMAX), sigismember(&now, SIGUSR2));
	set = set_of(SIGUSR1, 0);
	CALL(sigprocmask(SIG_UNBLOCK, &set, &now));
	handle(SIGUSR1, 0);
	CALL(raise(SIGUSR1));
	report_taken();
	CALL(sigprocmask(SIG_SETMASK, &now, NULL));
	CALL(raise(SIGUSR1));
	report_taken();
	CALL(kill(getpid(), SIGUSR1));
	CALL(sigprocmask(SIG_UNBLOCK, &set, NULL));
	report_taken();
}

SCENARIO(signal_action)
{
	struct sigaction action = {0};
	handle(SIGUSR1, SA_RESETHAND | SA_NODEFER | SA_RESTART);
	CALL(sigaction(SIGUSR1, NULL, &action));
	IS(action.sa_sigaction == handler);
	show("  flags %#x", (unsigned)action.sa_flags & ~0x4000000u);
	CALL(raise(SIGUSR1));
	report_taken();
	CALL(sigaction(SIGUSR1, NULL, &action));
	IS(action.sa_handler == SIG_DFL);
	CALL(signal(SIGUSR2, SIG_IGN) == SIG_ERR);
	CALL(raise(SIGUSR2));
	action.sa_handler = SIG_IGN;
	CALL(sigaction(SIGKILL, &action, NULL));
}

SCENARIO(pending_signal)
{
	sigset_t set = set_of(SIGUSR1, SIGUSR2), waiting;
	handle(SIGUSR1, 0);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(kill(getpid(), SIGUSR1));
	CALL(kill(getpid(), SIGUSR1));
	CALL(sigpending(&waiting));
	show("  %d %d", sigismember(&waiting, SIGUSR1), sigismember(&waiting, SIGUSR2));
	CALL(raise(SIGUSR2));
	CALL(signal(SIGUSR2, SIG_IGN) == SIG_ERR);
	CALL(sigpending(&waiting));
	show("  %d %d", sigismember(&waiting, SIGUSR1), sigismember(&waiting, SIGUSR2));
	CALL(sigprocmask(SIG_UNBLOCK, &set, NULL));
	report_taken();
}

SCENARIO(queued_signals)
{
	sigset_t set = set_of(SIGRTMIN, SIGRTMIN + 1);
	siginfo_t info;
	handle(SIGRTMIN, 0);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	for (int i = 1; i < 5; i++)
		CALL(sigqueue(getpid(), SIGRTMIN + (i == 2), (union sigval){.sival_int = i}));
	IS(DONE(sigtimedwait(&set, &info, &(struct timespec){0})) == SIGRTMIN);
	show("  code %d, value %d", info.si_code, info.si_int);
	IS(info.si_pid == getpid());
	set = set_of(SIGRTMIN, 0);
	CALL(sigprocmask(SIG_UNBLOCK, &set, NULL));
	report_taken();
	set = set_of(SIGRTMIN + 1, 0);
	DONE(sigwaitinfo(&set, &info));
	show("  code %d, value %d", info.si_code, info.si_int);
	CALL(sigtimedwait(&set, &info, &(struct timespec){0, 10000000}));
}

SCENARIO(no_alternate_stack)
{
	for (int round = 0; round < 5; round++) {
		if (round == 3)
			CALL(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL));
		int result = sigaltstack(&(stack_t){0}, NULL);
		show("what it has never had: %s", result ? strerrorname_np(errno) : "yes");
		step();
	}
}

SCENARIO(alternate_stack)
{
	stack_t now = {0};
	alternate = malloc(1 << 16);
	CALL(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = 1 << 16}, NULL));
	CALL(sigaltstack(NULL, &now));
	IS(now.ss_sp == alternate && now.ss_size == 1 << 16 && !now.ss_flags);
	handle(SIGUSR1, SA_ONSTACK);
	CALL(raise(SIGUSR1));
	report_taken();
	handle(SIGUSR1, 0);
	CALL(kill(getpid(), SIGUSR1));
	report_taken();
	CALL(sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, &now));
	IS(now.ss_sp == alternate);
}

static void stepping(int number)
{
	step();
	show("  in the handler of %d", number);
	step();
}

SCENARIO(moved_in_a_handler)
{
	sigset_t now;
	struct sigaction action = {.sa_handler = stepping, .sa_mask = set_of(SIGUSR2, SIGRTMIN)};
	CALL(sigaction(SIGUSR1, &action, NULL));
	CALL(sigaction(SIGUSR2, &action, NULL));
	CALL(raise(SIGUSR1));
	CALL(sigprocmask(SIG_BLOCK, NULL, &now));
	show("  %d %d", sigismember(&now, SIGUSR1), sigismember(&now, SIGUSR2));
	CALL(kill(getpid(), SIGUSR2));
}

SCENARIO(suspended)
{
	sigset_t set = set_of(SIGUSR1, 0), none;
	sigemptyset(&none);
	handle(SIGUSR1, 0);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(raise(SIGUSR1));
	CALL(sigsuspend(&none));
	report_taken();
	CALL(raise(SIGUSR1));
	CALL(ppoll(NULL, 0, &(struct timespec){5, 0}, &none));
	report_taken();
}

SCENARIO(interval_timer)
{
	struct itimerval now = {0};
	handle(SIGALRM, 0);
	CALL(setitimer(ITIMER_REAL, (&(struct itimerval){{300, 0}, {900, 0}}), NULL));
	CALL(getitimer(ITIMER_REAL, &now));
	IS(now.it_interval.tv_sec == 300 && now.it_value.tv_sec > 700 && now.it_value.tv_sec < 900);
	IS(DONE(alarm(500)) > 700);
	CALL(getitimer(ITIMER_REAL, &now));
	IS(!now.it_interval.tv_sec && now.it_value.tv_sec > 300);
	sigset_t set = set_of(SIGALRM, 0), before;
	CALL(sigprocmask(SIG_BLOCK, &set, &before));
	setitimer(ITIMER_REAL, (&(struct itimerval){{0, 0}, {0, 20000}}), NULL);
	comes(SIGALRM);
	CALL(sigsuspend(&before));
	report_taken();
}

SCENARIO(posix_timer)
{
	timer_t timer, other;
	struct itimerspec now = {.it_value = {0}};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = 7};
	sigset_t set = set_of(SIGRTMIN + 2, 0);
	siginfo_t info;
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(timer_create(CLOCK_MONOTONIC, &event, &timer));
	CALL(timer_create(CLOCK_REALTIME, &(struct sigevent){.sigev_notify = SIGEV_NONE}, &other));
	CALL(timer_settime(other, 0, (&(struct itimerspec){{0, 0}, {700, 0}}), NULL));
	timer_settime(timer, 0, (&(struct itimerspec){{0, 0}, {0, 10000000}}), NULL);
	comes(SIGRTMIN + 2);
	IS(DONE(sigwaitinfo(&set, &info)) == SIGRTMIN + 2);
	show("  code %d, value %d, overrun %d", info.si_code, info.si_int, info.si_overrun);
	CALL(timer_getoverrun(timer));
	CALL(timer_gettime(other, &now));
	IS(now.it_value.tv_sec > 500 && now.it_value.tv_sec < 700);
	CALL(timer_delete(other));
	CALL(timer_gettime(other, &now));
}

SCENARIO(interrupted_sleep)
{
	struct timespec left = {0};
	const struct itimerval often = {{0, 30000}, {0, 30000}}, never = {{0, 0}, {0, 0}};
	handle(SIGALRM, SA_RESTART);
	for (int round = 0; round < 4; round++) {
		setitimer(ITIMER_REAL, &often, NULL);
		int number = round % 2 ? poll(NULL, 0, 900000) : nanosleep(&(struct timespec){900, 0}, &left);
		int error = errno;
		setitimer(ITIMER_REAL, &never, NULL);
		IS(taken.count > 0);
		step();
		show("%d: %s, %s left", number, strerror(error), left.tv_sec > 800 ? "much" : "little");
	}
	CALL(nanosleep(&(struct timespec){0, 20000000}, NULL));
}
