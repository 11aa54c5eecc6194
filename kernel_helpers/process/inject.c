/* Stopping threads and running system calls in them: ptrace, x86-64.
 *
 * Every function returns a negative errno on failure. All of them must be called by the thread that seized the tracee:
 * ptrace belongs to a thread, not to a process. */
#define _GNU_SOURCE
#include "process/inject.h"
#include "process/guest_memory.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
#define LOOK_US 20000  /* between two looks whether a thread that is waited for has ended */
#define EVENT_STOP 128 /* PTRACE_EVENT_STOP: INTERRUPT, group stop, or the first stop of a new tracee */

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Whether tid has ended. A main thread that has cannot be waited for before the other threads have been. */
static bool has_ended(int tid)
{
	char path[32], text[512], *name_end;
	snprintf(path, sizeof path, "/proc/%d/stat", tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	ssize_t size = read(fd, text, sizeof text - 1);
	close(fd);
	text[size > 0 ? size : 0] = 0;
	name_end = strrchr(text, ')');
	return size < 0 ? errno == ESRCH : name_end && (name_end[2] == 'Z' || name_end[2] == 'X');
}

/* 0 and the wait status of tid; -ETIMEDOUT; -ESRCH: it has ended, and others have to be waited for before it. waitpid() has no
 * timeout, so this asks again and again: first giving way to the tracee (which often needs this very cpu), then in sleeps that
 * grow to 1 ms. */
int inject_wait(int tid, int64_t timeout_us, int *status)
{
	int64_t end = 0, look = 0;
	long pause_ns = 5000;
	bool ended = false;
	for (long tries = 0;; tries++) {
		int r = waitpid(tid, status, __WALL | WNOHANG);
		if (r == tid)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (tries < 40) {
			sched_yield();
			continue;
		}
		int64_t now = now_us();
		if (!end) {
			end = now + timeout_us;
			look = now + LOOK_US;
		} else if (now >= end) {
			return -ETIMEDOUT;
		} else if (now >= look) {
			/* Twice: while another thread executes a program, the main one is seen to have ended, and its number goes over to that one. */
			bool before = ended;
			ended = has_ended(tid);
			if (before && ended)
				return -ESRCH;
			look = now + LOOK_US;
		}
		struct timespec pause = {0, pause_ns};
		nanosleep(&pause, NULL);
		if (pause_ns < 1000000)
			pause_ns += pause_ns / 2;
	}
}

int inject_seize(int tid, long options)
{
	return ptrace(PTRACE_SEIZE, tid, 0, options) ? -errno : 0;
}
int inject_interrupt(int tid)
{
	return ptrace(PTRACE_INTERRUPT, tid, 0, 0) ? -errno : 0;
}
int inject_listen(int tid)
{
	return ptrace(PTRACE_LISTEN, tid, 0, 0) ? -errno : 0;
}
int inject_continue(int tid, long signal)
{
	return ptrace(PTRACE_CONT, tid, 0, signal) ? -errno : 0;
}
int inject_step(int tid)
{
	return ptrace(PTRACE_SINGLESTEP, tid, 0, 0) ? -errno : 0;
}
int inject_detach(int tid, long signal)
{
	return ptrace(PTRACE_DETACH, tid, 0, signal) ? -errno : 0;
}
int inject_set_options(int tid, long options)
{
	return ptrace(PTRACE_SETOPTIONS, tid, 0, options) ? -errno : 0;
}

int inject_get_registers(int tid, struct user_regs_struct *registers)
{
	struct iovec v = {registers, sizeof *registers};
	return ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) ? -errno : 0;
}

int inject_set_registers(int tid, const struct user_regs_struct *registers)
{
	struct iovec v = {(void *)registers, sizeof *registers};
	return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) ? -errno : 0;
}

/* Bytes written to buffer. */
long inject_get_extended_state(int tid, void *buffer, long size)
{
	struct iovec v = {buffer, size};
	return ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &v) ? -errno : (long)v.iov_len;
}

int inject_set_extended_state(int tid, const void *buffer, long size)
{
	struct iovec v = {(void *)buffer, size};
	return ptrace(PTRACE_SETREGSET, tid, NT_X86_XSTATE, &v) ? -errno : 0;
}

int inject_get_signal_mask(int tid, uint64_t *mask)
{
	return ptrace(PTRACE_GETSIGMASK, tid, 8, mask) ? -errno : 0;
}
int inject_set_signal_mask(int tid, uint64_t mask)
{
	return ptrace(PTRACE_SETSIGMASK, tid, 8, &mask) ? -errno : 0;
}
int inject_get_signal_info(int tid, siginfo_t *info)
{
	return ptrace(PTRACE_GETSIGINFO, tid, 0, info) ? -errno : 0;
}
int inject_set_signal_info(int tid, const siginfo_t *info)
{
	return ptrace(PTRACE_SETSIGINFO, tid, 0, info) ? -errno : 0;
}

struct rseq_configuration {
	uint64_t pointer;
	uint32_t size, signature, flags, pad;
};

int inject_rseq(int tid, struct rseq_configuration *configuration)
{
	memset(configuration, 0, sizeof *configuration);
	return ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof *configuration, configuration) < 0 ? -errno : 0;
}

#ifndef PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
#define PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG 0x4211
#endif

/* Whether system calls of a stopped thread raise SIGSYS as long as it wants that (prctl, PR_SET_SYSCALL_USER_DISPATCH): then no call can be
 * made in it. Before Linux 6.4 nobody can know. */
int inject_dispatches(int tid)
{
	struct {
		uint64_t mode, selector, offset, length;
	} configuration = {0, 0, 0, 0};
	return !ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, sizeof configuration, &configuration) && configuration.mode;
}

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

/* Runs one system call in a stopped thread and answers its raw result. `instruction` is the address of a `syscall`
 * instruction in it; `base` gives the registers that the call does not use (the stack pointer matters to some calls).
 * The thread's registers are changed. After the timeout the call is interrupted and -(INJECT_FAILED + ETIMEDOUT) answered.
 *
 * As a rule it is a single step, and ends in a signal-delivery-stop (its SIGTRAP), so that a later CONT or DETACH may carry a signal. The
 * kernel forces that SIGTRAP on the thread: were it blocked or ignored, the program's action for it would be gone (signal.c,
 * force_sig_info_to_task()). So it is not blocked meanwhile, and where it is ignored the call is made `gently`: the thread runs from stop to
 * stop for the call. So it does with a refuge behind the instruction (refuge.py), out of which it goes on into that: a thread whose
 * tracer dies goes on stepping, and is killed by the next step. */
long inject_call(int tid, uint64_t instruction, int gently, const struct user_regs_struct *base, int64_t timeout_us,
                 struct deferred *deferred, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	struct user_regs_struct r = *base;
	int status, error, interrupted = 0;
	bool entered = false;
	deferred->before = deferred->count;
	r.rip = instruction;
	r.rax = number;
	r.orig_rax = -1; /* no restart of anything */
	r.rdi = a, r.rsi = b, r.rdx = c, r.r10 = d, r.r8 = e, r.r9 = f;
	if ((error = inject_set_registers(tid, &r)))
		return -INJECT_FAILED + error;
	for (int stops = 0; stops < 64; stops++) {
		if (ptrace(gently ? PTRACE_SYSCALL : PTRACE_SINGLESTEP, tid, 0, 0))
			return -INJECT_FAILED - errno;
		error = inject_wait(tid, interrupted ? 2000000 : timeout_us, &status);
		if (error == -ETIMEDOUT && !interrupted) {
			interrupted = 1;
			if (ptrace(PTRACE_INTERRUPT, tid, 0, 0))
				return -INJECT_FAILED - errno;
			error = inject_wait(tid, 2000000, &status);
		}
		if (error)
			return -INJECT_FAILED + error;
		if (!WIFSTOPPED(status))
			return -INJECT_FAILED - ESRCH; /* it is gone: an injected exit, or SIGKILL */
		if (status >> 16) {
			/* Some ptrace event: a trap that was waiting before the first instruction, or an event of the call itself
             * (clone, exec). The step is still to come. */
			continue;
		}
		siginfo_t info;
		if (WSTOPSIG(status) == SIGTRAP && (error = inject_get_signal_info(tid, &info)))
			return -INJECT_FAILED + error;
		/* Without PTRACE_O_TRACESYSGOOD, which is the caller's affair, the code tells; and begin and end alternate. */
		bool is_plain = gently && WSTOPSIG(status) == SIGTRAP && info.si_code == SIGTRAP;
		if (is_plain || WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			int stop = is_plain ? (entered ? STOP_ENDS : STOP_BEGINS) : which_stop(tid);
			entered = !entered;
			if (stop < 0 || (error = inject_get_registers(tid, &r)))
				return -INJECT_FAILED + (stop < 0 ? stop : error);
			if (stop != STOP_ENDS || r.rip != instruction + 2 || (comes_again(r.rax) && !interrupted))
				continue;
			return interrupted ? -INJECT_FAILED - ETIMEDOUT : (long)r.rax;
		}
		if (WSTOPSIG(status) == SIGTRAP) {
			if ((error = inject_get_registers(tid, &r)))
				return -INJECT_FAILED + error;
			if (info.si_code <= 0) { /* somebody has sent it */
				inject_defer(deferred, &info);
				if (r.rip == instruction)
					deferred->before = deferred->count;
				if (r.rip != instruction + 2 || gently)
					continue;
			}
			if (r.rip == instruction + 2 && !gently)
				return interrupted ? -INJECT_FAILED - ETIMEDOUT : (long)r.rax;
			if (r.rip != instruction && !gently)
				return -INJECT_FAILED - EFAULT;
			continue; /* a trap that was on its way before */
		}
		/* All signals are blocked, so this is SIGSTOP, or a fault's signal: of the call itself, which then never ran, or one
         * that waited before, which the kernel gives out although it is blocked, as soon as SIGTRAP comes behind it
         * (dequeue_synchronous_signal()). That one is dropped: its instruction will be executed, and fault, again. */
		if (WSTOPSIG(status) == SIGSEGV || WSTOPSIG(status) == SIGILL || WSTOPSIG(status) == SIGBUS || WSTOPSIG(status) == SIGFPE ||
		    WSTOPSIG(status) == SIGSYS) {
			if ((error = inject_get_registers(tid, &r)) || (error = inject_get_signal_info(tid, &info)))
				return -INJECT_FAILED + error;
			if (WSTOPSIG(status) != SIGSYS &&
			    (r.rip == instruction + 2 || (r.rip == instruction && info.si_addr != (void *)instruction)))
				continue;
			return -INJECT_FAILED - EFAULT;
		}
		if ((error = inject_get_registers(tid, &r)) || (error = inject_get_signal_info(tid, &info)))
			return -INJECT_FAILED + error;
		inject_defer(deferred, &info);
		if (r.rip == instruction)
			deferred->before = deferred->count;
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

/* Bytes moved, possibly fewer than asked when a later page is missing. */
long inject_read(int pid, uint64_t address, void *buffer, long size)
{
	struct iovec local = {buffer, size}, remote = {(void *)address, size};
	long r = process_vm_readv(pid, &local, 1, &remote, 1, 0);
	return r < 0 ? -errno : r;
}

long inject_write(int pid, uint64_t address, const void *buffer, long size)
{
	struct iovec local = {(void *)buffer, size}, remote = {(void *)address, size};
	long r = guest_memory_writev(pid, &local, 1, &remote, 1);
	return r < 0 ? -errno : r;
}

#define NOT_MADE INT64_MIN

/* What stops a thread in a batch, all signals being blocked: a trap that was on its way before, which is dropped, or SIGSTOP or a SIGTRAP that
 * somebody has sent, which are kept. */
static int keep_signal(int tid, int number, struct deferred *deferred)
{
	siginfo_t info;
	int error;

	if (number != SIGTRAP && number != SIGSTOP)
		return -EFAULT;
	if ((error = inject_get_signal_info(tid, &info)))
		return error;
	if (number == SIGSTOP || info.si_code <= 0)
		inject_defer(deferred, &info);
	return 0;
}

/* Stops a thread that makes a batch, or has made it and waits in its refuge. 0, or a negative errno. */
static int stop_in_refuge(int tid, struct deferred *deferred)
{
	int status, error;
	if (ptrace(PTRACE_INTERRUPT, tid, 0, 0))
		return -errno;
	for (int stops = 0; stops < 64; stops++) {
		if ((error = inject_wait(tid, 2000000, &status)))
			return error;
		if (!WIFSTOPPED(status))
			return -ESRCH;
		if (status >> 16 == EVENT_STOP)
			return 0;
		if ((!(status >> 16) && (error = keep_signal(tid, WSTOPSIG(status), deferred))) || (error = inject_continue(tid, 0)))
			return error;
	}
	return -ELOOP;
}

/* Several calls of a thread that has a refuge at `batch`, without a stop in between; the table has room in its memory at `room`. It stands in
 * the refuge afterwards, in a stop that is none of a call. 0, results beside the calls; or -(INJECT_FAILED + errno). */
long inject_batch(int tid, uint64_t batch, const struct user_regs_struct *base, int64_t timeout_us, struct deferred *deferred,
                  uint64_t room, struct injected *calls, long count)
{
	struct user_regs_struct r = *base;
	struct injected *last = &calls[count - 1];
	uint64_t last_result = room + (char *)&last->result - (char *)calls;
	long size = count * sizeof *calls, pause_ns = 5000;
	int64_t end = now_us() + timeout_us;
	int status, error;

	for (long i = 0; i < count; i++)
		calls[i].result = NOT_MADE;
	if (inject_write(tid, room, calls, size) != size)
		return -INJECT_FAILED - EFAULT;
	r.rip = batch, r.rbx = room, r.rbp = count, r.rax = 0, r.orig_rax = -1;
	if ((error = inject_set_registers(tid, &r)) || (error = inject_continue(tid, 0)))
		return -INJECT_FAILED + error;
	for (long tries = 0;; tries++) {
		int found = waitpid(tid, &status, __WALL | WNOHANG);
		if (found < 0 && errno != EINTR)
			return -INJECT_FAILED - errno;
		if (found == tid) {
			if (!WIFSTOPPED(status))
				return -INJECT_FAILED - ESRCH;
			if ((!(status >> 16) && (error = keep_signal(tid, WSTOPSIG(status), deferred))) ||
			    (error = inject_continue(tid, 0)))
				return -INJECT_FAILED + error;
		}
		if (inject_read(tid, last_result, &last->result, sizeof last->result) != sizeof last->result)
			return -INJECT_FAILED - ESRCH;
		if (last->result != NOT_MADE)
			break;
		if (now_us() > end) { /* as inject_call(), it leaves the thread stopped */
			error = stop_in_refuge(tid, deferred);
			return -INJECT_FAILED + (error ? error : -ETIMEDOUT);
		}
		if (tries < 40) {
			sched_yield();
			continue;
		}
		struct timespec pause = {0, pause_ns};
		nanosleep(&pause, NULL);
		if (pause_ns < 1000000)
			pause_ns += pause_ns / 2;
	}
	if ((error = stop_in_refuge(tid, deferred)))
		return -INJECT_FAILED + error;
	return inject_read(tid, room, calls, size) == size ? 0 : -INJECT_FAILED - EFAULT;
}

/* As many calls as there are, so many at a time as have room. Results and errors: as inject_batch(). */
long inject_batches(int tid, uint64_t batch, const struct user_regs_struct *base, int64_t timeout_us, struct deferred *deferred,
                    uint64_t room, uint64_t size, struct injected *calls, long count)
{
	long at_once = size / sizeof *calls;

	for (long first = 0; first < count; first += at_once) {
		long some = count - first < at_once ? count - first : at_once;
		long result = inject_batch(tid, batch, base, timeout_us, deferred, room, calls + first, some);
		if (result)
			return result;
	}
	return 0;
}

/* The first from `first` on whose result is an error; `count`: none. */
long inject_first_failed(const struct injected *calls, long count, long first)
{
	while (first < count && (calls[first].result >= 0 || calls[first].result < -4095))
		first++;
	return first;
}
