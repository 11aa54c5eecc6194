/* The beginning and the end of the home side, of its threads, and of the memory that we share with the stub. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "link/home/threads/parts.h"

#define THREADS_LIMIT 32768u

/* Maps the slots of `count` threads more, one behind the other: the first of them, or MAP_FAILED. */
static void *map_slots(struct home *h, unsigned count)
{
	uint64_t at = slot_offset(h->count);
	if (ftruncate(h->memory, slot_offset(h->count + count)))
		return MAP_FAILED;
	return mmap(NULL, (uint64_t)count * SLOT_STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, h->memory, at);
}

/* Makes the thread of the next slot. 0, or -ENOMEM. */
static int make_thread(struct home *h, int tid, void *slot)
{
	unsigned index = h->count;
	struct home_thread *t = calloc(1, sizeof *t);
	if (!t)
		return -ENOMEM;
	t->tid = tid, t->index = index, t->slot = slot, t->quick = 1, t->resumable.number = -1;
	/* The list has the threads before this one: the analyzer of gcc 12 takes it for overwritten by what is stored in a slot. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
	t->slot->control = h->stub;
	t->slot->spin = h->spin;
#pragma GCC diagnostic pop
	h->threads[index] = t;
	__atomic_store_n(&h->count, index + 1, __ATOMIC_RELEASE);
	return 0;
}

/* Makes slots and threads. 0, or a negative errno. */
static int make_threads(struct home *h, const int *tids, unsigned count)
{
	unsigned made = 0;
	if (!count)
		return 0;
	if (count > THREADS_LIMIT - h->count)
		return -EAGAIN;
	char *slots = map_slots(h, count);
	if (slots == MAP_FAILED)
		return -ENOMEM;
	while (made < count && !make_thread(h, tids[made], slots + (uint64_t)made * SLOT_STRIDE))
		made++;
	if (made < count)
		munmap(slots + (uint64_t)made * SLOT_STRIDE, (uint64_t)(count - made) * SLOT_STRIDE);
	return made < count ? -ENOMEM : 0;
}

static void free_threads(struct home *h)
{
	for (unsigned i = 0; i < h->count; i++) {
		home_forget(h->threads[i]);
		munmap(h->threads[i]->slot, SLOT_STRIDE);
		free(h->threads[i]);
	}
	if (h->control != MAP_FAILED)
		munmap(h->control, CONTROL_PAGE);
	if (h->pidfd >= 0)
		close(h->pidfd);
	free(h->threads);
	free(h);
}

static void recall(void *owner)
{
	watch_recall(&((struct home *)owner)->hearer);
}

/* event_fd: -1: it has no session before home_inherit(). */
struct home *home_new(const int *tids, unsigned count, int memory, int event_fd, int follows)
{
	struct home *h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	h->memory = memory;
	h->event_fd = event_fd;
	h->pidfd = -1;
	h->follows = follows;
	h->processor = -1;
	h->alarmed = 1;         /* by what it did before it left */
	h->threads = calloc(THREADS_LIMIT, sizeof *h->threads);
	h->control = ftruncate(memory, CONTROL_PAGE) ? MAP_FAILED : mmap(NULL, CONTROL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (!h->threads || h->control == MAP_FAILED)
		goto failed;
	if (make_threads(h, tids, count))
		goto failed;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->answered, NULL);
	if (event_fd >= 0) {
		h->session = session_new(home_take_call, h, h->event_fd);
		if (!h->session)
			goto failed;
		h->hearer.session = h->session;
		session_set_before(h->session, recall);
	}
	if (home_begin_finishing(h)) {
		if (h->session)
			session_free(h->session);
		goto failed;
	}
	return h;
failed:
	free_threads(h);
	return NULL;
}

/* A slot for a thread that is about to be born, which home_name_thread() gives its tid: its index, or a negative errno. One whose
 * thread has ended is used again. */
int home_add_thread(struct home *h)
{
	for (unsigned i = 0; i < h->count; i++)
		if (!h->threads[i]->tid)
			return i;
	int error = make_threads(h, &(int){0}, 1);
	return error ? error : (int)h->count - 1;
}

/* 0: it has ended. */
void home_name_thread(struct home *h, unsigned index, int tid)
{
	struct home_thread *t = h->threads[index];
	pthread_mutex_lock(&h->lock);
	home_forget(t);
	t->state = IDLE;
	t->sequence = t->answered = 0;
	t->placed = 0;
	t->rest.done = 0;
	t->settles = t->waits = 0;
	t->slot->keeps = t->slot->effect = 0;
	t->signalling = SIGNALS_NOBODY;
	__atomic_store_n(&t->slot->done, t->slot->request, __ATOMIC_RELAXED);
	__atomic_store_n(&t->slot->sleeping, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&t->slot->watched, 0, __ATOMIC_RELAXED);
	if (tid || t->tid)
		t->former = tid ? 0 : t->tid;
	t->tid = tid;
	pthread_mutex_unlock(&h->lock);
}

/* Files may be mapped aside in the stub from that address on. Before the first connection. */
void home_map_aside(struct home *h, uint64_t from)
{
	h->asides.next = from;
}

/* What was mapped there since the last time; how many. `next`: where the next one would go. */
unsigned home_take_asides(struct home *h, struct aside *list, unsigned room, uint64_t *next)
{
	unsigned count = aside_take(&h->asides, list, room);
	*next = h->asides.next;
	return count;
}

/* See aside_know(). */
int home_know_file(struct home *h, int descriptor, uint64_t key)
{
	return aside_know(&h->asides, descriptor, key);
}

/* No reply carries answers. Before the first connection. */
void home_carry_not(struct home *h)
{
	h->carry_not = 1;
}

/* No write runs ahead. Before the first connection. */
void home_ahead_not(struct home *h)
{
	h->ahead_not = 1;
}

/* No reply says anything about names. Before the first connection. */
void home_remember_not(struct home *h)
{
	h->remember_not = 1;
}

/* Where the stub has the memory. To be said before the first connection. */
void home_set_stub(struct home *h, int pid, uint64_t address, uint32_t spin)
{
	if (h->pidfd >= 0 && pid != h->stub_pid) {
		close(h->pidfd);
		h->pidfd = -1;
	}
	h->stub_pid = pid;
	h->stub = address;
	h->spin = spin;
	for (unsigned i = 0; i < h->count; i++) {
		h->threads[i]->slot->control = address;
		h->threads[i]->slot->spin = spin;
	}
}

/* A session with another remote, after a hop: numbers begin anew; a suspended call is remembered. */
int home_renew(struct home *h)
{
	struct session *fresh = session_new(home_take_call, h, h->event_fd);
	if (!fresh)
		return -ENOMEM;
	struct session *old = h->session;
	session_set_before(fresh, recall);
	session_detach(old);        /* nobody waits in it for long then */
	pthread_mutex_lock(&h->lock);
	h->session = fresh;
	watch_renew(&h->hearer, fresh);
	h->scope = 0;
	while (h->answering)
		pthread_cond_wait(&h->answered, &h->lock);
	for (unsigned i = 0; i < h->count; i++)
		h->threads[i]->sequence = h->threads[i]->answered = 0;
	pthread_mutex_unlock(&h->lock);
	session_free(old);
	return 0;
}

/* It has the session of another program of the same process from here on, whose threads have ended. */
void home_inherit(struct home *h, struct home *old)
{
	watch_renew(&old->hearer, NULL);
	h->session = old->session;
	h->event_fd = old->event_fd;
	h->hearer.session = h->session;
	session_hand_over(h->session, h);
	pthread_mutex_lock(&old->lock);
	old->session = NULL;
	while (old->answering)
		pthread_cond_wait(&old->answered, &old->lock);
	pthread_mutex_unlock(&old->lock);
}

void home_free(struct home *h)
{
	if (h->session)
		session_detach(h->session); /* nobody waits in it for long then */
	watch_renew(&h->hearer, NULL);
	home_end_finishing(h);
	if (h->session)
		session_free(h->session);
	free_threads(h);
}
