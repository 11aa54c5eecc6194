/* The home side of the link: puts a guest's calls into the slots of the stub's resident loops and sends back what they
 * gave. It knows no call: sizes and pointers come with the CALL, and every one of them is checked against the slot.
 *
 * Places. When poll, nanosleep or clock_nanosleep is interrupted, the kernel keeps what is left of it in the thread's
 * restart block, user pointer included, for restart_syscall(2). Such a call can go on after a move: when the guest makes
 * it again, and even at home when the stub has become the process again. So that the pointer is right then as well, the
 * buffer is put at the guest's own address in the stub.
 * What is known of an interrupted call until then is in suspended.c, and rests.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "link/home/home.h"

#define RELEASE_AT (4u << 20)   /* bytes: a data area that grew beyond is given back to the system after the call */
#define RESTART_SYSCALL 219
#define ERESTARTNOINTR 513
#define PLACE_LIMIT (8u * PAGE)
#define PLACED UINT32_MAX
#define PAGE 4096u
#define WAIT_LIMIT_NS 200000
#define QUICK_CYCLES 500000u

static unsigned char *place_data(struct home_thread *t)
{
	return data_of(t) + t->call.arguments[t->call.place_argument];
}

static long futex(uint32_t *word, int operation, uint32_t value)
{
	return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

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
		struct iovec here = {place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
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

static void request(struct home_thread *t, uint32_t watched)
{
	struct slot *slot = t->slot;
	__atomic_store_n(&slot->watched, watched, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->request, slot->request + 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&slot->sleeping, __ATOMIC_SEQ_CST))
		futex(&slot->request, FUTEX_WAKE, 1);
}

/* A request for the call itself is still to come: what the loop does, or has done, is to map a page of the call's place. */
static int is_placing(const struct home_thread *t)
{
	return t->placing && t->placing != PLACED;
}

static int place_is_known(struct home *h, uint64_t page)
{
	for (unsigned i = 0; i < PLACES && i < h->places_count; i++)
		if (h->places[i] == page)
			return 1;
	return 0;
}

/* Has the loop map the next page of the call's place that is not known. 0: all are. */
static int map_place(struct home *h, struct home_thread *t, uint32_t watched)
{
	uint64_t first = t->call.place & ~(uint64_t)(PAGE - 1), end = t->call.place + t->call.place_length;
	for (; first + t->placing < end; t->placing += PAGE) {
		uint64_t page = first + t->placing;
		if (place_is_known(h, page))
			continue;
		h->places[h->places_count++ % PLACES] = page;   /* that something is there already is as good */
		t->placing += PAGE;
		t->slot->number = SYS_mmap;
		t->slot->blocked = t->slot->terminal = t->slot->written = 0;
		memcpy(t->slot->arguments,
		       (uint64_t[6]){page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0},
		       sizeof t->slot->arguments);
		request(t, watched);
		return 1;
	}
	t->placing = PLACED;
	return 0;
}

/* Whether a thread may be about to give the stub another memory, in which nothing has its place. */
static int executes(struct home *h)
{
	for (unsigned i = 0; i < h->count; i++)
		if (h->threads[i]->state == BUSY && link_class(h->threads[i]->call.number, h->threads[i]->call.arguments) == CLASS_EXECUTE)
			return 1;
	return 0;
}

/* Gives the call to the loop. Called with the lock held. */
static void launch(struct home *h, struct home_thread *t, uint32_t watched)
{
	struct slot *slot = t->slot;
	uint64_t data = data_in_stub(h, t);
	if (t->placing != PLACED && map_place(h, t, watched))
		return;
	t->placed = 0;
	if (t->call.place_argument < NO_PLACE && t->call.place_length && t->placing == PLACED && !executes(h)) {
		struct iovec here = {place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
		t->placed = process_vm_writev(h->stub_pid, &here, 1, &there, 1, 0) == (ssize_t)t->call.place_length;
	}
	slot->number = t->call.number;
	slot->written = 0;
	home_face_terminal(t);
	for (int i = 0; i < 6; i++)
		slot->arguments[i] = t->call.arguments[i] + (t->call.offsets >> i & 1 ? data : 0);
	if (t->placed)
		slot->arguments[t->call.place_argument] = t->call.place;
	if (home_has_rest(t))
		home_make_rest(h, t);
	else if (t->resuming && t->deadline)
		home_shorten(h, t);
	else if (t->resuming && t->placed == t->resumable_placed) {
		slot->number = RESTART_SYSCALL;
		memset(slot->arguments, 0, sizeof slot->arguments);
	}
	request(t, watched);
}

/* Sends the reply of a call that has ended, unless another thread did. Once the call is no longer BUSY its reply has its place among
 * the frames, before whatever is said to a guest that has nothing under way. */
static int finish(struct home *h, struct home_thread *t)
{
	struct outgoing *o = NULL;
	struct session *session = NULL;
	pthread_mutex_lock(&h->lock);
	int ended = t->state == BUSY && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request;
	if (ended && is_placing(t)) {
		launch(h, t, WATCHED_AT_CONTROL);
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
				finish(h, h->threads[i]);
		futex(&h->control->completions, FUTEX_WAIT, seen);
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
	futex(&h->control->completions, FUTEX_WAKE, 1);
	pthread_join(h->finisher, NULL);
}

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
	if (finish(h, t))
		count(&h->quick);
	follow(h, slot->processor);
}

static void start(struct home *h, struct home_thread *t)
{
	uint64_t end = t->call.place + t->call.place_length;
	int place = t->call.place_argument < NO_PLACE && t->call.place_length && !h->places_held && t->call.place_length <= PLACE_LIMIT &&
	            end > t->call.place && (end <= h->stub - PAGE || t->call.place >= h->stub + size(h));
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
	launch(h, t, WATCHED_NOT);
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
	                              !is_placing(t) && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request};
	pthread_mutex_unlock(&h->lock);
	return 0;
}

struct signaller {
	uint32_t tid, target;
};

/* Threads whose reply waits for home_told(), at most `room`, and which thread each has sent a signal to; 0: any. How many. */
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

/* The guest has been told of what such a thread's call has sent. */
void home_told(struct home *h, int tid)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return;
	pthread_mutex_lock(&h->lock);
	t->signalling = SIGNALS_NOBODY;
	pthread_mutex_unlock(&h->lock);
	finish(h, t);
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

/* While held, no new places are made; the ones in use: how many, page addresses. */
unsigned home_hold_places(struct home *h, int held, uint64_t *pages, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	h->places_held = held;
	for (unsigned i = 0; i < PLACES && i < h->places_count && n < room; i++)
		pages[n++] = h->places[i];
	pthread_mutex_unlock(&h->lock);
	return n;
}

uint64_t home_statistic(struct home *h, int which)
{
	return __atomic_load_n(which ? &h->quick : &h->calls, __ATOMIC_RELAXED);
}
