/* What requests.c and wait.c do to one thread, to all threads of a process at a time: they are asked first and waited for afterwards, so that
 * none is waited for alone, and nothing of a high-level language runs for each of them.
 *
 * The result of one thread is stored beside it (`error`); a function's own result is 0, or the negative errno of what went wrong for all. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MOST_STOPS 64
#define MOST_SIGNALS 4 /* each of which has come before a stop that was asked for */
#define NOT_REPORTED INT32_MIN

/* How one thread stands. options: with which it is seized. */
struct standing {
	int32_t tid, error;
	int32_t options, unread; /* unread: which section it stands in, since that memory is not to be read */
	int32_t signals, group_stop; /* how many it had in hand; by which its process is stopped */
	int32_t dispatches, padding; /* whether its system calls are its own affair */
	siginfo_t infos[MOST_SIGNALS];
	struct user_regs_struct registers;
	uint64_t mask;
	uint64_t rseq, section; /* addresses: where its restartable sequences are registered, and which it stands in */
	uint32_t rseq_size, rseq_signature;
};

/* What is about a thread that stands still. */
static int look_at(int pid, struct standing *thread)
{
	struct rseq_configuration rseq = {0};
	struct {
		uint64_t mode, selector, offset, length;
	} dispatch = {0};
	struct iovec registers = {&thread->registers, sizeof thread->registers};

	if (ptrace(PTRACE_GETREGSET, thread->tid, NT_PRSTATUS, &registers) || ptrace(PTRACE_GETSIGMASK, thread->tid, 8, &thread->mask))
		return -errno;
	thread->dispatches =
		!ptrace(0x4211 /* PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG */, thread->tid, sizeof dispatch, &dispatch) && dispatch.mode;
	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread->tid, sizeof rseq, &rseq) < 0)
		memset(&rseq, 0, sizeof rseq);
	thread->rseq = rseq.pointer, thread->rseq_size = rseq.size, thread->rseq_signature = rseq.signature;
	thread->section = 0;
	struct iovec here = {&thread->section, 8}, there = {(void *)(rseq.pointer + 8), 8};
	thread->unread = rseq.pointer && process_vm_readv(pid, &here, 1, &there, 1, 0) != 8;
	if (thread->unread)
		thread->section = 0;
	return 0;
}

/* One report of a thread that is to come to a stop of our making. 1: it has, 0: not yet, or a negative errno. */
static int comes_to_stop(struct standing *thread, int status)
{
	if (!WIFSTOPPED(status))
		return -ESRCH;
	if (status >> 16 == EVENT_STOP) {
		thread->group_stop = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		return 1;
	}
	if (!(status >> 16)) {
		siginfo_t info;
		if (ptrace(PTRACE_GETSIGINFO, thread->tid, 0, &info))
			return -errno;
		/* That of a fault comes again (native.py). */
		bool is_fault = info.si_code > 0 &&
		                (info.si_signo == SIGILL || info.si_signo == SIGBUS || info.si_signo == SIGFPE || info.si_signo == SIGSEGV);
		if (!is_fault && thread->signals == MOST_SIGNALS)
			return -EOVERFLOW;
		if (!is_fault)
			thread->infos[thread->signals++] = info;
	}
	/* Each stop takes the place of the one that was asked for. Signal 0: it goes on inside of the kernel, and meets the trap before any
     * instruction of its own. */
	return ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0) || ptrace(PTRACE_CONT, thread->tid, 0, 0) ? -errno : 0;
}

enum how { STOP_TRACED, STOP_SEIZED, STOP_NEWBORN, STOP_DONE };

/* Stops threads of process `pid`, and reports how each stands; new ones, which are traced from their birth, need not be asked, and others have
 * stopped already. A thread that does not stop in time has error ETIMEDOUT. */
int inject_many_stop(int pid, struct standing *threads, long count, int how, int64_t timeout_us)
{
	int64_t end = inject_now_us() + timeout_us;

	for (long i = 0; i < count; i++) {
		struct standing *thread = &threads[i];
		thread->error = thread->signals = thread->group_stop = 0;
		if ((how == STOP_SEIZED && ptrace(PTRACE_SEIZE, thread->tid, 0, (long)thread->options)) ||
		    (how < STOP_NEWBORN && ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0)))
			thread->error = errno;
	}
	for (long i = 0; i < count; i++) {
		struct standing *thread = &threads[i];
		int status, found = 0, stops = 0;
		for (long tries = 0; !thread->error && how != STOP_DONE; tries++) {
			if ((found = inject_has_stopped(thread->tid, &status)) > 0) {
				found = comes_to_stop(thread, status);
				tries = 0;
				if (found == 0 && ++stops == MOST_STOPS)
					found = -ETIMEDOUT;
			}
			if (found > 0)
				break;
			if (found < 0)
				thread->error = -found;
			else if (tries >= FIRST_YIELDS && inject_now_us() > end)
				thread->error = ETIMEDOUT;
			else
				inject_give_way(tries);
		}
		if (!thread->error && (found = look_at(pid, thread)))
			thread->error = -found;
	}
	return 0;
}

/* PTRACE_SETOPTIONS for each: errno beside it. */
int inject_many_set_options(const int32_t *tids, const int32_t *options, int32_t *errors, long count)
{
	for (long i = 0; i < count; i++)
		errors[i] = ptrace(PTRACE_SETOPTIONS, tids[i], 0, (long)options[i]) ? errno : 0;
	return 0;
}

/* Lets stopped threads run. */
int inject_many_continue(const int32_t *tids, int32_t *errors, long count)
{
	for (long i = 0; i < count; i++)
		errors[i] = ptrace(PTRACE_CONT, tids[i], 0, 0) ? errno : 0;
	return 0;
}

/* Lets stopped threads go for good. */
int inject_many_detach(const int32_t *tids, int32_t *errors, long count)
{
	for (long i = 0; i < count; i++)
		errors[i] = ptrace(PTRACE_DETACH, tids[i], 0, 0) ? errno : 0;
	return 0;
}

/* The next report of each thread, that is to come soon: its status; a negative errno; NOT_REPORTED: none came in the time for all. */
int inject_many_await(const int32_t *tids, int32_t *statuses, long count, int64_t timeout_us)
{
	int64_t end = inject_now_us() + timeout_us;

	for (long i = 0; i < count; i++) {
		int status, found;
		for (long tries = 0; !(found = inject_has_stopped(tids[i], &status)); tries++) {
			if (tries >= FIRST_YIELDS && inject_now_us() > end)
				break;
			inject_give_way(tries);
		}
		statuses[i] = found > 0 ? status : found < 0 ? found : NOT_REPORTED;
	}
	return 0;
}

/* Whether any of these threads has ended, which can still be waited for afterwards. 1, 0, or a negative errno. */
int inject_many_ended(const int32_t *tids, long count)
{
	for (long i = 0; i < count; i++) {
		siginfo_t found = {0};
		if (waitid(P_PID, tids[i], &found, WEXITED | WNOHANG | WNOWAIT | __WALL))
			return -errno;
		if (found.si_pid)
			return 1;
	}
	return 0;
}

/* Asks threads to stop. */
int inject_many_interrupt(const int32_t *tids, int32_t *errors, long count)
{
	for (long i = 0; i < count; i++)
		errors[i] = ptrace(PTRACE_INTERRUPT, tids[i], 0, 0) ? errno : 0;
	return 0;
}

/* Writes registers, the section of a restartable sequence and the mask of each thread back. in_order: as a thread that has a pause loop needs
 * it, the registers last. */
int inject_many_restore(int pid, struct standing *threads, long count, int in_order)
{
	for (long i = 0; i < count; i++) {
		struct standing *thread = &threads[i];
		struct iovec v = {&thread->registers, sizeof thread->registers};

		thread->error = 0;
		if (!in_order && ptrace(PTRACE_SETREGSET, thread->tid, NT_PRSTATUS, &v))
			thread->error = errno;
		if (!thread->error && in_order && ptrace(PTRACE_SETSIGMASK, thread->tid, 8, &thread->mask))
			thread->error = errno;
		if (thread->rseq && thread->section)
			inject_write(pid, thread->rseq + 8, &thread->section, 8);
		if (!thread->error && in_order && ptrace(PTRACE_SETREGSET, thread->tid, NT_PRSTATUS, &v))
			thread->error = errno;
		if (!thread->error && !in_order && ptrace(PTRACE_SETSIGMASK, thread->tid, 8, &thread->mask))
			thread->error = errno;
	}
	return 0;
}
