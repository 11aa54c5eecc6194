/* Calls about files that are direct (direct_files.c), and the threads that read them. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>

int away_takes_directly(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	struct direct_call call = {.listener = a->listener,
	                           .id = n->id,
	                           .session = a->session,
	                           .host_tid = t->host_tid,
	                           .number = n->data.nr,
	                           .arguments = arguments,
	                           .thread = &t->reads};
	struct direct_question about = {0};
	enum direct_verdict verdict = direct_take(a->direct, &call, &about);
	if (verdict == DIRECT_NOT)
		return 0;
	if (verdict == DIRECT_HERE) {
		carried_settle_alone(a->carried); /* what it reads here may be newer than what was carried */
		away_respond(a, n->id, 0, 1);
		return 1;
	}
	uint64_t question[4] = {about.descriptor, about.serial, verdict == DIRECT_WANTED_OWN, about.by_place};
	struct event event = {.kind = verdict == DIRECT_BUSY   ? EVENT_BUSY
	                              : verdict == DIRECT_OPEN ? EVENT_READS_OPEN
	                                                       : EVENT_READS,
	                      .tid = t->tid,
	                      .value = n->data.nr,
	                      .length = sizeof question};
	int waits = verdict == DIRECT_OPEN || verdict == DIRECT_BUSY;
	if (waits) {
		pthread_mutex_lock(&a->lock);
		t->state = WAITS_FOR_PYTHON;
		pthread_mutex_unlock(&a->lock);
	}
	session_event(a->session, &event, question);
	return waits;
}

void away_direct_left(struct away *a, int host_tid)
{
	struct guest_thread *t = away_by_host_tid(a, host_tid);
	if (t && a->direct)
		direct_leave(a->direct, &t->reads);
}

/* Threads (host tids) that may be reading by a number that others wait for; how many. */
unsigned away_direct_awaited(struct away *a, uint32_t *list, unsigned room)
{
	unsigned found = 0, count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count && found < room; i++)
		if (a->threads[i]->host_tid && direct_is_awaited(a->direct, &a->threads[i]->reads))
			list[found++] = a->threads[i]->host_tid;
	return found;
}

/* See direct_make(): for the parked call of this thread. */
int away_make_direct(struct away *a, int tid, int descriptor, uint32_t serial, int64_t position)
{
	uint64_t id;
	return away_notification_of(a, tid, &id) ? direct_make(a->direct, a->listener, id, descriptor, serial, position) : -ENOENT;
}
