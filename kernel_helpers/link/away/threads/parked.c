/* Calls that were caught and wait: Python sees to them. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>
#include "link/away/files/giving.h"

struct parked {
	uint32_t tid, state;
	uint64_t sequence;
	int64_t number;
	uint64_t mask;
	uint32_t has_mask, class;
};

/* Calls that were caught and not answered; how many. */
unsigned away_parked(struct away *a, struct parked *list, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&a->lock);
	for (unsigned i = 0; i < a->count && n < room; i++) {
		struct guest_thread *t = a->threads[i];
		if (t->state != IDLE)
			list[n++] = (struct parked){t->tid,        t->state, t->m.call.sequence, t->m.call.number, t->m.signal_mask,
			                            t->m.has_mask, t->class};
	}
	pthread_mutex_unlock(&a->lock);
	return n;
}

/* Answers a parked call with a raw result, or lets the kernel execute it here. 0, -ENOENT: nothing is parked. */
int away_answer(struct away *a, int tid, int64_t value, int native)
{
	struct guest_thread *t = away_by_tid(a, tid);
	pthread_mutex_lock(&a->lock);
	if (!t || t->state == IDLE) {
		pthread_mutex_unlock(&a->lock);
		return -ENOENT;
	}
	t->state = IDLE;
	uint64_t id = t->notification;
	pthread_mutex_unlock(&a->lock);
	away_respond(a, id, value, native);
	return 0;
}

int away_notification_of(struct away *a, int tid, uint64_t *id)
{
	struct guest_thread *t = away_by_tid(a, tid);
	pthread_mutex_lock(&a->lock);
	int is_parked = t && t->state != IDLE;
	*id = is_parked ? t->notification : 0;
	pthread_mutex_unlock(&a->lock);
	return is_parked;
}

/* Puts a descriptor of ours into the guest, as this number, before a parked call of this thread goes on there. 0, or a negative errno:
 * -ENOENT: nothing is parked. */
int away_give_descriptor(struct away *a, int tid, int descriptor, int number)
{
	uint64_t id;
	if (!away_notification_of(a, tid, &id))
		return -ENOENT;
	return give_file(a->listener, id, descriptor, number);
}

void away_note_part(struct away *a, struct guest_thread *t, int64_t number, int64_t done)
{
	pthread_mutex_lock(&a->lock);
	t->part_number = number;
	__atomic_store_n(&t->part, done, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&a->lock);
}

/* So much (bytes) of the call of that number, which this thread makes next, has been made elsewhere; 0: there is no such call. */
void away_expect_part(struct away *a, int tid, int64_t number, int64_t done)
{
	struct guest_thread *t = away_by_tid(a, tid);
	if (t)
		away_note_part(a, t, number, done);
}

/* How much is done of the call that this thread makes next, and its number; 0: nothing, or it has been made. */
int64_t away_part(struct away *a, int tid, int64_t *number)
{
	struct guest_thread *t = away_by_tid(a, tid);
	if (!t)
		return 0;
	pthread_mutex_lock(&a->lock);
	int64_t done = __atomic_load_n(&t->part, __ATOMIC_RELAXED);
	*number = t->part_number;
	pthread_mutex_unlock(&a->lock);
	return done;
}

/* These signals wait at home from now on where the guest's threads block them. */
void away_watch(struct away *a, uint64_t mask)
{
	__atomic_store_n(&a->watched, mask, __ATOMIC_RELEASE);
}

/* The guest will not make the suspended call of this thread again. */
int away_abandon(struct away *a, int tid)
{
	struct outgoing *o = outgoing_new(FRAME_ABANDON, tid, 0);
	away_expect_part(a, tid, 0, 0);
	if (!o)
		return -ENOMEM;
	session_post(a->session, o, SEND_LATER);
	return 0;
}
