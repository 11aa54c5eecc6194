/* Calls of the guest: takes the notifications of its filter, and sends those home that are home's. The listener does nothing else between two
 * receptions but marshal and send; replies.c, in the session's receiver, answers. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The kernel's type for them is another one. */
static void copy_arguments(const struct seccomp_notif *n, uint64_t arguments[6])
{
	for (int i = 0; i < 6; i++)
		arguments[i] = n->data.args[i];
}

/* The notification stays pending until Python answers it or the thread dies. */
static void hand_over(struct away *a, struct guest_thread *t, const struct seccomp_notif *n)
{
	away_forbid_map(a);
	struct event event = {
		.kind = EVENT_GO_HOME_CALL, .tid = t ? t->tid : 0, .value = n->data.nr, .number = n->pid, .length = sizeof n->data.args};
	uint64_t arguments[6];
	copy_arguments(n, arguments);
	if (t)
		names_leave(&a->names, n->data.nr, t->class);
	carried_leave(a->carried, n->data.nr, arguments);
	carried_settle_alone(a->carried); /* whatever Python says to home comes after it */
	pthread_mutex_lock(&a->lock);
	if (t)
		t->state = WAITS_FOR_PYTHON;
	pthread_mutex_unlock(&a->lock);
	session_event(a->session, &event, n->data.args);
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

/* Whether the call is answered by what the node remembers. */
static int is_remembered(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	enum remembered_answer answer = ANSWERED_NOT;
	int64_t value;
	for (int i = 0; i < REMEMBERED_ROWS && !answer; i++)
		answer = remembered_rows[i].answers(a, t, n, arguments, &value);
	if (answer == ANSWERED || answer == ANSWERED_FROM_OPEN) {
		away_add(&a->opens, answer == ANSWERED_FROM_OPEN);
		away_respond(a, n->id, value, 0);
	}
	return answer != ANSWERED_NOT;
}

/* Whether home or this node would read or write memory by it that may be forbidden to the thread by its protection key. */
static int points_to_keyed(struct away *a, const struct guest_thread *t, const struct call_entry *entry, const uint64_t arguments[6])
{
	for (int i = 0; i < entry->count; i++)
		if (entry->arguments[i].shape != SHAPE_NUMBER && guest_room_is_keyed(a->room, t->host_tid, arguments[i], 1))
			return 1;
	return 0;
}

static void take(void *member, const struct seccomp_notif *n)
{
	struct away *a = member;
	uint64_t arguments[6];
	__tsan_acquire(a);
	copy_arguments(n, arguments);
	const struct call_entry *entry = link_entry(n->data.nr, arguments);
	const struct class_row *class = away_class(entry->class);
	struct guest_thread *t = away_by_host_tid(a, n->pid);
	if (class->answers && (t || class->is_anybodys) && class->answers(a, t, n, arguments))
		return;
	if (!t) {
		/* Nobody's any more: it was killed meanwhile, or is about to be, its process having ended at home. Its call is no reason for
		 * anybody else to go home. */
		if (is_beside(a, n->pid) && !ioctl(a->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &n->id))
			hand_over(a, NULL, n);
		return;
	}
	t->notification = n->id;
	t->class = entry->class;
	t->row = class;
	__atomic_store_n(&t->part, 0, __ATOMIC_RELAXED);
	t->m.call.number = n->data.nr;
	if (guest_room_may_have_keys(a->room) && points_to_keyed(a, t, entry, arguments)) {
		hand_over(a, t, n); /* home's kernel decides */
		return;
	}
	if (away_may_map(a, n)) {
		away_respond(a, n->id, 0, 1);
		return;
	}
	if (is_remembered(a, t, n, arguments))
		return;
	/* An exit goes home, too: the stub's thread ends, and Python lets the guest's do so. Not sent: too much for a slot, a look at itself, or
	 * a mask that home does not know. */
	if ((class->is_for_python && class->is_for_python(t, n, arguments)) || !away_forward_caught(a, t, arguments, entry))
		hand_over(a, t, n);
}

static int has(void *member, int tid)
{
	return away_by_host_tid(member, tid) != NULL;
}

static void ended(void *member)
{
	struct away *a = member;
	struct event event = {.kind = EVENT_GUEST_GONE};
	struct session *session = __atomic_load_n(&a->session, __ATOMIC_SEQ_CST);
	if (session)
		session_event(session, &event, "");
}

const struct listener_uses away_uses = {.has = has, .take = take, .ended = ended};
