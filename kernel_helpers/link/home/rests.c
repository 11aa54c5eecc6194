/* Writes of which a move has ended the call in the middle: when the guest makes it again, its thread at home makes the rest of it, and the
 * guest gets what both have written. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "link/home/threads/parts.h"

/* Which of the arguments says how many bytes; -1: a vector does. */
static int count_argument(int64_t number)
{
	switch (number) {
	case SYS_write:
	case SYS_sendto:
		return 2;
	case SYS_sendfile:
		return 3;
	case SYS_splice:
		return 4;
	default:
		return -1;
	}
}

void home_note_rest(struct home_thread *t, int64_t number, const uint64_t arguments[6], uint64_t done)
{
	t->rest = (struct rest){.number = number, .done = done};
	memcpy(t->rest.arguments, arguments, sizeof t->rest.arguments);
}

/* Pointers are the guest's in its registers, and offsets on the link: their size shows which. */
int home_has_rest(const struct home_thread *t)
{
	if (!t->rest.done || t->rest.number != t->call.number)
		return 0;
	const struct call_entry *entry = link_entry(t->call.number, t->call.arguments);
	for (int i = 0; i < entry->count; i++)
		if ((entry->arguments[i].shape == SHAPE_NUMBER || entry->arguments[i].shape == SHAPE_TERMINAL) &&
		    t->rest.arguments[i] != t->call.arguments[i])
			return 0;
	return 1;
}

/* Takes what is done from the front of a vector of so many parts. Python asks, too (engine/calls/rests.py). */
void rests_shorten(unsigned char *parts, uint64_t count, uint64_t done)
{
	for (uint64_t i = 0; i < count && done; i++) {
		struct iovec part;
		unsigned char *where = parts + i * sizeof part;
		memcpy(&part, where, sizeof part);
		size_t gone = part.iov_len < done ? part.iov_len : done;
		part.iov_base = (char *)part.iov_base + gone;
		part.iov_len -= gone;
		done -= gone;
		memcpy(where, &part, sizeof part);
	}
}

/* The same of one at that address of the stub, which lies in the slot. */
static void shorten(struct home *h, struct home_thread *t, uint64_t address, uint64_t count, uint64_t done)
{
	uint64_t at = address - data_in_stub(h, t);
	if (at > t->call.image || count > (t->call.image - at) / sizeof(struct iovec))
		return;
	rests_shorten(data_of(t) + at, count, done);
}

void home_make_rest(struct home *h, struct home_thread *t)
{
	uint64_t done = t->rest.done;
	int count = count_argument(t->call.number);
	t->rest.done = 0;
	if (count >= 0 && t->slot->arguments[count] <= done)
		return;
	t->slot->written = done;
	if (count >= 0) {
		t->slot->arguments[count] -= done;
		if (t->call.number == SYS_write || t->call.number == SYS_sendto)
			t->slot->arguments[1] += done;
	} else if (t->call.number == SYS_writev) {
		shorten(h, t, t->slot->arguments[1], t->slot->arguments[2], done);
	} else if (t->call.number == SYS_sendmsg && t->call.arguments[1] + sizeof(struct msghdr) <= t->call.image) {
		struct msghdr message;
		unsigned char *where = data_of(t) + t->call.arguments[1];
		memcpy(&message, where, sizeof message);
		shorten(h, t, (uint64_t)message.msg_iov, message.msg_iovlen, done);
		message.msg_controllen = 0;     /* it went with the first bytes */
		memcpy(where, &message, sizeof message);
	}
}

/* The stub's thread has come out of this call (raw arguments of its registers) before it left, with so many bytes done. */
int home_expect_rest(struct home *h, int tid, int number, const uint64_t arguments[6], uint64_t done)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return -ESRCH;
	pthread_mutex_lock(&h->lock);
	home_note_rest(t, number, arguments, done);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

/* How many bytes are done of a call of this thread that the guest has not made again, and which call it is. */
uint64_t home_rest(struct home *h, int tid, int64_t *number)
{
	struct home_thread *t = home_thread_of(h, tid);
	if (!t)
		return 0;
	pthread_mutex_lock(&h->lock);
	uint64_t done = t->rest.done;
	*number = t->rest.number;
	pthread_mutex_unlock(&h->lock);
	return done;
}

/* Threads of which there is such a call, at most `room`. How many. */
unsigned home_with_rests(struct home *h, uint32_t *tids, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&h->lock);
	for (unsigned i = 0; i < h->count && n < room; i++)
		if (h->threads[i]->tid && h->threads[i]->rest.done)
			tids[n++] = h->threads[i]->tid;
	pthread_mutex_unlock(&h->lock);
	return n;
}
