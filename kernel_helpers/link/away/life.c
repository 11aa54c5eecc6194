/* The beginning and end of the guest's side of the link, and of its threads. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>
#include <stdlib.h>

/* Names that are known, and calls that were answered by them: of home's program. Calls that were answered by what opens had brought, and
 * mappings of files that are kept here: of the guest. */
struct remembered {
	uint64_t program, names, from_names, from_opens, mapped;
};

#define THREADS_LIMIT 32768u    /* entries; a place in the list is 8 bytes that are touched when it is used */

/* A thread that is here from now on; the entry of one that has ended is used again. 0, or a negative errno. */
int away_add_thread(struct away *a, int host_tid, int tid)
{
	struct guest_thread *t = away_by_tid(a, 0);
	if (t) {
		pthread_mutex_lock(&a->lock);
		t->state = IDLE;
		t->m.call.sequence = 0;
		t->calls = 1;
		t->process_clock.as_of = t->thread_clock.as_of = 0;
		t->tid = tid;
		t->former = 0;
		t->host_tid = host_tid;
		pthread_mutex_unlock(&a->lock);
		return 0;
	}
	if (a->count >= THREADS_LIMIT)
		return -EAGAIN;
	t = calloc(1, sizeof *t);
	if (!t)
		return -ENOMEM;
	t->host_tid = host_tid;
	t->tid = tid;
	t->calls = 1;
	t->m.room = a->room;
	a->threads[a->count] = t;
	__atomic_store_n(&a->count, a->count + 1, __ATOMIC_RELEASE);
	/* The list has it: the analyzer of gcc 12 forgets what was stored through a pointer when an atomic operation follows. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
	return 0;
#pragma GCC diagnostic pop
}

void away_remove_thread(struct away *a, int host_tid)
{
	struct guest_thread *t = away_by_host_tid(a, host_tid);
	if (!t)
		return;
	away_direct_left(a, host_tid);
	pthread_mutex_lock(&a->lock);
	t->state = IDLE;
	t->former = t->tid;
	t->host_tid = t->tid = 0;
	pthread_mutex_unlock(&a->lock);
}

static void free_away(struct away *a)
{
	if (a->session) {
		session_say_received(a->session);
		session_free(a->session);
	}
	carried_free(a->carried);
	names_free(&a->names);
	kept_files_release(a->kept);
	for (unsigned i = 0; i < a->count; i++) {
		marshal_free(&a->threads[i]->m);
		free(a->threads[i]);
	}
	free(a->threads);
	guest_room_free(a->room);
	free(a->results);
	free(a);
}

static int tick(void *owner)
{
	return carried_tick(((struct away *)owner)->carried);
}

static void before(void *owner)
{
	ahead_leave(((struct away *)owner)->carried);
}

/* taken: the session that it is to have, which is not its own before all has been made; NULL: a new one. */
static struct away *new_away(const int *host_tids, const int *tids, unsigned count, int event_fd, struct session *taken)
{
	struct away *a = calloc(1, sizeof *a);
	if (!a || !(a->room = guest_room_new()) || !(a->threads = calloc(THREADS_LIMIT, sizeof *a->threads))) {
		if (a)
			guest_room_free(a->room);
		free(a);
		return NULL;
	}
	a->frames = 1;
	pthread_mutex_init(&a->lock, NULL);
	int failed = 0;
	for (unsigned i = 0; i < count && !failed; i++)
		failed = away_add_thread(a, host_tids[i], tids[i]);
	if (!failed && !taken)
		a->session = session_new(away_take_reply, a, event_fd);
	struct session *session = taken ? taken : a->session;
	if (failed || !session || !(a->carried = carried_new(session))) {
		free_away(a);
		return NULL;
	}
	if (!taken) {
		session_set_tick(session, tick);
		session_set_before(session, before);
	}
	return a;
}

static struct away *with_listener(struct away *a, int listener)
{
	if (!a)
		return NULL;
	a->listening = listener_new(listener, &away_uses, a);
	if (a->listening) {
		a->listener = listener_descriptor(a->listening);
		if (!listener_start(a->listening))
			return a;
	}
	free_away(a);
	return NULL;
}

struct away *away_new(int listener, const int *host_tids, const int *tids, unsigned count, int event_fd)
{
	return with_listener(new_away(host_tids, tids, count, event_fd, NULL), listener);
}

/* Another program of the same process, whose thread stands still, in place of one that has ended: it has the session of that. */
struct away *away_heir(struct away *old, int listener, int host_tid, int tid)
{
	struct away *a = with_listener(new_away(&host_tid, &tid, 1, -1, old->session), listener);
	if (!a)
		return NULL;
	a->session = old->session;
	session_hand_over(a->session, a);
	__atomic_store_n(&old->session, NULL, __ATOMIC_SEQ_CST);
	return a;
}

/* Another process with the same filter, whose thread has not run yet. */
struct away *away_sibling(struct away *one, int host_tid, int tid, int event_fd)
{
	struct away *a = new_away(&host_tid, &tid, 1, event_fd, NULL);
	if (!a)
		return NULL;
	if (guest_room_may_have_keys(one->room))
		guest_room_keys_change(a->room);
	a->listening = one->listening;
	a->listener = one->listener;
	if (listener_join(a->listening, a)) {
		free_away(a);
		return NULL;
	}
	return a;
}

/* Before the first attach. */
void away_set_account(struct away *a, struct account *account)
{
	a->account = account;
}

/* Before the first attach. */
void away_set_direct(struct away *a, struct direct *direct)
{
	__atomic_store_n(&a->direct, direct, __ATOMIC_RELEASE);
}

/* The guest, which stands still, may map these files. */
void away_keep_files(struct away *a, struct kept_files *kept)
{
	if (!a->kept)
		a->kept = kept_files_share(kept);
}

/* What the guest, and others of its home's program, need not ask home for. */
void away_remembered(struct away *a, struct remembered *found)
{
	names_count(&a->names, &found->program, &found->names, &found->from_names);
	found->from_opens = __atomic_load_n(&a->opens, __ATOMIC_RELAXED);
	found->mapped = __atomic_load_n(&a->maps, __ATOMIC_RELAXED);
}

/* The guest has come with memory that has protection keys. */
void away_has_keys(struct away *a)
{
	guest_room_keys_change(a->room);
}

struct session *away_session(struct away *a)
{
	return a->session;
}

/* Stops taking notifications, those of siblings too; returns when the listener stands. Calls that were sent are still answered. */
void away_pause(struct away *a)
{
	if (!a->pause)
		listener_pause(a->listening);
	a->pause = 1;
	carried_settle_alone(a->carried);
}

void away_unpause(struct away *a)
{
	if (a->pause)
		listener_unpause(a->listening);
	a->pause = 0;
}

void away_free(struct away *a)
{
	away_unpause(a);
	listener_leave(a->listening, a);
	free_away(a);
}
