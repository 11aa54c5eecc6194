/* What inject.c does to one thread, to all threads of a process at a time: they are asked first and waited for afterwards, so that none is
 * waited for alone, and nothing of a high-level language runs for each of them.
 *
 * As there, all must be called by the thread that traces them. What becomes of one thread is told beside it (`error`); a function's own result
 * is 0, or the negative errno of what went wrong for all. */
#define _GNU_SOURCE
#include "process/inject.h"
#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif
#define EVENT_STOP 128 /* PTRACE_EVENT_STOP */
#define MOST_STOPS 64
#define MOST_SIGNALS 4 /* each of which has come before a stop that was asked for */
#define FIRST_YIELDS 40
#define NOT_MADE INT64_MIN
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

/* One thread's part of the calls: `count` of them from number `first` on. */
struct part {
	int32_t tid, error;
	int64_t first, count;
	struct deferred deferred;
	struct user_regs_struct registers; /* what the calls do not use is taken from there */
};

struct rseq_configuration {
	uint64_t pointer;
	uint32_t size, signature, flags, pad;
};

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Gives way, the longer the more often it was of no use. */
static void give_way(long tries)
{
	if (tries < FIRST_YIELDS) {
		sched_yield();
		return;
	}
	struct timespec pause = {0, tries < 60 ? 5000 : tries < 80 ? 50000 : 1000000};
	nanosleep(&pause, NULL);
}

/* Whether a thread that was let go, or asked to stop, has stopped or ended by now. 1: it has, `status` tells; 0; a negative errno. */
static int has_stopped(int tid, int *status)
{
	int found = waitpid(tid, status, __WALL | WNOHANG);
	return found == tid ? 1 : found == 0 || errno == EINTR ? 0 : -errno;
}

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
		/* That of a fault comes again (inject.py). */
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

/* Stops threads of process `pid`, and tells how each stands; new ones, which are traced from their birth, need not be asked, and others have
 * stopped already. A thread that does not stop in time has error ETIMEDOUT. */
int inject_many_stop(int pid, struct standing *threads, long count, int how, int64_t timeout_us)
{
	int64_t end = now_us() + timeout_us;

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
			if ((found = has_stopped(thread->tid, &status)) > 0) {
				found = comes_to_stop(thread, status);
				tries = 0;
				if (found == 0 && ++stops == MOST_STOPS)
					found = -ETIMEDOUT;
			}
			if (found > 0)
				break;
			if (found < 0)
				thread->error = -found;
			else if (tries >= FIRST_YIELDS && now_us() > end)
				thread->error = ETIMEDOUT;
			else
				give_way(tries);
		}
		if (!thread->error && (found = look_at(pid, thread)))
			thread->error = -found;
	}
	return 0;
}

/* Has stopped threads block these signals, and stand where `instruction` is, if that is not 0: where they wait if we die. */
int inject_many_block(struct part *parts, long count, uint64_t mask, uint64_t instruction)
{
	for (long i = 0; i < count; i++) {
		struct user_regs_struct r = parts[i].registers;
		struct iovec v = {&r, sizeof r};
		r.rip = instruction, r.rax = 0, r.orig_rax = -1;
		parts[i].error = 0;
		if ((instruction && ptrace(PTRACE_SETREGSET, parts[i].tid, NT_PRSTATUS, &v)) ||
		    ptrace(PTRACE_SETSIGMASK, parts[i].tid, 8, &mask))
			parts[i].error = errno;
	}
	return 0;
}

/* As inject.c has it: a trap that was on its way is dropped, SIGSTOP and what somebody has sent is kept. */
static int keep_signal(struct part *part, int number)
{
	siginfo_t info;

	if (number != SIGTRAP && number != SIGSTOP)
		return EFAULT;
	if (ptrace(PTRACE_GETSIGINFO, part->tid, 0, &info))
		return errno;
	if (number == SIGSTOP || info.si_code <= 0)
		inject_defer(&part->deferred, &info);
	return 0;
}

/* Takes what a thread reports while it makes its calls, and has it go on. Whether it stands in the stop that was asked for. */
static bool takes_report(struct part *part)
{
	int status, found = has_stopped(part->tid, &status);

	if (found < 0 || (found > 0 && !WIFSTOPPED(status)))
		part->error = found < 0 ? -found : ESRCH;
	else if (found > 0 && status >> 16 == EVENT_STOP)
		return true;
	else if (found > 0) {
		if (!(status >> 16))
			part->error = keep_signal(part, WSTOPSIG(status));
		if (!part->error && ptrace(PTRACE_CONT, part->tid, 0, 0))
			part->error = errno;
	}
	return false;
}

/* Calls of `count` threads, `words` 64-bit words for each, of which those of the first two are there: what differs between them differs as
 * much from each to the next. */
void inject_many_go_on(uint64_t *calls, long words, long count)
{
	for (long i = 2 * words; i < words * count; i++)
		calls[i] = 2 * calls[i - words] - calls[i - 2 * words];
}

/* The batch of refuge.py, which lies at `code` in process `pid`, in many threads at a time, all of which block all signals, or are made to
 * block `mask`, if that is not 0. Their calls are written to `room` there. All of them stand in the loop behind it afterwards; results
 * beside the calls. */
int inject_many_call(int pid, uint64_t code, uint64_t mask, struct part *parts, long count, uint64_t room, struct injected *calls,
                     long total, int64_t timeout_us)
{
	int64_t end = now_us() + timeout_us;
	long size = total * sizeof *calls;
	bool is_late = false;

	for (long i = 0; i < total; i++)
		calls[i].result = NOT_MADE;
	if (inject_write(pid, room, calls, size) != size)
		return -EFAULT;
	for (long i = 0; i < count; i++) {
		struct user_regs_struct r = parts[i].registers;
		struct iovec v = {&r, sizeof r};
		r.rip = code, r.rbx = room + parts[i].first * sizeof *calls, r.rbp = parts[i].count, r.rax = 0, r.orig_rax = -1;
		parts[i].error = 0;
		if ((mask && ptrace(PTRACE_SETSIGMASK, parts[i].tid, 8, &mask)) ||
		    ptrace(PTRACE_SETREGSET, parts[i].tid, NT_PRSTATUS, &v) || ptrace(PTRACE_CONT, parts[i].tid, 0, 0))
			parts[i].error = errno;
	}
	for (long i = 0, tries = 0; i < count && !is_late;) {
		struct part *part = &parts[i];
		struct injected *last = &calls[part->first + part->count - 1];
		struct iovec here = {&last->result, 8}, there = {(void *)(room + ((char *)&last->result - (char *)calls)), 8};
		if (!part->error && part->count && last->result == NOT_MADE && process_vm_readv(pid, &here, 1, &there, 1, 0) != 8)
			part->error = ESRCH;
		if (part->error || !part->count || last->result != NOT_MADE) {
			i++, tries = 0;
			continue;
		}
		if (takes_report(part) && ptrace(PTRACE_CONT, part->tid, 0, 0)) /* somebody else's INTERRUPT */
			part->error = errno;
		is_late = tries >= FIRST_YIELDS && now_us() > end;
		give_way(tries++);
	}
	for (long i = 0; i < count; i++)
		if (!parts[i].error && ptrace(PTRACE_INTERRUPT, parts[i].tid, 0, 0))
			parts[i].error = errno;
	end = now_us() + 2000000;
	for (long i = 0; i < count; i++)
		for (long tries = 0; !parts[i].error && !takes_report(&parts[i]); tries++) {
			if (tries >= FIRST_YIELDS && now_us() > end)
				parts[i].error = ETIMEDOUT;
			give_way(tries);
		}
	struct iovec here = {calls, size}, there = {(void *)room, size};
	if (process_vm_readv(pid, &here, 1, &there, 1, 0) != size)
		return -EFAULT;
	return is_late ? -ETIMEDOUT : 0;
}

/* PTRACE_SETOPTIONS for each: errno beside it. */
int inject_many_set_options(const int32_t *tids, const int32_t *options, int32_t *errors, long count)
{
	for (long i = 0; i < count; i++)
		errors[i] = ptrace(PTRACE_SETOPTIONS, tids[i], 0, (long)options[i]) ? errno : 0;
	return 0;
}

/* What of a stopped thread is read from without. */
struct kept {
	int32_t tid, error;
	int64_t state_size;
	uint64_t robust, robust_size;
	int32_t waits, padding; /* whether signals wait for it alone */
};

struct peek {
	uint64_t offset;
	uint32_t flags;
	int32_t count;
};

/* Where the robust list of each is, and how long its head. */
int inject_many_robust(struct kept *threads, long count)
{
	for (long i = 0; i < count; i++) {
		void *head = NULL;
		size_t size = 0;
		threads[i].error = syscall(SYS_get_robust_list, threads[i].tid, &head, &size) ? errno : 0;
		threads[i].robust = (uint64_t)head, threads[i].robust_size = size;
	}
	return 0;
}

/* The extended state of each thread goes to `states`, `room` bytes apart. */
int inject_many_read(struct kept *threads, long count, void *states, long room)
{
	for (long i = 0; i < count; i++) {
		struct kept *thread = &threads[i];
		struct iovec v = {(char *)states + i * room, room};
		struct peek peek = {0, 0, 1};
		siginfo_t first;
		size_t size = 0;
		void *head = NULL;
		long waits;

		thread->error = 0;
		if (ptrace(PTRACE_GETREGSET, thread->tid, NT_X86_XSTATE, &v) || syscall(SYS_get_robust_list, thread->tid, &head, &size) ||
		    (waits = ptrace(0x4209 /* PTRACE_PEEKSIGINFO */, thread->tid, &peek, &first)) < 0) {
			thread->error = errno;
			continue;
		}
		thread->state_size = v.iov_len, thread->robust = (uint64_t)head, thread->robust_size = size, thread->waits = waits > 0;
	}
	return 0;
}

/* Whether signals wait for each thread alone: more than 0, or a negative errno. */
int inject_many_waits(const int32_t *tids, int32_t *waits, long count)
{
	for (long i = 0; i < count; i++) {
		struct peek peek = {0, 0, 1};
		siginfo_t first;
		long found = ptrace(0x4209 /* PTRACE_PEEKSIGINFO */, tids[i], &peek, &first);
		waits[i] = found < 0 ? -errno : found;
	}
	return 0;
}

/* Which threads have seccomp filters beyond number `beneath`, or are such that it cannot be told. */
int inject_many_filtered(const int32_t *tids, int32_t *filtered, long count, long beneath)
{
	for (long i = 0; i < count; i++) {
		long length = ptrace(PTRACE_SECCOMP_GET_FILTER, tids[i], (void *)beneath, NULL);
		filtered[i] = length > 0 || (length < 0 && errno != ENOENT && errno != EINVAL);
	}
	return 0;
}

/* Where the restartable sequences of each are registered. */
int inject_many_rseq(const int32_t *tids, struct rseq_configuration *found, long count)
{
	memset(found, 0, count * sizeof *found);
	for (long i = 0; i < count; i++)
		if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tids[i], sizeof *found, &found[i]) < 0)
			memset(&found[i], 0, sizeof found[i]);
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
	int64_t end = now_us() + timeout_us;

	for (long i = 0; i < count; i++) {
		int status, found;
		for (long tries = 0; !(found = has_stopped(tids[i], &status)); tries++) {
			if (tries >= FIRST_YIELDS && now_us() > end)
				break;
			give_way(tries);
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

/* Sets the extended state of each thread: `sizes[i]` bytes of `states`, `room` bytes apart. */
int inject_many_set_states(const int32_t *tids, int32_t *errors, long count, void *states, const int64_t *sizes, long room)
{
	for (long i = 0; i < count; i++) {
		struct iovec v = {(char *)states + i * room, sizes[i]};
		errors[i] = ptrace(PTRACE_SETREGSET, tids[i], NT_X86_XSTATE, &v) ? errno : 0;
	}
	return 0;
}

/* Writes registers, the section of a restartable sequence and the mask of each thread back. in_order: as a thread that has a refuge needs
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
