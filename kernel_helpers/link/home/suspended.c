/* Calls that a move has interrupted, until they are made again.
 *
 * With a restart block the thread's kernel goes on with them (restart_syscall): that it is the same call has to be known. Of epoll_wait,
 * semtimedop and rt_sigtimedwait the kernel keeps nothing: their deadline is kept here, and the call made again gets what is left. So is
 * that of sleeps and poll(2) where the process's own seccomp filter does not let its kernel go on with them at home. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include "link/home/threads/parts.h"

#define TIMEOUT_LIMIT_S (1ll << 31)

/* Whether the time-out of the call is a number of milliseconds, or a struct timespec, relative to now. */
static int in_milliseconds(const struct call *c)
{
	return c->number == SYS_epoll_wait || c->number == SYS_epoll_pwait || c->number == SYS_poll;
}

static int is_sleep(const struct call *c)
{
	return c->number == SYS_nanosleep || c->number == SYS_clock_nanosleep;
}

static int in_timespec(const struct call *c)
{
	return c->number == SYS_epoll_pwait2 || c->number == SYS_semtimedop || c->number == SYS_rt_sigtimedwait || is_sleep(c);
}

static int timeout_argument(const struct call *c)
{
	switch (c->number) {
	case SYS_nanosleep:
		return 0;
	case SYS_clock_nanosleep:
	case SYS_poll:
	case SYS_rt_sigtimedwait:
		return 2;
	default:
		return 3;
	}
}

/* Whether its time passes as CLOCK_MONOTONIC does: not until a time, nor by a processor's clock. */
static int passes_evenly(const struct call *c)
{
	uint64_t clock = c->arguments[0];
	return c->number != SYS_clock_nanosleep ||
	       (!c->arguments[1] && clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID && clock <= CLOCK_TAI);
}

int64_t home_patience(struct home *h, struct home_thread *t)
{
	int argument = timeout_argument(&t->call);
	if ((is_sleep(&t->call) || t->call.number == SYS_poll) && !(h->keeps_time && passes_evenly(&t->call)))
		return 0;
	uint64_t value = t->call.arguments[argument];
	if (in_milliseconds(&t->call))
		return (int32_t)value > 0 ? (int32_t)value * 1000000ll : 0;
	if (!in_timespec(&t->call) || !(t->call.offsets >> argument & 1) || value + sizeof(struct timespec) > t->call.image)
		return 0;
	struct timespec limit;
	memcpy(&limit, data_of(t) + value, sizeof limit);
	if (limit.tv_sec < 0 || limit.tv_nsec < 0 || limit.tv_nsec >= 1000000000)
		return 0;
	return (limit.tv_sec < TIMEOUT_LIMIT_S ? limit.tv_sec : TIMEOUT_LIMIT_S) * 1000000000ll + limit.tv_nsec;
}

/* Milliseconds, not less than what is left. */
static int64_t milliseconds_to(int64_t deadline)
{
	int64_t left = deadline - monotonic_ns();
	return left > 0 ? (left + 999999) / 1000000 : 0;
}

/* A struct timespec goes behind what the call has in the slot. */
void home_shorten(struct home *h, struct home_thread *t)
{
	uint64_t free = (t->call.area + 7ull) & ~7ull;
	if (in_milliseconds(&t->call))
		t->slot->arguments[timeout_argument(&t->call)] = milliseconds_to(t->deadline);
	else if (free + sizeof(struct timespec) <= SLOT_DATA) {
		int64_t left = t->deadline - monotonic_ns();
		left = left > 0 ? left : 0;
		memcpy(data_of(t) + free, &(struct timespec){left / 1000000000, left % 1000000000}, sizeof(struct timespec));
		t->slot->arguments[timeout_argument(&t->call)] = data_in_stub(h, t) + free;
	}
}

/* The thread is stopped in its call, which a mere stop has ended with EINTR and which it is about to make again. Which argument of it is
 * another now, and (`value`) what; or -ENOENT. */
int home_again(struct home *h, int tid, uint64_t *value)
{
	struct home_thread *t = home_thread_of(h, tid);
	int argument = -ENOENT;
	pthread_mutex_lock(&h->lock);
	if (t && t->state == BUSY && t->deadline) {
		home_shorten(h, t);
		argument = timeout_argument(&t->call);
		*value = t->slot->arguments[argument];
	}
	pthread_mutex_unlock(&h->lock);
	return argument;
}

int home_resumes(struct home_thread *t)
{
	const struct call *a = &t->call, *b = &t->resumable;
	if (a->number != b->number || a->place_argument != b->place_argument || a->place != b->place)
		return 0;
	if (!t->resumable_image) {  /* it came from the process's registers: pointers are the guest's there, offsets or nothing here */
		const struct call_entry *entry = link_entry(b->number, b->arguments);
		for (int i = 0; i < entry->count; i++)
			if (entry->arguments[i].shape == SHAPE_NUMBER && a->arguments[i] != b->arguments[i])
				return 0;
		return 1;
	}
	return a->offsets == b->offsets && a->image == b->image && !memcmp(a->arguments, b->arguments, sizeof a->arguments) &&
	       !memcmp(t->resumable_image, data_of(t), a->image);
}

void home_forget(struct home_thread *t)
{
	t->resumable.number = -1;
	free(t->resumable_image);
	t->resumable_image = NULL;
	t->resumable_deadline = 0;
}

void home_remember(struct home_thread *t, int64_t code)
{
	if (code != -516 && !t->deadline)
		return;
	if (t->call.image && !(t->resumable_image = malloc(t->call.image)))
		return;
	/* With what the interrupted call has written: the guest gets that too, and sends it again. */
	if (t->call.image)
		memcpy(t->resumable_image, data_of(t), t->call.image);
	t->resumable = t->call;
	t->resumable_placed = t->placed;
	t->resumable_deadline = t->deadline;
}

/* The stub's thread was interrupted in this call (raw arguments of its registers) before it left: when the guest makes it
 * for the first time, the kernel goes on with it, or it is made to wait to its deadline, if that is not 0 (nanoseconds).
 * `place_argument`: which of them is its place. */
int home_expect(struct home *h, int tid, int number, const uint64_t arguments[6], unsigned place_argument, int64_t deadline)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t || place_argument > NO_PLACE || (place_argument == NO_PLACE && !deadline))
		return -ESRCH;
	pthread_mutex_lock(&h->lock);
	home_forget(t);
	t->resumable = (struct call){.number = number};
	memcpy(t->resumable.arguments, arguments, link_entry(number, arguments)->count * sizeof *arguments);
	t->resumable.place = place_argument < NO_PLACE ? arguments[place_argument] : 0;
	t->resumable.place_argument = t->resumable.place ? place_argument : NO_PLACE;
	t->resumable_deadline = deadline;
	t->resumable_placed = t->resumable.place_argument < NO_PLACE;
	pthread_mutex_unlock(&h->lock);
	return 0;
}

/* The number of the suspended call that restart_syscall(2) in this thread would go on with, at home as well; or -ENOENT. */
int home_resumable(struct home *h, int tid)
{
	struct home_thread *t = home_thread_of(h, tid);
	int number = -ENOENT;
	pthread_mutex_lock(&h->lock);
	if (t && t->resumable.number >= 0 && !t->resumable_deadline &&
	    (t->resumable_placed || t->resumable.place_argument == NO_PLACE || !t->resumable.image))
		number = t->resumable.number;
	pthread_mutex_unlock(&h->lock);
	return number;
}

/* Threads with a suspended call that can be gone on with, or that has a deadline, at most `room`. How many. */
unsigned home_suspended(struct home *h, uint32_t *tids, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	for (unsigned i = 0; i < h->count && n < room; i++)
		if (h->threads[i]->tid && h->threads[i]->resumable.number >= 0)
			tids[n++] = h->threads[i]->tid;
	pthread_mutex_unlock(&h->lock);
	return n;
}

/* Milliseconds that are left of the suspended call `number` of this thread, if it takes them in a register; or -ENOENT. */
int64_t home_milliseconds_left(struct home *h, int tid, int number)
{
	struct home_thread *t = home_thread_of(h, tid);
	int64_t left = -ENOENT;
	pthread_mutex_lock(&h->lock);
	if (t && t->resumable.number == number && t->resumable_deadline && in_milliseconds(&t->resumable))
		left = milliseconds_to(t->resumable_deadline);
	pthread_mutex_unlock(&h->lock);
	return left;
}

/* Until when the suspended call `number` of this thread is to wait (CLOCK_MONOTONIC, nanoseconds); 0: that is not kept here. */
int64_t home_deadline(struct home *h, int tid, int number)
{
	struct home_thread *t = home_thread_of(h, tid);
	int64_t deadline = 0;
	pthread_mutex_lock(&h->lock);
	if (t && t->resumable.number == number)
		deadline = t->resumable_deadline;
	pthread_mutex_unlock(&h->lock);
	return deadline;
}

/* The process's kernel may not go on with sleeps and polls: their deadlines are kept here. */
void home_keep_time(struct home *h)
{
	h->keeps_time = 1;
}
