/* One system call in a stopped thread, step by step or from stop to stop. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* By the kernel's own rule: of a signal one waits at the thread, and one at the process. */
void inject_defer(struct deferred *deferred, const siginfo_t *info)
{
	for (int i = 0; i < deferred->count; i++) {
		const siginfo_t *other = &deferred->infos[i];
		if (other->si_signo == info->si_signo && (other->si_code == SI_TKILL) == (info->si_code == SI_TKILL))
			return;
	}
	if (deferred->count < DEFERRED_MOST)
		deferred->infos[deferred->count++] = *info;
}

enum stop { STOP_ELSE, STOP_BEGINS, STOP_ENDS };

/* What a stop for a system call is for; a negative errno. */
static int which_stop(int tid)
{
	struct __ptrace_syscall_info info;
	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) < 0)
		return -errno;
	return info.op == PTRACE_SYSCALL_INFO_ENTRY ? STOP_BEGINS : info.op == PTRACE_SYSCALL_INFO_EXIT ? STOP_ENDS : STOP_ELSE;
}

/* Whether the kernel makes the call again before the thread sees any result. */
static bool comes_again(uint64_t result)
{
	int64_t code = (int64_t)result;
	return code == -512 || code == -513 || code == -514 || code == -516; /* ERESTART* of linux/errno.h */
}

/* How a call that is being made in a thread stands. */
struct call {
	int tid, gently;
	uint64_t instruction;
	struct deferred *deferred;
	struct user_regs_struct registers; /* as they are now */
	bool entered, interrupted; /* its begin has been seen; its time is over */
};

enum { GOES_ON = 1, HAS_ENDED = 2 };

/* Lets the thread run to its next stop. After the timeout it is interrupted once. 0 and the wait status, or a negative errno. */
static int await_stop(struct call *call, int64_t timeout_us, int *status)
{
	if (ptrace(call->gently ? PTRACE_SYSCALL : PTRACE_SINGLESTEP, call->tid, 0, 0))
		return -errno;
	int error = inject_wait(call->tid, call->interrupted ? 2000000 : timeout_us, status);
	if (error == -ETIMEDOUT && !call->interrupted) {
		call->interrupted = true;
		if (ptrace(PTRACE_INTERRUPT, call->tid, 0, 0))
			return -errno;
		error = inject_wait(call->tid, 2000000, status);
	}
	if (error)
		return error;
	return WIFSTOPPED(*status) ? 0 : -ESRCH; /* it is gone: an injected exit, or SIGKILL */
}

/* A stop at the begin or end of a call. is_plain: without PTRACE_O_TRACESYSGOOD: begin and end alternate then. */
static int at_call(struct call *call, bool is_plain)
{
	int error, stop = is_plain ? (call->entered ? STOP_ENDS : STOP_BEGINS) : which_stop(call->tid);

	call->entered = !call->entered;
	if (stop < 0)
		return stop;
	if ((error = inject_get_registers(call->tid, &call->registers)))
		return error;
	if (stop != STOP_ENDS || call->registers.rip != call->instruction + 2 || (comes_again(call->registers.rax) && !call->interrupted))
		return GOES_ON;
	return HAS_ENDED;
}

static void defer(struct call *call, const siginfo_t *info)
{
	inject_defer(call->deferred, info);
	if (call->registers.rip == call->instruction)
		call->deferred->before = call->deferred->count;
}

/* A SIGTRAP: of the step, in which the call ends; one that somebody has sent; or one that was on its way before. */
static int at_trap(struct call *call, const siginfo_t *info)
{
	int error = inject_get_registers(call->tid, &call->registers);

	if (error)
		return error;
	uint64_t rip = call->registers.rip;
	if (info->si_code <= 0)
		defer(call, info);
	if (call->gently)
		return GOES_ON;
	if (rip == call->instruction + 2)
		return HAS_ENDED;
	return info->si_code <= 0 || rip == call->instruction ? GOES_ON : -EFAULT;
}

/* All signals are blocked, so this is SIGSTOP, or a fault's signal: of the call itself, which then never ran, or one that waited before,
 * which the kernel gives out although it is blocked, as soon as SIGTRAP comes behind it (dequeue_synchronous_signal()). That one is dropped:
 * its instruction will be executed, and fault, again. */
static int at_signal(struct call *call, int number)
{
	siginfo_t info;
	int error;

	if ((error = inject_get_registers(call->tid, &call->registers)) || (error = inject_get_signal_info(call->tid, &info)))
		return error;
	if (number == SIGSEGV || number == SIGILL || number == SIGBUS || number == SIGFPE || number == SIGSYS) {
		uint64_t rip = call->registers.rip;
		if (number != SIGSYS &&
		    (rip == call->instruction + 2 || (rip == call->instruction && info.si_addr != (void *)call->instruction)))
			return GOES_ON;
		return -EFAULT;
	}
	defer(call, &info);
	return GOES_ON;
}

/* A stop of the thread. GOES_ON, HAS_ENDED, or a negative errno. */
static int take_stop(struct call *call, int status)
{
	siginfo_t info;
	int error;

	/* Some ptrace event: a trap that was waiting before the first instruction, or an event of the call itself (clone, exec). The step is
	 * still to come. */
	if (status >> 16)
		return GOES_ON;
	if (WSTOPSIG(status) == SIGTRAP && (error = inject_get_signal_info(call->tid, &info)))
		return error;
	/* PTRACE_O_TRACESYSGOOD is the caller's affair: without it the code shows it. */
	bool is_plain = call->gently && WSTOPSIG(status) == SIGTRAP && info.si_code == SIGTRAP;
	if (is_plain || WSTOPSIG(status) == (SIGTRAP | 0x80))
		return at_call(call, is_plain);
	return WSTOPSIG(status) == SIGTRAP ? at_trap(call, &info) : at_signal(call, WSTOPSIG(status));
}

/* Runs one system call in a stopped thread and answers its raw result. `instruction` is the address of a `syscall`
 * instruction in it; `base` gives the registers that the call does not use (the stack pointer matters to some calls).
 * The thread's registers are changed. After the timeout the call is interrupted and -(INJECT_FAILED + ETIMEDOUT) answered.
 *
 * As a rule it is a single step, and ends in a signal-delivery-stop (its SIGTRAP), so that a later CONT or DETACH may carry a signal. The
 * kernel forces that SIGTRAP on the thread: were it blocked or ignored, the program's action for it would be gone (signal.c,
 * force_sig_info_to_task()). So it is not blocked meanwhile, and where it is ignored the call is made `gently`: the thread runs from stop to
 * stop for the call. So it does with a pause loop behind the instruction (pause_loop.py), out of which it goes on into that: a thread whose
 * tracer dies goes on stepping, and is killed by the next step. */
long inject_call(int tid, uint64_t instruction, int gently, const struct user_regs_struct *base, int64_t timeout_us,
                 struct deferred *deferred, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	struct call call = {.tid = tid, .gently = gently, .instruction = instruction, .deferred = deferred, .registers = *base};
	struct user_regs_struct *r = &call.registers;
	int status, error;

	deferred->before = deferred->count;
	r->rip = instruction;
	r->rax = number;
	r->orig_rax = -1; /* no restart of anything */
	r->rdi = a, r->rsi = b, r->rdx = c, r->r10 = d, r->r8 = e, r->r9 = f;
	if ((error = inject_set_registers(tid, r)))
		return -INJECT_FAILED + error;
	for (int stops = 0; stops < 64; stops++) {
		int result = await_stop(&call, timeout_us, &status);
		if (!result)
			result = take_stop(&call, status);
		if (result < 0)
			return -INJECT_FAILED + result;
		if (result == HAS_ENDED)
			return call.interrupted ? -INJECT_FAILED - ETIMEDOUT : (long)r->rax;
	}
	return -INJECT_FAILED - ELOOP;
}

/* Brings a stopped thread to a stop at which a signal can be given to it, by one of ours that it does not get. Blocks all other signals.
 * 0, or a negative errno. */
int inject_reach_signal_stop(int pid, int tid, struct deferred *deferred)
{
	int status, error = inject_set_signal_mask(tid, ~(1ull << (SIGTRAP - 1)));

	if (error)
		return error;
	if (syscall(SYS_tgkill, pid, tid, SIGTRAP))
		return -errno;
	for (int stops = 0; stops < 64; stops++) {
		if ((error = inject_continue(tid, 0)) || (error = inject_wait(tid, 2000000, &status)))
			return error;
		if (!WIFSTOPPED(status))
			return -ESRCH;
		if (status >> 16)
			continue; /* a trap that was waiting */
		siginfo_t info;
		if ((error = inject_get_signal_info(tid, &info)))
			return error;
		if (WSTOPSIG(status) == SIGTRAP && info.si_code == SI_TKILL && info.si_pid == getpid())
			return 0;
		if (WSTOPSIG(status) == SIGTRAP && info.si_code > 0)
			continue;
		inject_defer(deferred, &info);
		if (WSTOPSIG(status) == SIGTRAP)
			return 0; /* one that waited: ours is none beside it */
	}
	return -ELOOP;
}
