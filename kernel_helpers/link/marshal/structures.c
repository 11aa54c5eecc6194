/* Structures that point to more. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <signal.h>
#include <stddef.h>
#include <string.h>

#define XATTR_ROOM 65536u /* XATTR_SIZE_MAX */
#define NOTIFY_COOKIE 32u /* NOTIFY_COOKIE_LEN, mq_notify(2) */

/* The struct sigevent of mq_notify: with SIGEV_THREAD it points to what is to be sent. */
void put_event(struct argument *a)
{
	struct sigevent event;
	int64_t at = send_buffer(a, sizeof event);
	if (at < 0)
		return;
	memcpy(&event, a->m->image + at, sizeof event);
	if (event.sigev_notify == SIGEV_THREAD)
		copy_nested(a->m, a->tid, at + offsetof(struct sigevent, sigev_value), NOTIFY_COOKIE, 0);
}

/* A struct sock_fprog: a count of instructions, 8 bytes each, and a pointer. */
void put_program(struct argument *a)
{
	uint16_t count;
	int64_t at = send_whole(a, a->size);
	if (at < 0 || a->size != 16)
		return; /* EINVAL by its size, or another level's option of this number */
	memcpy(&count, a->m->image + at, sizeof count);
	copy_nested(a->m, a->tid, at + 8, count * 8, 0);
}

/* A struct xattr_args. Its value is as long as it says, and never longer than XATTR_SIZE_MAX; home's kernel says so of a longer one before
 * it looks, or writes no more. Returns the value's length, with `at`, where the structure lies; 0, with -1: EINVAL by its size, or none. */
static uint32_t attribute(struct argument *a, int64_t *at)
{
	uint32_t length;
	*at = send_whole(a, a->size);
	if (*at < 0 || a->size < 16) {
		*at = -1;
		return 0;
	}
	memcpy(&length, a->m->image + *at + 8, 4);
	return length > XATTR_ROOM ? XATTR_ROOM : length;
}

void put_attribute_in(struct argument *a)
{
	int64_t at;
	uint32_t length = attribute(a, &at);
	if (at >= 0)
		copy_nested(a->m, a->tid, at, length, 0);
}

void put_attribute_out(struct argument *a)
{
	int64_t at;
	uint32_t length = attribute(a, &at);
	uint64_t address;
	if (at < 0)
		return;
	memcpy(&address, a->m->image + at, 8);
	int64_t value = address ? behind_room(a->m, address, length) : -1;
	if (value < 0)
		return;
	point(a->m, at, value);
	if (length) {
		add_ruled(a->m, (struct out){.offset = value, .length = length, .rule = OUT_RETURNED, .scale = 1});
		add_segment(a->m, address, length);
	}
}
