/* Calls that have ended, or were ended by a move: their replies, made of the slots and sent. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include "link/home/files/carry.h"
#include "link/home/files/names.h"
#include "link/home/threads/parts.h"
#include "link/paths.h"

#define RELEASE_AT (4u << 20)   /* bytes: a data area that grew beyond is given back to the system after the call */
#define ERESTARTNOINTR 513
#define QUICK_CYCLES 500000u

/* What a reply has besides the results of its call. */
struct addition {
	uint32_t flag; /* a reply_flag; 0: nothing */
	void *body;
	size_t size;
	uint64_t as_of; /* REPLY_CARRIES: number of the last frame before it was gathered */
};

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

/* The REPLY to the thread's call, its bytes copied out of the slot, in one piece: so it is encrypted as it is. Called with the lock held. */
static struct outgoing *make_reply(struct home *h, struct home_thread *t, int64_t value, uint32_t flags, const struct addition *added)
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
	*r = (struct reply){.sequence = t->call.sequence, .value = value, .flags = flags | (added ? added->flag : 0), .outs = outs};
	if (added && added->flag)
		outgoing_body(o, added->body, added->size);
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

/* Whether the thread's call has ended and is to be answered now; what comes before its answer is seen to. With the lock held. */
static int has_ended(struct home *h, struct home_thread *t)
{
	if (!h->session || t->state != BUSY || t->carries || __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) != t->slot->request)
		return 0;
	if (home_is_preparing(t)) {
		t->waits = 0;
		home_launch(h, t, WATCHED_AT_CONTROL);
		return 0;
	}
	if (t->signalling == RECEIVES)
		t->signalling = home_has_received(h, t) ? SIGNALS : SIGNALS_NOBODY;
	if (!t->signalling)
		return 1;
	if (t->signalling == SIGNALS)
		eventfd_write(h->event_fd, 1);
	t->signalling = SIGNALLED;
	return 0;
}

/* The reply to a call that has ended has its place among the frames, and is to be sent; NULL: there is no memory for it. What is added is
 * given away. With the lock held. */
static struct session *answer(struct home *h, struct home_thread *t, struct addition *added)
{
	t->quick = __builtin_ia32_rdtsc() - t->begun < QUICK_CYCLES;
	if (!t->slot->asks)
		home_add_children(h, t, t->slot->value);
	int64_t value = t->slot->asks ? -ERESTARTNOINTR : t->fails ? -t->fails : t->slot->value;
	uint32_t flags = t->slot->asks ? REPLY_SUSPENDED | REPLY_ASKS : 0;
	struct session *session = h->session;
	struct outgoing *o = make_reply(h, t, value, flags, added);
	if (!o) {
		free(added->body);
		return NULL;
	}
	if (added->flag != REPLY_CARRIES)
		t->answered = session_queue(session, o);
	else if (!(t->answered = session_queue_after(session, o, added->as_of))) {
		/* The guest hears something from home before this, which may be newer than what is carried. */
		outgoing_free(o);
		*added = (struct addition){0};
		return answer(h, t, added);
	}
	t->state = IDLE;
	h->answering++;
	return session;
}

/* Whether the path of a call that has ended is worth sending what is known of: it is absent, or a directory, or the text of a link. */
static int is_worth_sending(const struct home_thread *t)
{
	int64_t value = t->slot->value;
	uint32_t mode;
	if (!(t->call.flags & CALL_NAMES) || value == -ENOENT)
		return (t->call.flags & CALL_NAMES) != 0;
	switch (t->call.number) {
	case SYS_stat:
	case SYS_lstat:
	case SYS_newfstatat:
		if (value || !t->call.outs || t->outs[0].length < offsetof(struct stat, st_mode) + sizeof mode)
			return 0;
		memcpy(&mode, data_of(t) + t->outs[0].offset + offsetof(struct stat, st_mode), sizeof mode);
		return S_ISDIR(mode);
	case SYS_readlink:
	case SYS_readlinkat:
		return value > 0 || value == -EINVAL;
	}
	return 0;
}

/* What goes with the reply to a call that has ended. Without the lock: the thread makes no other before it is answered. */
static void gather(struct home *h, struct home_thread *t, struct session *session, struct addition *added)
{
	int64_t value = t->slot->value;
	int follows;
	if (!h->carry_not && value >= 0 && carry_is_for(&t->call)) {
		added->as_of = session_last_queued(session);
		struct carried_answer *carried = carry_take(&h->pidfd, h->stub_pid, value, &h->asides, t->slot);
		if (carried)
			*added = (struct addition){REPLY_CARRIES, carried, sizeof *carried + carried->length, added->as_of};
		return;
	}
	if (t->call.flags & CALL_WRITES && value >= 0) {
		struct room_answer *room = malloc(sizeof *room);
		int opens = call_opens_to_write(t->call.number, t->call.arguments);
		int is = room && !h->ahead_not && !t->fails && (opens || value == (int64_t)t->call.arguments[2]) &&
		         carry_room(&h->pidfd, h->stub_pid, opens ? (int)value : (int)t->call.arguments[0], room);
		if (is)
			*added = (struct addition){REPLY_ROOM, room, sizeof *room, 0};
		else
			free(room);
		return;
	}
	const char *path = !h->remember_not && is_worth_sending(t) ? names_path(&t->call, data_of(t), &follows) : NULL;
	if (!path)
		return;
	if (!h->scope)
		h->scope = names_scope(h->stub_pid);
	added->body = names_take(&h->hearer, h->stub_pid, h->scope, path, follows, value, &added->size);
	added->flag = added->body ? REPLY_NAMES : 0;
}

int home_finish(struct home *h, struct home_thread *t)
{
	struct session *session = NULL;
	struct addition added = {0};
	pthread_mutex_lock(&h->lock);
	int ended = has_ended(h, t);
	if (ended && t->call.flags && !t->slot->asks) {
		t->carries = 1;
		session = h->session;
		h->answering++;
		pthread_mutex_unlock(&h->lock);
		gather(h, t, session, &added);
		pthread_mutex_lock(&h->lock);
		t->carries = 0;
		if (!--h->answering)
			pthread_cond_broadcast(&h->answered);
	}
	session = ended ? answer(h, t, &added) : NULL;
	pthread_mutex_unlock(&h->lock);
	if (!session)
		return 0;
	session_send(session);
	pthread_mutex_lock(&h->lock);
	if (!--h->answering)
		pthread_cond_broadcast(&h->answered);
	pthread_mutex_unlock(&h->lock);
	return 1;
}

/* Where processors are few, the loop does not spin; then the cheapest wake-up is that of a thread on the same processor
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

/* Most calls are quick, and one wake-up more costs more than they do. It spins, or where that has not paid sleeps until the end of the call;
 * what takes longer is left to the finisher. */
void home_stay_with(struct home *h, struct home_thread *t, int stays)
{
	struct slot *slot = t->slot;
	uint32_t wanted = slot->request;
	count(&h->calls);
	if (stays && spin_begins(&h->spinning)) {
		while (__atomic_load_n(&slot->done, __ATOMIC_ACQUIRE) != wanted && spin_goes_on(&h->spinning))
			;
		spin_ends(&h->spinning);
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

/* Answers calls that took longer than the receiver spun. */
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

/* The guest has got the signals that such a thread's call has sent. */
void home_signals_arrived(struct home *h, int tid)
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
		o = part ? make_reply(h, t, part, REPLY_SUSPENDED | REPLY_PART, NULL) : make_reply(h, t, code, REPLY_SUSPENDED, NULL);
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
