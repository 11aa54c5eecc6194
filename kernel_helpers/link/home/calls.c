/* CALLs of a guest, taken from the link: checked, put into the slots of the stub's resident loops, and waited for while they may be quick.
 * Nothing here knows a call: sizes and pointers come with the CALL, and every one of them is checked against the slot. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "link/home/parts.h"

#define PLACE_LIMIT (8u * STUB_PAGE)
#define WAIT_LIMIT_NS 200000

/* Where processors are few, the loop does not look on; then the cheapest wake-up is that of a thread on the same processor
 * (4 us, against 30 when an idle one has to be woken), so the receiver goes where the loop is. The loop itself stays where
 * the program wants it. */
static void follow(struct home *h, uint32_t processor)
{
	if (!h->follows || h->count > 1 || processor == h->processor)
		return;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(processor, &set);
	if (!sched_setaffinity(0, sizeof set, &set))
		h->processor = processor;
}

/* Of what the receiver counts and anybody may read. */
static void count(uint64_t *number)
{
	__atomic_store_n(number, *number + 1, __ATOMIC_RELAXED);
}

/* Stays for a while with a call that ought to be quick: most are, and one wake-up more costs more than they do. It looks on,
 * or where that has not paid sleeps until the end of the call; what takes longer is left to the finisher. */
static void look_on(struct home *h, struct home_thread *t, int stays)
{
	struct slot *slot = t->slot;
	uint32_t wanted = slot->request;
	count(&h->calls);
	if (stays && looking_begins(&h->looking)) {
		while (__atomic_load_n(&slot->done, __ATOMIC_ACQUIRE) != wanted && looking_goes_on(&h->looking))
			;
		looking_ends(&h->looking);
	} else if (stays) {
		struct timespec limit = {0, WAIT_LIMIT_NS};
		__atomic_store_n(&slot->watched, WATCHED_HERE, __ATOMIC_SEQ_CST);
		uint32_t done = __atomic_load_n(&slot->done, __ATOMIC_SEQ_CST);
		if (done != wanted)
			syscall(SYS_futex, &slot->done, FUTEX_WAIT, done, &limit, NULL, 0);
	}
	if (__atomic_load_n(&slot->done, __ATOMIC_SEQ_CST) != wanted) {
		__atomic_store_n(&slot->watched, WATCHED_AT_CONTROL, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&slot->done, __ATOMIC_SEQ_CST) != wanted)
			return;
	}
	if (home_finish(h, t))
		count(&h->quick);
	follow(h, slot->processor);
}

static void start(struct home *h, struct home_thread *t)
{
	uint64_t end = t->call.place + t->call.place_length;
	int place = t->call.place_argument < NO_PLACE && t->call.place_length && !h->places_held && t->call.place_length <= PLACE_LIMIT &&
	            end > t->call.place && (end <= h->stub - STUB_PAGE || t->call.place >= h->stub + size(h));
	t->placing = place ? 0 : PLACED;
	if (!place)
		t->call.place_length = 0;
	t->signalling = home_signalling(h, t);
	t->resuming = home_resumes(t);
	if (t->rest.done && !home_has_rest(t))
		t->rest.done = 0;       /* it makes another call: that one is over */
	int64_t limit = home_patience(h, t);
	t->deadline = !limit ? 0 : t->resuming && t->resumable_deadline ? t->resumable_deadline : home_now() + limit;
	home_forget(t);
	home_note_end(h, t);
	t->state = BUSY;
	t->begun = __builtin_ia32_rdtsc();
	home_launch(h, t, WATCHED_NOT);
}

/* The image of a CALL is read straight into the slot, which nobody else uses now. */
int home_take_call(void *owner, struct session *session, const struct frame *frame)
{
	struct home *h = owner;
	struct call call;
	uint32_t relocations[RELOCATIONS_LIMIT];
	struct home_thread *t = home_thread_of(h, frame->tid);
	if (!t && (frame->kind == FRAME_CALL || frame->kind == FRAME_ABANDON) && home_is_gone(h, frame->tid)) {
		if (session_skip(session, frame->length)) /* killed here, which they have not heard there: nobody waits for a reply */
			return -1;
		session_accept(session, frame);
		return 0;
	}
	if (frame->kind == FRAME_ABANDON && t && !frame->length) {
		session_accept(session, frame);
		pthread_mutex_lock(&h->lock);
		home_forget(t);
		t->rest.done = 0;
		pthread_mutex_unlock(&h->lock);
		return 0;
	}
	if (frame->kind != FRAME_CALL || frame->length < sizeof call || !t || session_read(session, &call, sizeof call))
		goto nonsense;
	if (call.relocations > RELOCATIONS_LIMIT || call.outs > OUTS_LIMIT || call.image > call.area || call.area > SLOT_DATA ||
	    (call.offsets & ~BLOCKS_ALL) >> 6 || !link_forwardable(call.number) || call.sequence <= t->sequence ||
	    frame->length != sizeof call + call.relocations * 4ull + call.outs * sizeof(struct out) + call.image)
		goto nonsense;
	/* A thread that calls has had its last answer. One side that never says so would have the other keep all answers. */
	pthread_mutex_lock(&h->lock);
	int is_early = t->state == BUSY || frame->acknowledged < t->answered;
	pthread_mutex_unlock(&h->lock);
	if (is_early)
		goto nonsense;
	for (int i = 0; i < 6; i++)
		if (call.offsets >> i & 1 && call.arguments[i] > call.area)
			goto nonsense;
	if (call.place_argument != NO_PLACE && (call.place_argument > NO_PLACE || !(call.offsets >> call.place_argument & 1) ||
	                                        call.place_length > call.area - call.arguments[call.place_argument]))
		goto nonsense;
	t->call = call;
	if (session_read(session, relocations, call.relocations * 4) || session_read(session, t->outs, call.outs * sizeof(struct out)) ||
	    session_read(session, data_of(t), call.image))
		return -1;
	uint64_t total = 0;
	for (uint32_t i = 0; i < call.outs; i++) {
		if (t->outs[i].offset > call.area || t->outs[i].length > call.area - t->outs[i].offset)
			goto nonsense;
		if (t->outs[i].rule == OUT_MESSAGE && (call.area < 4 || t->outs[i].add > call.area - 4))
			goto nonsense;
		total += t->outs[i].length;
	}
	if (total > SLOT_DATA)
		goto nonsense;
	uint64_t data = data_in_stub(h, t);
	for (uint32_t i = 0; i < call.relocations; i++) {
		uint64_t value;
		if (call.image < 8 || relocations[i] > call.image - 8)
			goto nonsense;
		memcpy(&value, data_of(t) + relocations[i], 8);
		if (value > call.area)
			goto nonsense;
		value += data;
		memcpy(data_of(t) + relocations[i], &value, 8);
	}
	session_accept(session, frame);
	pthread_mutex_lock(&h->lock);
	t->sequence = call.sequence; /* with its state: nobody finds a call that was taken and is not under way */
	int stays = t->quick && !session_buffered(session);
	start(h, t);
	pthread_mutex_unlock(&h->lock);
	look_on(h, t, stays);
	return 0;
nonsense:
	session_broken(session, "a call that cannot be");
	return -1;
}
