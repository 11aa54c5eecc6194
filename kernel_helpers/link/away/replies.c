/* Replies from home: what they hold goes to the guest, and its call ends. Runs in the receiver of the session. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include "process/guest_memory.h"

#define ERESTARTNOINTR 513
#define ADDITION_LIMIT (sizeof(struct carried_answer) + CARRIED_LIMIT)
#define RESULTS_KEPT (1u << 20) /* bytes of memory that is kept for the next reply */

/* Whether such a signal has come before the time of a call was over that has ended by that. So it comes to ppoll() and pselect() with no
 * time to wait, too: they look for signals last. */
static int is_overtaken(const struct guest_thread *t, int64_t value)
{
	long number = t->m.call.number;
	int is_over = number == SYS_rt_sigtimedwait ? value == -EAGAIN : (number == SYS_ppoll || number == SYS_pselect6) && !value;
	return is_over && away_lets_in(t);
}

/* An interrupted pselect() writes its time alone, which is the last of its results. */
static void leave_sets(struct guest_thread *t)
{
	for (uint32_t i = 0; t->m.call.number == SYS_pselect6 && i < t->m.segments_count; i++)
		if (t->m.segments[i].out + 1 < t->m.call.outs)
			t->m.segments[i].length = 0;
}

/* A REPLY as it came. */
struct incoming {
	struct reply reply;
	uint32_t lengths[OUTS_LIMIT];
	size_t bytes;
	const struct remembered_row *row; /* whose addition it has; NULL: it has none */
	struct addition added;
};

static int nonsense(struct session *session)
{
	session_broken(session, "a reply that fits no call");
	return -1;
}

/* Room for the receiver's results. */
static int has_room_for(struct away *a, size_t bytes)
{
	if (bytes > a->results_room) {
		free(a->results);
		a->results = malloc(bytes);
		a->results_room = a->results ? bytes : 0;
	}
	return bytes <= a->results_room;
}

static void give_up_room(struct away *a)
{
	free(a->results);
	a->results = NULL;
	a->results_room = 0;
}

/* Reads what a reply of `length` more bytes has besides its results. 0, or -1: the session is broken. */
static int read_addition(struct guest_thread *t, struct session *session, size_t length, struct incoming *in)
{
	const struct remembered_row *row = in->row;
	if (!(t->m.call.flags & row->asks) || (!row->is_of_errors && in->reply.value < 0) || !length || length > ADDITION_LIMIT)
		return nonsense(session);
	in->added = (struct addition){malloc(length), length};
	if (!in->added.bytes)
		return nonsense(session); /* it comes again */
	return session_read(session, in->added.bytes, length);
}

/* The row whose addition a reply has; NULL: it has none. */
static const struct remembered_row *row_of(const struct reply *r)
{
	for (int i = 0; i < REMEMBERED_ROWS; i++)
		if (r->flags & remembered_rows[i].brought_by)
			return &remembered_rows[i];
	return NULL;
}

/* Reads what fits the thread's call, the results into the receiver's memory. 0, or -1: the session is broken. */
static int read_reply(struct away *a, struct guest_thread *t, struct session *session, const struct frame *frame, struct incoming *in)
{
	struct reply *r = &in->reply;
	if (frame->kind != FRAME_REPLY || frame->length < sizeof *r || !t || session_read(session, r, sizeof *r))
		return nonsense(session);
	size_t left = frame->length - sizeof *r;
	if (r->flags & REPLY_PART && (!(r->flags & REPLY_SUSPENDED) || r->value <= 0))
		return nonsense(session);
	if (r->outs > t->m.call.outs || left < r->outs * 4 || session_read(session, in->lengths, r->outs * 4))
		return nonsense(session);
	left -= r->outs * 4;
	in->bytes = 0;
	for (uint32_t i = 0; i < t->m.call.outs; i++) {
		if (i >= r->outs)
			in->lengths[i] = 0;
		if (in->lengths[i] > t->m.outs[i].length)
			return nonsense(session);
		in->bytes += in->lengths[i];
	}
	in->row = row_of(r);
	if (in->row ? in->bytes > left : in->bytes != left)
		return nonsense(session);
	if (!has_room_for(a, in->bytes)) /* the frame comes again on the next connection */
		return nonsense(session);
	if (session_read(session, a->results, in->bytes))
		return -1;
	return in->row ? read_addition(t, session, left - in->bytes, in) : 0;
}

/* The frame counts as received. 1: it is the answer to the thread's call; 0: to none that it makes still; -1: the session is broken. */
static int accept_reply(struct away *a, struct guest_thread *t, struct session *session, const struct frame *frame, const struct reply *r)
{
	pthread_mutex_lock(&a->lock);
	int wanted = t->state == SENT_HOME && r->sequence == t->m.call.sequence;
	int has_call = frame->acknowledged >= t->asked_by;
	pthread_mutex_unlock(&a->lock);
	if (wanted && !has_call) /* a reply acknowledges its call: of a peer that never does so we would keep all calls */
		return nonsense(session);
	session_accept(session, frame);
	return wanted;
}

/* The call is over, or is for Python to deal with. */
static void settle(struct away *a, struct guest_thread *t, struct incoming *in)
{
	struct reply *r = &in->reply;
	const struct class_row *class = t->row;
	int suspended = (r->flags & REPLY_SUSPENDED) != 0;
	int64_t value = r->value;
	if (class->after && value >= 0 && !suspended)
		class->after(a, t, r->outs ? in->lengths[0] : 0);
	int overtaken = !suspended && is_overtaken(t, value);
	if (overtaken)
		leave_sets(t);
	if (__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) && !suspended)
		direct_answered(a->direct, &t->reads, t->m.call.number, value);
	if (marshal_results(&t->m, t->host_tid, in->lengths, a->results))
		value = -EFAULT;
	uint64_t id = t->notification;
	int native = class->is_made_here && value >= 0 && !suspended;
	struct event event = {.kind = EVENT_SUSPENDED, .tid = t->tid, .number = t->m.call.number, .value = r->value};
	/* The path that it was given is not there for it: what it would see by its own, only home knows. */
	int fails = t->renamed && (value == -EACCES || value == -ENOENT || value == -EPERM || value == -ENOTDIR);
	if (fails)
		event.kind = EVENT_GO_HOME_CALL, event.value = t->m.call.number;
	int for_python = suspended || fails || overtaken; /* a restart code may only be answered when something is pending for the thread */
	if (in->bytes > RESULTS_KEPT)
		give_up_room(a);
	pthread_mutex_lock(&a->lock);
	t->state = for_python ? WAITS_FOR_PYTHON : IDLE;
	pthread_mutex_unlock(&a->lock);
	if (for_python)
		session_event(a->session, &event, "");
	else
		away_respond(a, id, value, native);
}

/* What was sent about names, and has changed. */
static int take_recall(struct away *a, struct session *session, const struct frame *frame)
{
	size_t most = sizeof(struct recall) + RECALLED_LIMIT * sizeof(struct dependency);
	struct recall *r = frame->length <= most ? malloc(frame->length + 1) : NULL;
	int failed = !r || session_read(session, r, frame->length);
	if (!failed && names_recall(&a->names, r, frame->length))
		failed = nonsense(session);
	free(r);
	if (failed)
		return -1;
	session_accept(session, frame);
	return 0;
}

int away_take_reply(void *owner, struct session *session, const struct frame *frame)
{
	struct away *a = owner;
	struct incoming in;
	if (frame->kind == FRAME_RECALL)
		return take_recall(a, session, frame);
	struct guest_thread *t = away_by_tid(a, frame->tid);
	if (!t && frame->kind == FRAME_REPLY && away_is_gone(a, frame->tid)) {
		if (session_skip(session, frame->length)) /* killed in the midst of its call */
			return -1;
		session_accept(session, frame);
		return 0;
	}
	in.added.bytes = NULL;
	int is_its = read_reply(a, t, session, frame, &in) ? -1 : accept_reply(a, t, session, frame, &in.reply);
	if (is_its > 0 && in.row && !in.row->brings(a, t, frame, &in.reply, &in.added))
		is_its = nonsense(session);
	free(in.added.bytes);
	if (is_its <= 0)
		return is_its;
	for (int i = 0; i < REMEMBERED_ROWS; i++)
		if (remembered_rows[i].notes)
			remembered_rows[i].notes(a, t, &in.reply);
	away_count_reply(a, t);
	t->asked = (in.reply.flags & REPLY_ASKS) != 0; /* the call is made again, and says more */
	if (in.reply.flags & REPLY_PART) {
		away_note_part(a, t, t->m.call.number, in.reply.value);
		in.reply.value = -ERESTARTNOINTR;
	}
	settle(a, t, &in);
	return 0;
}
