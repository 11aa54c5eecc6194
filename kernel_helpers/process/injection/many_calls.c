/* System calls of many threads at a time. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* One thread's part of the calls: `count` of them from number `first` on. */
struct part {
	int32_t tid, error;
	int64_t first, count;
	struct deferred deferred;
	struct user_regs_struct registers; /* what the calls do not use is taken from there */
};

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

/* As batch.c has it: a trap that was on its way is dropped, SIGSTOP and what somebody has sent is kept. */
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

/* Takes what a thread reports while it makes its calls, and has it go on. Whether it stands in the stop that was asked for. is_asked: one has
 * been, by us, and any other may have cleared it. */
static bool takes_report(struct part *part, bool is_asked)
{
	int status, found = inject_has_stopped(part->tid, &status);

	if (found < 0 || (found > 0 && !WIFSTOPPED(status)))
		part->error = found < 0 ? -found : ESRCH;
	else if (found > 0 && status >> 16 == EVENT_STOP)
		return true;
	else if (found > 0) {
		if (!(status >> 16))
			part->error = keep_signal(part, WSTOPSIG(status));
		if (!part->error && ((is_asked && ptrace(PTRACE_INTERRUPT, part->tid, 0, 0)) || ptrace(PTRACE_CONT, part->tid, 0, 0)))
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

/* The batch of pause_loop.py, which lies at `code` in process `pid`, in many threads at a time, all of which block all signals, or are made to
 * block `mask`, if that is not 0. Their calls are written to `room` there. All of them stand in the loop behind it afterwards; results
 * beside the calls. */
int inject_many_call(int pid, uint64_t code, uint64_t mask, struct part *parts, long count, uint64_t room, struct injected *calls,
                     long total, int64_t timeout_us)
{
	int64_t end = inject_now_us() + timeout_us;
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
		if (takes_report(part, false) && ptrace(PTRACE_CONT, part->tid, 0, 0)) /* somebody else's INTERRUPT */
			part->error = errno;
		is_late = tries >= FIRST_YIELDS && inject_now_us() > end;
		inject_give_way(tries++);
	}
	for (long i = 0; i < count; i++)
		if (!parts[i].error && ptrace(PTRACE_INTERRUPT, parts[i].tid, 0, 0))
			parts[i].error = errno;
	end = inject_now_us() + 2000000;
	for (long i = 0; i < count; i++)
		for (long tries = 0; !parts[i].error && !takes_report(&parts[i], true); tries++) {
			if (tries >= FIRST_YIELDS && inject_now_us() > end)
				parts[i].error = ETIMEDOUT;
			inject_give_way(tries);
		}
	struct iovec here = {calls, size}, there = {(void *)room, size};
	if (process_vm_readv(pid, &here, 1, &there, 1, 0) != size)
		return -EFAULT;
	return is_late ? -ETIMEDOUT : 0;
}
