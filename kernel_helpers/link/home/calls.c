/* CALLs of a guest, taken from the link: checked, and put into the slots of the stub's resident loops.
 * Nothing here knows a call: sizes and pointers come with the CALL, and every one of them is checked against the slot. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "link/home/threads/parts.h"

#define PLACE_LIMIT (8u * STUB_PAGE)

static int is_effect(const struct effect *effect)
{
	return effect->kind <= EFFECT_CLOSE && (effect->kind == EFFECT_NONE || effect->descriptor >= 0);
}

static void start(struct home *h, struct home_thread *t)
{
	uint64_t end = t->call.place + t->call.place_length;
	int place = t->call.place_argument < NO_PLACE && t->call.place_length && !h->places_held && t->call.place_length <= PLACE_LIMIT &&
	            end > t->call.place && (end <= h->stub - STUB_PAGE || t->call.place >= h->stub + size(h));
	t->placing = place ? 0 : PLACED;
	if (!place)
		t->call.place_length = 0;
	t->fails = home_take_failure(h, &t->call);
	t->signalling = home_signalling(h, t);
	t->resuming = home_resumes(t);
	if (t->rest.done && !home_has_rest(t))
		t->rest.done = 0;       /* it makes another call: that one is over */
	int64_t limit = home_patience(h, t);
	t->deadline = !limit ? 0 : t->resuming && t->resumable_deadline ? t->resumable_deadline : monotonic_ns() + limit;
	home_forget(t);
	home_note_end(h, t);
	int class = link_class(t->call.number, t->call.arguments);
	if (class == CLASS_RIGHTS || class == CLASS_EXECUTE)
		h->scope = 0; /* others may see other names */
	t->state = BUSY;
	t->begun = __builtin_ia32_rdtsc();
	t->waits = home_settles(t);
	if (t->waits) /* somebody holds its thread up: who answers launches the call when that is over */
		__atomic_store_n(&t->slot->watched, WATCHED_AT_CONTROL, __ATOMIC_SEQ_CST);
	else
		home_launch(h, t, WATCHED_NOT);
}

/* Whether what a CALL says of itself can be. */
static int can_be(const struct home_thread *t, const struct call *c, const struct frame *frame)
{
	if (c->relocations > RELOCATIONS_LIMIT || c->outs > OUTS_LIMIT || c->image > c->area || c->area > SLOT_DATA ||
	    (c->offsets & ~BLOCKS_ALL) >> 6 || !link_forwardable(c->number) || c->sequence <= t->sequence ||
	    c->flags & ~(CALL_CARRIES | CALL_NAMES | CALL_WRITES) || !is_effect(&c->effect) ||
	    frame->length != sizeof *c + c->relocations * 4ull + c->outs * sizeof(struct out) + c->image)
		return 0;
	for (int i = 0; i < 6; i++)
		if (c->offsets >> i & 1 && c->arguments[i] > c->area)
			return 0;
	return c->place_argument == NO_PLACE || (c->place_argument < NO_PLACE && c->offsets >> c->place_argument & 1 &&
	                                         c->place_length <= c->area - c->arguments[c->place_argument]);
}

/* Whether each range that the call writes lies in its data area. */
static int outs_can_be(const struct home_thread *t)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < t->call.outs; i++) {
		const struct out *out = &t->outs[i];
		if (out->offset > t->call.area || out->length > t->call.area - out->offset)
			return 0;
		if (out->rule == OUT_MESSAGE && (t->call.area < 4 || out->add > t->call.area - 4))
			return 0;
		total += out->length;
	}
	return total <= SLOT_DATA;
}

/* Offsets in the image become addresses in the stub. Whether all lie in the data area. */
static int relocate(struct home *h, struct home_thread *t, const uint32_t *relocations)
{
	uint64_t data = data_in_stub(h, t);
	for (uint32_t i = 0; i < t->call.relocations; i++) {
		uint64_t value;
		if (t->call.image < 8 || relocations[i] > t->call.image - 8)
			return 0;
		memcpy(&value, data_of(t) + relocations[i], 8);
		if (value > t->call.area)
			return 0;
		value += data;
		memcpy(data_of(t) + relocations[i], &value, 8);
	}
	return 1;
}

/* A thread that calls has had its last answer. One side that never says so would have the other keep all answers. */
static int is_early(struct home *h, const struct home_thread *t, const struct frame *frame)
{
	pthread_mutex_lock(&h->lock);
	int is = t->state == BUSY || frame->acknowledged < t->answered;
	pthread_mutex_unlock(&h->lock);
	return is;
}

static int nonsense(struct session *session)
{
	session_broken(session, "a call that cannot be");
	return -1;
}

/* An effect of a thread that makes no call: what comes after it comes after it is made, unless somebody holds the thread up. */
static int take_effect(struct home *h, struct home_thread *t, struct session *session, const struct frame *frame)
{
	struct effect effect;
	if (frame->length != sizeof effect || session_read(session, &effect, sizeof effect) || !is_effect(&effect) || is_early(h, t, frame))
		return nonsense(session);
	if (!home_await_settled(h, t)) {
		session_broken(session, "what was done before is not done at home yet");
		return -1;
	}
	session_accept(session, frame);
	pthread_mutex_lock(&h->lock);
	home_launch_effect(t, &effect, WATCHED_HERE);
	pthread_mutex_unlock(&h->lock);
	home_await_settled(h, t);
	return 0;
}

/* The image of a CALL is read straight into the slot, which nobody else uses now. */
static int take_call(struct home *h, struct home_thread *t, struct session *session, const struct frame *frame)
{
	struct call call;
	uint32_t relocations[RELOCATIONS_LIMIT];
	if (frame->length < sizeof call || session_read(session, &call, sizeof call) || !can_be(t, &call, frame) || is_early(h, t, frame))
		return nonsense(session);
	if (home_lists(t) && !home_await_settled(h, t)) { /* the list is where the image comes */
		session_broken(session, "writes before it are not made at home yet");
		return -1;
	}
	t->call = call;
	if (session_read(session, relocations, call.relocations * 4) || session_read(session, t->outs, call.outs * sizeof(struct out)) ||
	    session_read(session, data_of(t), call.image))
		return -1;
	if (!outs_can_be(t) || !relocate(h, t, relocations))
		return nonsense(session);
	session_accept(session, frame);
	pthread_mutex_lock(&h->lock);
	t->sequence = call.sequence; /* with its state: nobody finds a call that was taken and is not under way */
	int stays = t->quick && !session_buffered(session);
	start(h, t);
	pthread_mutex_unlock(&h->lock);
	home_stay_with(h, t, stays);
	return 0;
}

static int take_abandon(struct home *h, struct home_thread *t, struct session *session, const struct frame *frame)
{
	if (frame->length)
		return nonsense(session);
	session_accept(session, frame);
	pthread_mutex_lock(&h->lock);
	home_forget(t);
	t->rest.done = 0;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

int home_take_call(void *owner, struct session *session, const struct frame *frame)
{
	struct home *h = owner;
	struct home_thread *t = home_thread_of(h, frame->tid);
	if (frame->kind != FRAME_CALL && frame->kind != FRAME_ABANDON && frame->kind != FRAME_EFFECT && frame->kind != FRAME_AHEAD)
		return nonsense(session);
	if (!t && home_is_gone(h, frame->tid)) {
		if (session_skip(session, frame->length)) /* killed here, which they have not heard there: nobody waits for a reply */
			return -1;
		session_accept(session, frame);
		return 0;
	}
	if (!t)
		return nonsense(session);
	return frame->kind == FRAME_CALL     ? take_call(h, t, session, frame)
	       : frame->kind == FRAME_EFFECT ? take_effect(h, t, session, frame)
	       : frame->kind == FRAME_AHEAD  ? is_early(h, t, frame) ? nonsense(session) : home_take_ahead(h, t, session, frame)
	                                     : take_abandon(h, t, session, frame);
}

/* Whether no thread is in the midst of writes, which nobody else can make in its place. */
int home_has_written(struct home *h)
{
	for (unsigned i = 0; i < h->count; i++)
		if (home_settles(h->threads[i]) && home_lists(h->threads[i]))
			return 0;
	return 1;
}

/* A thread of the stub, which is stopped between two calls, has still to make an effect alone: the caller makes it in its place. Whether
 * there was one. */
int home_take_effect(struct home *h, int tid, struct effect *effect)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return 0;
	pthread_mutex_lock(&h->lock);
	struct slot *slot = t->slot;
	*effect = (struct effect){slot->effect, slot->effect_descriptor, slot->effect_position};
	slot->effect = EFFECT_NONE;
	pthread_mutex_unlock(&h->lock);
	return effect->kind != EFFECT_NONE;
}
