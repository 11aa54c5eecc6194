/* Calls that have ended, or were ended by a move: their replies, made of the slots and sent. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include "link/home/parts.h"

#define RELEASE_AT (4u << 20)   /* bytes: a data area that grew beyond is given back to the system after the call */
#define ERESTARTNOINTR 513
#define QUICK_CYCLES 500000u

static uint32_t out_length(const struct home_thread *t, const struct out *out, int64_t value, int suspended)
{
	int failed = value < 0 && value >= -4095;
	if (out->rule == OUT_ALWAYS)
		return out->length;
	if (failed || suspended)
		return 0;
	if (out->rule == OUT_FULL)
		return out->length;
	uint64_t length = (uint64_t)value * out->scale + out->add;
	if (out->rule == OUT_MESSAGE) {
		uint32_t got = 0;
		if (out->scale < value)
			memcpy(&got, data_of(t) + out->add, sizeof got);
		length = got;
	}
	return length < out->length ? length : out->length;
}

/* The REPLY to the thread's call, its bytes copied out of the slot, in one piece: so it is sealed as it is. Called with the lock held. */
static struct outgoing *make_reply(struct home *h, struct home_thread *t, int64_t value, uint32_t flags)
{
	uint32_t outs = t->call.outs, lengths[OUTS_LIMIT];
	if (t->placed) {
		struct iovec here = {home_place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
		process_vm_readv(h->stub_pid, &here, 1, &there, 1, 0);
	}
	size_t bytes = 0;
	for (uint32_t i = 0; i < outs; i++)
		bytes += lengths[i] = out_length(t, &t->outs[i], value, flags & REPLY_SUSPENDED);
	struct outgoing *o = outgoing_new(FRAME_REPLY, t->tid, sizeof(struct reply) + outs * 4 + bytes);
	if (!o)
		return NULL;
	struct reply *r = outgoing_head(o);
	*r = (struct reply){.sequence = t->call.sequence, .value = value, .flags = flags, .outs = outs};
	memcpy(r + 1, lengths, outs * 4);
	unsigned char *at = (unsigned char *)(r + 1) + outs * 4;
	for (uint32_t i = 0; i < outs; i++) {
		memcpy(at, data_of(t) + t->outs[i].offset, lengths[i]);
		at += lengths[i];
	}
	if (t->call.area > RELEASE_AT)
		madvise(data_of(t), SLOT_DATA, MADV_REMOVE);
	return o;
}

int home_finish(struct home *h, struct home_thread *t)
{
	struct outgoing *o = NULL;
	struct session *session = NULL;
	pthread_mutex_lock(&h->lock);
	int ended = t->state == BUSY && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request;
	if (ended && home_is_placing(t)) {
		home_launch(h, t, WATCHED_AT_CONTROL);
		ended = 0;
	}
	if (ended && t->signalling == RECEIVES)
		t->signalling = home_has_received(h, t) ? SIGNALS : SIGNALS_NOBODY;
	if (ended && t->signalling) {
		if (t->signalling == SIGNALS)
			eventfd_write(h->event_fd, 1);
		t->signalling = SIGNALLED;
		ended = 0;
	}
	if (ended) {
		t->quick = __builtin_ia32_rdtsc() - t->begun < QUICK_CYCLES;
		if (!t->slot->asks)
			home_add_children(h, t, t->slot->value);
		o = t->slot->asks ? make_reply(h, t, -ERESTARTNOINTR, REPLY_SUSPENDED | REPLY_ASKS) : make_reply(h, t, t->slot->value, 0);
	}
	if (o) {
		session = h->session;
		t->answered = session_queue(session, o);
		t->state = IDLE;
		h->answering++;
	}
	pthread_mutex_unlock(&h->lock);
	if (!o)
		return 0;
	session_send(session);
	pthread_mutex_lock(&h->lock);
	if (!--h->answering)
		pthread_cond_broadcast(&h->answered);
	pthread_mutex_unlock(&h->lock);
	return 1;
}

/* Answers calls that took longer than the receiver looked on. */
static void *finish_loop(void *argument)
{
	struct home *h = argument;
	pthread_setname_np(pthread_self(), "link-finish");
	for (;;) {
		uint32_t seen = __atomic_load_n(&h->control->completions, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&h->stopping, __ATOMIC_SEQ_CST))
			return NULL;
		unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
		for (unsigned i = 0; i < count; i++)
			if (__atomic_load_n(&h->threads[i]->slot->watched, __ATOMIC_SEQ_CST) == WATCHED_AT_CONTROL)
				home_finish(h, h->threads[i]);
		home_futex(&h->control->completions, FUTEX_WAIT, seen);
	}
}

int home_begin_finishing(struct home *h)
{
	return -pthread_create(&h->finisher, NULL, finish_loop, h);
}

void home_end_finishing(struct home *h)
{
	__atomic_store_n(&h->stopping, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&h->control->completions, 1, __ATOMIC_SEQ_CST);
	home_futex(&h->control->completions, FUTEX_WAKE, 1);
	pthread_join(h->finisher, NULL);
}

/* The guest has been told of what such a thread's call has sent. */
void home_told(struct home *h, int tid)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return;
	pthread_mutex_lock(&h->lock);
	t->signalling = SIGNALS_NOBODY;
	pthread_mutex_unlock(&h->lock);
	home_finish(h, t);
}

/* The thread was taken out of its call (ptrace) with a restart code: says so to the guest. The resident loop must be
 * begun anew afterwards. 0, -ENOENT: no call under way or it has ended. */
int home_suspend(struct home *h, int tid, int64_t code)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	struct outgoing *o = NULL;
	pthread_mutex_lock(&h->lock);
	if (t->state == BUSY && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) != t->slot->request) {
		uint64_t part = t->slot->written;
		o = part ? make_reply(h, t, part, REPLY_SUSPENDED | REPLY_PART) : make_reply(h, t, code, REPLY_SUSPENDED);
		__atomic_store_n(&t->slot->done, t->slot->request, __ATOMIC_RELAXED);
		t->state = IDLE;
		home_remember(t, code);
		if (part)
			home_note_rest(t, t->call.number, t->call.arguments, part);
	}
	if (o)
		t->answered = session_post(h->session, o, SEND_LATER);
	pthread_mutex_unlock(&h->lock);
	return o ? 0 : -ENOENT;
}
