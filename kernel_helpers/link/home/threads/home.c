/* Which threads of the process there are, and how their calls stand. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include "link/home/threads/home.h"

struct home_thread *home_thread_of(struct home *h, uint32_t tid)
{
	unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count && tid; i++)
		if (h->threads[i]->tid == tid)
			return h->threads[i];
	return NULL;
}

int home_is_gone(struct home *h, uint32_t tid)
{
	unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count && tid; i++)
		if (h->threads[i]->former == tid)
			return 1;
	return 0;
}

/* Threads whose call is under way, or not replied to yet, at most `room`. How many. */
unsigned home_busy(struct home *h, uint32_t *tids, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	for (unsigned i = 0; i < h->count && n < room; i++)
		if (h->threads[i]->tid && h->threads[i]->state == BUSY)
			tids[n++] = h->threads[i]->tid;
	pthread_mutex_unlock(&h->lock);
	return n;
}

struct standing {
	uint64_t sequence;
	int64_t number;
	uint64_t first;
	uint32_t busy, done;
}; /* first: of its arguments */

/* How a thread's call stands. 0, or -ESRCH. */
int home_standing(struct home *h, int tid, struct standing *standing)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	pthread_mutex_lock(&h->lock);
	*standing = (struct standing){t->sequence, t->call.number, t->call.arguments[0], t->state == BUSY,
	                              !home_is_preparing(t) && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request};
	pthread_mutex_unlock(&h->lock);
	return 0;
}

struct signaller {
	uint32_t tid, target;
};

/* Threads whose reply waits for home_signals_arrived(), at most `room`, and which thread each has sent a signal to; 0: any. How many. */
unsigned home_signallers(struct home *h, struct signaller *found, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	for (unsigned i = 0; i < h->count && n < room; i++) {
		struct home_thread *t = h->threads[i];
		if (t->state != BUSY || t->signalling != SIGNALLED)
			continue;
		long number = t->call.number;
		uint64_t target = number == SYS_tgkill || number == SYS_rt_tgsigqueueinfo ? t->call.arguments[1]
		                  : number == SYS_tkill                                   ? t->call.arguments[0]
		                                                                          : 0;
		found[n++] = (struct signaller){t->tid, target};
	}
	pthread_mutex_unlock(&h->lock);
	return n;
}

uint64_t home_statistic(struct home *h, int which)
{
	return __atomic_load_n(which ? &h->quick : &h->calls, __ATOMIC_RELAXED);
}

struct session *home_session(struct home *h)
{
	return h->session;
}

uint64_t home_slot_offset(unsigned i)
{
	return slot_offset(i);
}

uint64_t home_size(struct home *h)
{
	return size(h);
}
