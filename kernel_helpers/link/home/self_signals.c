/* Calls after which the program counts on having had what signals had come by then: it has sent one to itself, or has stopped a timer. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include "link/home/threads/parts.h"

/* Whether the timer of real time is stopped by the call: by a null pointer, or by nothing but zeros. */
static int stops_alarm(struct home_thread *t)
{
	static const struct itimerval still;
	uint64_t value = t->call.arguments[1];
	if (t->call.number == SYS_alarm)
		return !(uint32_t)t->call.arguments[0];
	if (!(t->call.offsets >> 1 & 1))
		return !value;
	return value + sizeof still <= t->call.image && !memcmp(data_of(t) + value, &still, sizeof still);
}

void home_face_terminal(struct home_thread *t)
{
	const struct call_entry *entry = link_entry(t->call.number, t->call.arguments);
	uint32_t known = t->call.offsets;
	t->slot->blocked = (known & BLOCKS_TTIN ? 1ull << (SIGTTIN - 1) : 0) | (known & BLOCKS_TTOU ? 1ull << (SIGTTOU - 1) : 0);
	t->slot->terminal = 0;
	for (unsigned i = 0; i < entry->count && !(known & BLOCKS_KNOWN); i++)
		if (entry->arguments[i].shape == SHAPE_TERMINAL && (int32_t)t->call.arguments[i] >= 0)
			t->slot->terminal = (uint32_t)t->call.arguments[i] + 1;
}

/* The thread is stopped in its call, and blocks these signals from now on: the loop lets go of them when the call is over. */
int home_block(struct home *h, int tid, uint64_t mask)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	t->slot->blocking |= mask;
	return 0;
}

/* The thread, which is stopped or about to begin, blocks these from now on whatever call it makes. */
int home_keep(struct home *h, int tid, uint64_t mask)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	t->slot->keeps = mask;
	return 0;
}

/* The call of a thread that is stopped has written so many bytes more, and the thread makes the rest of it. Returns how many in all. */
uint64_t home_written(struct home *h, int tid, uint64_t more)
{
	struct home_thread *t = home_thread_of(h, tid);
	return t ? t->slot->written += more : 0;
}

/* The call of a thread, which has ended well and waits for home_signals_arrived(), answers this in place of what the kernel has. */
int home_put_value(struct home *h, int tid, int64_t value)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	if (t->slot->value >= 0)
		t->slot->value = value;
	return 0;
}

enum signalling home_signalling(struct home *h, struct home_thread *t)
{
	switch (t->call.number) {
	case SYS_setitimer:
		if (t->call.arguments[0] != ITIMER_REAL)
			return SIGNALS;
		/* fall through */
	case SYS_alarm: {
		int was = h->alarmed;       /* one that stood still is begun without delay: what it sends soon may be for the next call */
		h->alarmed = !stops_alarm(t);
		return was ? SIGNALS : SIGNALS_NOBODY;
	}
	case SYS_timer_delete:
	case SYS_timer_settime:
	case SYS_timer_getoverrun: /* of the tick that the guest has taken: see home_put_value() */
	case SYS_kill:
	case SYS_tgkill:
	case SYS_tkill:
	case SYS_rt_sigqueueinfo:
	case SYS_rt_tgsigqueueinfo:
	case SYS_pidfd_send_signal:
		return SIGNALS;
	case SYS_recvmsg:
	case SYS_recvmmsg:
	case SYS_pidfd_getfd:
		return RECEIVES;
	default:
		return SIGNALS_NOBODY;
	}
}
