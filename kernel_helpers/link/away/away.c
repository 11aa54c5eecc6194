/* The guest's side of the link: takes the notifications of its filter, has the calls executed at home, answers.
 * Two threads: the listener does nothing between two receptions but marshal and send; the session's receiver answers. */
#define _GNU_SOURCE
#include "link/away/away.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "process/guest_memory.h"
#include "inspection/guest_signals.h"

#define ERESTARTNOINTR 513

/* A thread's next call comes after the answer to its last one. The kernel sees to that, which ThreadSanitizer does not know. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#else
#define __tsan_acquire(address) ((void)(address))
#define __tsan_release(address) ((void)(address))
#endif

/* ENOENT is no error: the thread was killed meanwhile. */
void away_respond(struct away *a, uint64_t id, int64_t value, int native)
{
	struct seccomp_notif_resp response = {.id = id};
	if (native)
		response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	else if (value < 0 && value >= -4095)
		response.error = value;
	else
		response.val = value;
	__tsan_release(a);
	ioctl(a->listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

/* The notification stays pending until Python answers it or the thread dies. */
static void hand_over(struct away *a, struct guest_thread *t, const struct seccomp_notif *n)
{
	struct event event = {
		.kind = EVENT_GO_HOME_CALL, .tid = t ? t->tid : 0, .value = n->data.nr, .number = n->pid, .length = sizeof n->data.args};
	pthread_mutex_lock(&a->lock);
	if (t)
		t->state = WAITS_FOR_PYTHON;
	pthread_mutex_unlock(&a->lock);
	session_event(a->session, &event, n->data.args);
}

/* BLOCKS_*: what a guest's thread blocks. */
static uint32_t blocks(int tid)
{
	struct signal_sets s;
	if (guest_signals(tid, &s))
		return 0;
	return BLOCKS_TOLD | (s.blocked >> (SIGTTIN - 1) & 1 ? BLOCKS_TTIN : 0) | (s.blocked >> (SIGTTOU - 1) & 1 ? BLOCKS_TTOU : 0);
}

/* Whether a signal waits for the thread that its call lets in, which has a mask of its own. */
static int lets_in(const struct guest_thread *t)
{
	struct signal_sets s;
	return t->m.has_mask && !guest_signals(t->host_tid, &s) && (s.pending & ~t->m.signal_mask) != 0;
}

/* Whether such a signal has come before the time of a call was over that has ended by that. So it comes to ppoll() and pselect() with no
 * time to wait, too: they look for signals last. */
static int is_overtaken(const struct guest_thread *t, int64_t value)
{
	long number = t->m.call.number;
	int is_over = number == SYS_rt_sigtimedwait ? value == -EAGAIN : (number == SYS_ppoll || number == SYS_pselect6) && !value;
	return is_over && lets_in(t);
}

/* An interrupted pselect() writes its time alone, which is the last of its results. */
static void leave_sets(struct guest_thread *t)
{
	for (uint32_t i = 0; t->m.call.number == SYS_pselect6 && i < t->m.segments_count; i++)
		if (t->m.segments[i].out + 1 < t->m.call.outs)
			t->m.segments[i].length = 0;
}

/* Whether a marshalled call opens what tells of the guest itself. */
static int opens_own_proc(struct away *a, const struct guest_thread *t, const struct call_entry *entry)
{
	long number = t->m.call.number;
	if (number != SYS_openat && number != SYS_open && number != SYS_openat2)
		return 0;
	const char *path = marshal_path(&t->m, entry);
	uint32_t id;
	return path && own_proc_path(path, &id) && (!id || away_by_tid(a, id));
}

int away_send(struct away *a, struct guest_thread *t)
{
	t->m.call.sequence++;
	away_count_call(a, t);
	struct outgoing *o = marshal_frame(&t->m, t->tid);
	if (!o)
		return -ENOMEM;
	uint64_t number = session_queue(a->session, o);
	pthread_mutex_lock(&a->lock);
	t->asked_by = number;
	pthread_mutex_unlock(&a->lock);
	session_send(a->session);
	return 0;
}

/* A call to end: if the process does by that, its parent may wait for it, and be told. */
static void say_what_it_used(struct away *a, struct guest_thread *t)
{
	unsigned threads = 0;
	struct used used;
	for (unsigned i = 0; i < a->count; i++)
		threads += a->threads[i]->tid != 0;
	if (a->account && (threads == 1 || t->m.call.number == SYS_exit_group) && !account_used(a->account, 0, &used))
		marshal_attach(&t->m, &used, sizeof used);
}

/* Whether the mask of a call for its own time blocks other signals of those that wait at home than the thread does: there it does not. */
static int differs(const struct guest_thread *t)
{
	struct signal_sets s;
	if (!t->m.watched || !t->m.has_mask || t->m.call.number == SYS_rt_sigtimedwait || guest_signals(t->host_tid, &s))
		return 0;
	return ((s.blocked ^ t->m.signal_mask) & t->m.watched) != 0;
}

static void forward(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const struct call_entry *entry)
{
	uint64_t arguments[6];
	for (int i = 0; i < 6; i++)
		arguments[i] = n->data.args[i];
	int sent = 0;
	t->renamed = 0;
	t->m.watched = __atomic_load_n(&a->watched, __ATOMIC_ACQUIRE);
	if (!marshal_call(&t->m, t->host_tid, entry, n->data.nr, arguments) && !opens_own_proc(a, t, entry) && !differs(t)) {
		if (t->asked)
			t->m.call.offsets |= blocks(t->host_tid);
		t->asked = 0;
		if (entry->class == CLASS_END)
			say_what_it_used(a, t);
		/* Parked first, then asked: a signal that comes meanwhile finds the call parked. */
		pthread_mutex_lock(&a->lock);
		t->state = SENT_HOME;
		pthread_mutex_unlock(&a->lock);
		sent = !away_send(a, t);
	}
	if (!sent)                  /* too much for a slot, a look at itself, or a mask that home does not know */
		hand_over(a, t, n);
	else if (lets_in(t)) {
		struct event event = {.kind = EVENT_LETS_IN, .tid = t->tid, .value = n->data.nr};
		session_event(a->session, &event, "");
	}
}

static int limited_resource(long number, const uint64_t arguments[6])
{
	return arguments[number == SYS_prlimit64];
}

/* What a call wants to set: 0, or a negative errno. */
static int read_limit(struct guest_thread *t, long number, const uint64_t arguments[6])
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

/* Whether a thread is one of the process that these threads are of. */
static int is_beside(struct away *a, int host_tid)
{
	unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count; i++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%d/task/%d", host_tid, a->threads[i]->host_tid);
		if (a->threads[i]->host_tid && !access(path, F_OK))
			return 1;
	}
	return 0;
}

static void take(void *member, const struct seccomp_notif *n)
{
	struct away *a = member;
	uint64_t arguments[6];
	__tsan_acquire(a);
	for (int i = 0; i < 6; i++)
		arguments[i] = n->data.args[i];
	const struct call_entry *entry = link_entry(n->data.nr, arguments);
	struct guest_thread *t = away_by_host_tid(a, n->pid);
	if (entry->class == CLASS_LOCAL || entry->class == CLASS_REFUSE) {
		away_respond(a, n->id, -ENOSYS, entry->class == CLASS_LOCAL);
		return;
	}
	if (!t) {
		/* Nobody's any more: it was killed meanwhile, or is about to be, its process having ended at home. Its call is no reason for
		 * anybody else to go home. */
		if (is_beside(a, n->pid) && !ioctl(a->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &n->id))
			hand_over(a, NULL, n);
		return;
	}
	if (entry->class == CLASS_SUM && away_answer_clock(a, t, n, arguments))
		return;
	t->notification = n->id;
	t->class = entry->class;
	__atomic_store_n(&t->part, 0, __ATOMIC_RELAXED);
	t->m.call.number = n->data.nr;
	if (__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) && away_takes_directly(a, t, n, arguments))
		return;
	if (entry->class == CLASS_GO_HOME || entry->class == CLASS_EXECUTE || entry->class == CLASS_RIGHTS || entry->class == CLASS_WATCH ||
	    (entry->class == CLASS_BIND && read_limit(t, n->data.nr, arguments)))
		hand_over(a, t, n);
	else
		forward(a, t, n, entry);    /* an exit too: the stub's thread ends, and Python lets the guest's do so */
}

static int has(void *member, int tid)
{
	return away_by_host_tid(member, tid) != NULL;
}

static void ended(void *member)
{
	struct away *a = member;
	struct event event = {.kind = EVENT_GUEST_GONE};
	session_event(a->session, &event, "");
}

const struct hub_uses away_uses = {.has = has, .take = take, .ended = ended};

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
