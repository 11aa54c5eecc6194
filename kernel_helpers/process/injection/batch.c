/* Many system calls of one thread by the batch of pause_loop.py, without a stop in between. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <errno.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

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

/* Stops a thread that makes a batch, or has made it and waits in its pause loop. 0, or a negative errno. */
static int stop_in_pause_loop(int tid, struct deferred *deferred)
{
	int status, error;
	for (int stops = 0; stops < 64; stops++) {
		/* Anew after each stop, which may have cleared it. */
		if ((error = inject_interrupt(tid)) || (stops && (error = inject_continue(tid, 0))) ||
		    (error = inject_wait(tid, 2000000, &status)))
			return error;
		if (!WIFSTOPPED(status))
			return -ESRCH;
		if (status >> 16 == EVENT_STOP)
			return 0;
		if (!(status >> 16) && (error = keep_signal(tid, WSTOPSIG(status), deferred)))
			return error;
	}
	return -ELOOP;
}

/* Several calls of a thread that has a pause loop at `batch`, without a stop in between; the table has room in its memory at `room`. It stands in
 * the pause loop afterwards, in a stop that is none of a call. 0, results beside the calls; or -(INJECT_FAILED + errno). */
long inject_batch(int tid, uint64_t batch, const struct user_regs_struct *base, int64_t timeout_us, struct deferred *deferred,
                  uint64_t room, struct injected *calls, long count)
{
	struct user_regs_struct r = *base;
	struct injected *last = &calls[count - 1];
	uint64_t last_result = room + (char *)&last->result - (char *)calls;
	long size = count * sizeof *calls, pause_ns = 5000;
	int64_t end = inject_now_us() + timeout_us;
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
		if (inject_now_us() > end) { /* as inject_call(), it leaves the thread stopped */
			error = stop_in_pause_loop(tid, deferred);
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
	if ((error = stop_in_pause_loop(tid, deferred)))
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
