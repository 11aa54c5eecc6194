/* Calls of the guest: takes the notifications of its filter, and sends those home that are home's. The listener does nothing else between two
 * receptions but marshal and send; replies.c, in the session's receiver, answers. */
#define _GNU_SOURCE
#include "link/away/parts.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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
		const struct class_row *class = away_class(entry->class);
		if (class->adds)
			class->adds(a, t);
		/* Parked first, then asked: a signal that comes meanwhile finds the call parked. */
		pthread_mutex_lock(&a->lock);
		t->state = SENT_HOME;
		pthread_mutex_unlock(&a->lock);
		sent = !away_send(a, t);
	}
	if (!sent) /* too much for a slot, a look at itself, or a mask that home does not know */
		hand_over(a, t, n);
	else if (away_lets_in(t)) {
		struct event event = {.kind = EVENT_LETS_IN, .tid = t->tid, .value = n->data.nr};
		session_event(a->session, &event, "");
	}
}

/* Sends a call home that Python has been handed, with the arguments that it was told; `path`: what it shall name in place of its own, or
 * NULL. 0, -ENOENT: none is parked, or why it cannot be sent (-E2BIG, -ENOMEM): it stays parked. */
int away_forward(struct away *a, int tid, int number, const uint64_t arguments[6], const char *path)
{
	struct guest_thread *t = away_by_tid(a, tid);
	pthread_mutex_lock(&a->lock);
	int parked = t && t->state == WAITS_FOR_PYTHON && t->m.call.number == number;
	pthread_mutex_unlock(&a->lock);
	if (!parked)
		return -ENOENT;
	const struct call_entry *entry = link_entry(number, arguments);
	int error = marshal_call(&t->m, t->host_tid, entry, number, arguments);
	if (!error && path)
		error = marshal_rename(&t->m, entry, path);
	if (error)
		return error;
	t->renamed = path != NULL;
	pthread_mutex_lock(&a->lock);
	t->state = SENT_HOME;
	pthread_mutex_unlock(&a->lock);
	if ((error = away_send(a, t))) {
		pthread_mutex_lock(&a->lock);
		t->state = WAITS_FOR_PYTHON;
		pthread_mutex_unlock(&a->lock);
	}
	return error;
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
	__atomic_store_n(&t->part, 0, __ATOMIC_RELAXED);
	t->m.call.number = n->data.nr;
	if (__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) && away_takes_directly(a, t, n, arguments))
		return;
	if (class->is_for_python && class->is_for_python(t, n, arguments))
		hand_over(a, t, n);
	else
		forward(a, t, n, entry); /* an exit too: the stub's thread ends, and Python lets the guest's do so */
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
