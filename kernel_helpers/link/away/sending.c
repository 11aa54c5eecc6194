/* Calls on their way home. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>

/* BLOCKS_*: what a guest's thread blocks. */
static uint32_t blocks(int tid)
{
	struct signal_sets s;
	if (guest_signals(tid, &s))
		return 0;
	return BLOCKS_KNOWN | (s.blocked >> (SIGTTIN - 1) & 1 ? BLOCKS_TTIN : 0) | (s.blocked >> (SIGTTOU - 1) & 1 ? BLOCKS_TTOU : 0);
}

/* Whether a marshalled call opens what shows the guest itself. */
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
	carried_settle(a->carried, &t->m.call.effect);
	away_forbid_map(a);
	for (int i = 0; i < REMEMBERED_ROWS; i++)
		if (remembered_rows[i].wants && remembered_rows[i].wants(a, t))
			t->m.call.flags |= remembered_rows[i].asks;
	for (int i = 0; i < REMEMBERED_ROWS; i++)
		if (remembered_rows[i].leaves)
			remembered_rows[i].leaves(a, t);
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

int away_forward_caught(struct away *a, struct guest_thread *t, const uint64_t arguments[6], const struct call_entry *entry)
{
	int sent = 0;
	t->renamed = 0;
	t->m.watched = __atomic_load_n(&a->watched, __ATOMIC_ACQUIRE);
	if (!marshal_call(&t->m, t->host_tid, entry, t->m.call.number, arguments) && !opens_own_proc(a, t, entry) && !differs(t)) {
		if (t->asked)
			t->m.call.offsets |= blocks(t->host_tid);
		t->asked = 0;
		if (t->row->adds)
			t->row->adds(a, t);
		/* Parked first, then asked: a signal that comes meanwhile finds the call parked. */
		pthread_mutex_lock(&a->lock);
		t->state = SENT_HOME;
		pthread_mutex_unlock(&a->lock);
		sent = !away_send(a, t);
	}
	if (sent && away_lets_in(t)) {
		struct event event = {.kind = EVENT_LETS_IN, .tid = t->tid, .value = t->m.call.number};
		session_event(a->session, &event, "");
	}
	return sent;
}

/* Sends a call home that Python has been handed, with the arguments that it has; `path`: what it shall name in place of its own, or
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
	t->wants = names_want(number, arguments);
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
