/* Calls given to the resident loops.
 *
 * Places. When poll, nanosleep or clock_nanosleep is interrupted, the kernel keeps what is left of it in the thread's
 * restart block, user pointer included, for restart_syscall(2). Such a call can go on after a move: when the guest makes
 * it again, and even at home when the stub has become the process again. So that the pointer is right then as well, the
 * buffer is put at the guest's own address in the stub.
 * What is known of an interrupted call until then is in suspended.c, and rests.c. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "link/home/files/carry.h"
#include "link/home/threads/parts.h"

#define RESTART_SYSCALL 219

static void request(struct home_thread *t, uint32_t watched)
{
	struct slot *slot = t->slot;
	__atomic_store_n(&slot->watched, watched, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->request, slot->request + 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&slot->sleeping, __ATOMIC_SEQ_CST))
		home_futex(&slot->request, FUTEX_WAKE, 1);
}

static int place_is_known(struct home *h, uint64_t page)
{
	for (unsigned i = 0; i < PLACES && i < h->places_count; i++)
		if (h->places[i] == page)
			return 1;
	return 0;
}

/* Has the loop map the next page of the call's place that is not known. 0: all are. */
static int map_place(struct home *h, struct home_thread *t, uint32_t watched)
{
	uint64_t first = t->call.place & ~(uint64_t)(STUB_PAGE - 1), end = t->call.place + t->call.place_length;
	for (; first + t->placing < end; t->placing += STUB_PAGE) {
		uint64_t page = first + t->placing;
		if (place_is_known(h, page))
			continue;
		h->places[h->places_count++ % PLACES] = page;   /* that something is there already is as good */
		t->placing += STUB_PAGE;
		t->slot->number = SYS_mmap;
		t->slot->blocked = t->slot->terminal = t->slot->written = 0;
		memcpy(t->slot->arguments,
		       (uint64_t[6]){page, STUB_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0},
		       sizeof t->slot->arguments);
		request(t, watched);
		return 1;
	}
	t->placing = PLACED;
	return 0;
}

/* Whether a thread may be about to give the stub another memory, in which nothing has its place. */
static int executes(struct home *h)
{
	for (unsigned i = 0; i < h->count; i++)
		if (h->threads[i]->state == BUSY && link_class(h->threads[i]->call.number, h->threads[i]->call.arguments) == CLASS_EXECUTE)
			return 1;
	return 0;
}

static void put_effect(struct slot *slot, const struct effect *effect)
{
	slot->effect_descriptor = effect->descriptor;
	slot->effect_position = effect->position;
	slot->effect = effect->kind;
}

static void settle(struct home_thread *t, const struct effect *effect, uint32_t from, uint32_t to, uint32_t watched)
{
	t->slot->number = NO_CALL;
	t->slot->blocked = t->slot->terminal = t->slot->written = 0;
	t->slot->ahead_at = from;
	t->slot->ahead_end = to;
	t->slot->ahead_error = 0;
	t->settles = 1;
	put_effect(t->slot, effect);
	request(t, watched);
}

void home_launch_effect(struct home_thread *t, const struct effect *effect, uint32_t watched)
{
	settle(t, effect, 0, 0, watched);
}

void home_launch_ahead(struct home_thread *t, uint32_t from, uint32_t to, uint32_t watched)
{
	settle(t, &(struct effect){.kind = EFFECT_AHEAD}, from, to, watched);
}

void home_launch(struct home *h, struct home_thread *t, uint32_t watched)
{
	struct slot *slot = t->slot;
	uint64_t data = data_in_stub(h, t);
	slot->aside = 0;
	put_effect(slot, &t->call.effect);
	t->call.effect.kind = EFFECT_NONE;
	t->settles = 0;
	if (t->placing != PLACED && map_place(h, t, watched))
		return;
	t->placed = 0;
	if (t->call.place_argument < NO_PLACE && t->call.place_length && t->placing == PLACED && !executes(h)) {
		struct iovec here = {home_place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
		t->placed = process_vm_writev(h->stub_pid, &here, 1, &there, 1, 0) == (ssize_t)t->call.place_length;
	}
	slot->number = t->fails && t->call.number != SYS_close ? NO_CALL : t->call.number;
	slot->written = 0;
	home_face_terminal(t);
	if (!h->carry_not && carry_is_for(&t->call))
		aside_offer(&h->asides, h->control, slot);
	for (int i = 0; i < 6; i++)
		slot->arguments[i] = t->call.arguments[i] + (t->call.offsets >> i & 1 ? data : 0);
	if (t->placed)
		slot->arguments[t->call.place_argument] = t->call.place;
	if (home_has_rest(t))
		home_make_rest(h, t);
	else if (t->resuming && t->deadline)
		home_shorten(h, t);
	else if (t->resuming && t->placed == t->resumable_placed) {
		slot->number = RESTART_SYSCALL;
		memset(slot->arguments, 0, sizeof slot->arguments);
	}
	request(t, watched);
}

/* While held, no new places are made; the ones in use: how many, page addresses. */
unsigned home_hold_places(struct home *h, int held, uint64_t *pages, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	h->places_held = held;
	for (unsigned i = 0; i < PLACES && i < h->places_count && n < room; i++)
		pages[n++] = h->places[i];
	pthread_mutex_unlock(&h->lock);
	return n;
}
