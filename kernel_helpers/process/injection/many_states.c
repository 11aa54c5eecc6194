/* What is read of many stopped threads at a time, and set in them: extended states, robust lists, restartable sequences, filters. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

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

/* Which threads have seccomp filters beyond number `beneath`, or are such that this is not known. */
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

/* Sets the extended state of each thread: `sizes[i]` bytes of `states`, `room` bytes apart. */
int inject_many_set_states(const int32_t *tids, int32_t *errors, long count, void *states, const int64_t *sizes, long room)
{
	for (long i = 0; i < count; i++) {
		struct iovec v = {(char *)states + i * room, sizes[i]};
		errors[i] = ptrace(PTRACE_SETREGSET, tids[i], NT_X86_XSTATE, &v) ? errno : 0;
	}
	return 0;
}
