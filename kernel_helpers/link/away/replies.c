/* Replies from home: what they hold goes to the guest, and its call ends. Runs in the receiver of the session. */
#define _GNU_SOURCE
#include "link/away/parts.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include "process/guest_memory.h"

#define ERESTARTNOINTR 513

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

static int limited_resource(long number, const uint64_t arguments[6])
{
	return arguments[number == SYS_prlimit64];
}

int away_read_limit(struct guest_thread *t, long number, const uint64_t arguments[6])
{
	return guest_read(t->host_tid, arguments[number == SYS_prlimit64 ? 2 : 1], &t->limit, sizeof t->limit);
}

/* Home has set it; the guest is not bound more loosely than its node binds us. */
static void bind_guest(struct guest_thread *t)
{
	struct rlimit ours, limit = t->limit;
	int resource = limited_resource(t->m.call.number, t->m.call.arguments);
	if (getrlimit(resource, &ours))
		return;
	limit.rlim_cur = limit.rlim_cur < ours.rlim_max ? limit.rlim_cur : ours.rlim_max;
	limit.rlim_max = limit.rlim_max < ours.rlim_max ? limit.rlim_max : ours.rlim_max;
	prlimit(t->host_tid, resource, &limit, NULL);
}

int away_take_reply(void *owner, struct session *session, const struct frame *frame)
{
	struct away *a = owner;
	struct reply r;
	uint32_t lengths[OUTS_LIMIT];
	struct guest_thread *t = away_by_tid(a, frame->tid);
	if (!t && frame->kind == FRAME_REPLY && away_is_gone(a, frame->tid)) {
		if (session_skip(session, frame->length))       /* killed in the midst of its call */
			return -1;
		session_accept(session, frame);
		return 0;
	}
	if (frame->kind != FRAME_REPLY || frame->length < sizeof r || !t || session_read(session, &r, sizeof r))
		goto nonsense;
	size_t left = frame->length - sizeof r;
	if (r.flags & REPLY_PART && (!(r.flags & REPLY_SUSPENDED) || r.value <= 0))
		goto nonsense;
	if (r.outs > t->m.call.outs || left < r.outs * 4 || session_read(session, lengths, r.outs * 4))
		goto nonsense;
	left -= r.outs * 4;
	size_t bytes = 0;
	for (uint32_t i = 0; i < t->m.call.outs; i++) {
		if (i >= r.outs)
			lengths[i] = 0;
		if (lengths[i] > t->m.outs[i].length)
			goto nonsense;
		bytes += lengths[i];
	}
	if (bytes != left)
		goto nonsense;
	if (bytes > a->results_room) {
		free(a->results);
		a->results = malloc(bytes);
		a->results_room = a->results ? bytes : 0;
		if (!a->results)
			goto nonsense;      /* the frame comes again on the next connection */
	}
	if (session_read(session, a->results, bytes))
		return -1;
	pthread_mutex_lock(&a->lock);
	int wanted = t->state == SENT_HOME && r.sequence == t->m.call.sequence;
	int has_call = frame->acknowledged >= t->asked_by;
	pthread_mutex_unlock(&a->lock);
	if (wanted && !has_call)    /* a reply acknowledges its call: of a peer that never does so we would keep all calls */
		goto nonsense;
	session_accept(session, frame);
	if (!wanted)
		return 0;
	away_count_reply(a, t);
	t->asked = (r.flags & REPLY_ASKS) != 0;     /* the call is made again, and says more */
	if (r.flags & REPLY_PART) {
		away_note_part(a, t, t->m.call.number, r.value);
		r.value = -ERESTARTNOINTR;
	}
	int64_t value = r.value;
	if (t->class == CLASS_SUM && value >= 0 && r.outs && !(r.flags & REPLY_SUSPENDED) && a->account)
		away_add_used(a, t, lengths[0]);
	if (t->class == CLASS_BIND && value >= 0 && !(r.flags & REPLY_SUSPENDED))
		bind_guest(t);
	int overtaken = !(r.flags & REPLY_SUSPENDED) && is_overtaken(t, value);
	if (overtaken)
		leave_sets(t);
	if (__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) && !(r.flags & REPLY_SUSPENDED))
		direct_answered(a->direct, &t->reads, t->m.call.number, value);
	if (marshal_results(&t->m, t->host_tid, lengths, a->results))
		value = -EFAULT;
	uint64_t id = t->notification;
	int native = t->class == CLASS_BOTH && value >= 0 && !(r.flags & REPLY_SUSPENDED);
	struct event event = {.kind = EVENT_SUSPENDED, .tid = t->tid, .number = t->m.call.number, .value = r.value};
	/* The path that it was given is not there for it: what it would see by its own, only home can tell. */
	int fails = t->renamed && (value == -EACCES || value == -ENOENT || value == -EPERM || value == -ENOTDIR);
	if (fails)
		event.kind = EVENT_GO_HOME_CALL, event.value = t->m.call.number;
	if (bytes > 1 << 20) {
		free(a->results);
		a->results = NULL;
		a->results_room = 0;
	}
	pthread_mutex_lock(&a->lock);
	t->state = r.flags & REPLY_SUSPENDED || fails || overtaken ? WAITS_FOR_PYTHON : IDLE;
	pthread_mutex_unlock(&a->lock);
	if (r.flags & REPLY_SUSPENDED || fails ||
	    overtaken)  /* a restart code may only be answered when something is pending for the thread */
		session_event(session, &event, "");
	else
		away_respond(a, id, value, native);
	return 0;
nonsense:
	session_broken(session, "a reply that fits no call");
	return -1;
}
