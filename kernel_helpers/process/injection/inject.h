/* What other files of C need of injection/: system calls in a thread that stands still, made by the thread that seized it. */
#ifndef FARHOME_INJECT_H
#define FARHOME_INJECT_H
#include <signal.h>
#include <stdint.h>
#include <sys/user.h>

/* A result no system call has: errno values end at 4095. inject_call() answers -(INJECT_FAILED + errno) when it is the injection
 * itself that failed, so that the call's own errors are not confused with ours. */
#define INJECT_FAILED 100000L

#define DEFERRED_MOST 4 /* SIGSTOP, and SIGTRAP, each at the thread and at the process: of more the kernel itself keeps one in a queue */

/* What stopped a thread during injected calls and is left for later: signals that cannot be blocked (SIGSTOP, and where calls are single
 * steps SIGTRAP), in the order in which they came. `before`: how many of them came before the last call was made. */
struct deferred {
	int32_t count, before;
	siginfo_t infos[DEFERRED_MOST];
};

void inject_defer(struct deferred *deferred, const siginfo_t *info);

long inject_call(int tid, uint64_t instruction, int gently, const struct user_regs_struct *base, int64_t timeout_us,
                 struct deferred *deferred, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);
/* One of several calls, as the batch of pause_loop.py reads it. */
struct injected {
	int64_t number, result;
	uint64_t arguments[6];
};

long inject_write(int pid, uint64_t address, const void *buffer, long size);

#endif
