/* Calls that were answered where the guest is, and are made here, one after the other: lists of struct ahead, taken from the link. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "link/home/threads/parts.h"

#define WAITS 10000     /* of WAIT_LIMIT_NS */

/* ---- what could not be written ---- */

static void note_failure(struct home *h, struct home_thread *t)
{
	struct failure failure = {t->slot->ahead_descriptor, t->slot->ahead_error};
	struct event event = {.kind = EVENT_WRITE_FAILED, .tid = t->tid, .value = failure.error, .length = sizeof failure.descriptor};
	pthread_mutex_lock(&h->lock);
	if (h->failures_count < FAILURES)
		h->failures[h->failures_count++] = failure;
	pthread_mutex_unlock(&h->lock);
	session_event(h->session, &event, &failure.descriptor);
}

/* Whether it is one of those that say what became of writes before. */
static int is_told(const struct call *call)
{
	switch (call->number) {
	case SYS_newfstatat: /* what the C library's fstat is */
		return !!(call->arguments[3] & AT_EMPTY_PATH);
	case SYS_statx:
		return !!(call->arguments[2] & AT_EMPTY_PATH);
	case SYS_write:
	case SYS_pwrite64:
	case SYS_writev:
	case SYS_pwritev:
	case SYS_pwritev2:
	case SYS_fsync:
	case SYS_fdatasync:
	case SYS_sync_file_range:
	case SYS_syncfs:
	case SYS_ftruncate:
	case SYS_fallocate:
	case SYS_lseek:
	case SYS_fstat:
	case SYS_read:
	case SYS_pread64:
	case SYS_close:
		return 1;
	}
	return 0;
}

static void forget_failures(struct home *h, uint64_t first, uint64_t last)
{
	unsigned kept = 0;
	for (unsigned i = 0; i < h->failures_count; i++)
		if ((uint64_t)h->failures[i].descriptor < first || (uint64_t)h->failures[i].descriptor > last)
			h->failures[kept++] = h->failures[i];
	h->failures_count = kept;
}

int home_take_failure(struct home *h, const struct call *call)
{
	const uint64_t *a = call->arguments;
	if (call->number == SYS_dup2 || call->number == SYS_dup3) /* closed without a word, as at home; the number is another file's */
		forget_failures(h, (uint32_t)a[1], (uint32_t)a[1]);
	if (call->number == SYS_close_range)
		forget_failures(h, (uint32_t)a[0], (uint32_t)a[1]);
	for (unsigned i = 0; i < h->failures_count && is_told(call); i++)
		if (h->failures[i].descriptor == (int32_t)a[0]) {
			int error = h->failures[i].error;
			memmove(h->failures + i, h->failures + i + 1, (--h->failures_count - i) * sizeof *h->failures);
			return error;
		}
	return 0;
}

/* ---- the list ---- */

static struct ahead *record_at(const struct home_thread *t, uint32_t at)
{
	return (struct ahead *)(data_of(t) + at);
}

static uint32_t record_size(const struct ahead *a)
{
	return sizeof *a + ahead_padded(a->length);
}

static int can_be(const struct home_thread *t, uint32_t end)
{
	uint32_t at = 0;
	for (; at < end; at += record_size(record_at(t, at))) {
		const struct ahead *a = record_at(t, at);
		if (end - at < sizeof *a || a->kind > AHEAD_CLOSE || a->descriptor < 0 || a->length > AHEAD_WRITE ||
		    (a->length && a->kind > AHEAD_WRITE_AT) || (!a->length && a->kind <= AHEAD_WRITE_AT) || a->position < 0 ||
		    ahead_padded(a->length) > end - at - sizeof *a)
			return 0;
	}
	return at == end && end;
}

/* What the program would not have written, had it known that the write before has failed. */
static void leave_out(const struct home_thread *t, uint32_t at, uint32_t end, int descriptor)
{
	for (; at < end; at += record_size(record_at(t, at))) {
		struct ahead *a = record_at(t, at);
		if (a->descriptor == descriptor && a->kind <= AHEAD_WRITE_AT)
			a->kind = AHEAD_SKIP;
	}
}

static void await_loop(struct home_thread *t)
{
	for (int i = 0; i < WAITS && home_settles(t); i++) {
		struct timespec limit = {0, WAIT_LIMIT_NS};
		uint32_t done = __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST);
		if (done != t->slot->request)
			syscall(SYS_futex, &t->slot->done, FUTEX_WAIT, done, &limit, NULL, 0);
	}
}

int home_await_settled(struct home *h, struct home_thread *t)
{
	for (;;) {
		await_loop(t);
		if (home_settles(t))
			return 0;
		struct slot *slot = t->slot;
		if (!slot->ahead_error)
			return 1;
		note_failure(h, t);
		leave_out(t, slot->ahead_at, slot->ahead_end, slot->ahead_descriptor);
		pthread_mutex_lock(&h->lock);
		home_launch_ahead(t, slot->ahead_at, slot->ahead_end, WATCHED_HERE);
		pthread_mutex_unlock(&h->lock);
	}
}

int home_take_ahead(struct home *h, struct home_thread *t, struct session *session, const struct frame *frame)
{
	if (!home_await_settled(h, t)) {
		session_broken(session, "writes before them are not made at home yet");
		return -1;
	}
	int is_too_long = frame->length > AHEAD_LIMIT;
	if (!is_too_long && session_read(session, data_of(t), frame->length))
		return -1;
	if (is_too_long || !can_be(t, frame->length)) {
		session_broken(session, "writes that cannot be");
		return -1;
	}
	session_accept(session, frame);
	pthread_mutex_lock(&h->lock);
	for (unsigned i = 0; i < h->failures_count; i++) /* of which the program has not heard yet */
		leave_out(t, 0, frame->length, h->failures[i].descriptor);
	home_launch_ahead(t, 0, frame->length, WATCHED_HERE);
	pthread_mutex_unlock(&h->lock);
	home_await_settled(h, t);
	return 0;
}
