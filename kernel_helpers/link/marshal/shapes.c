/* How an argument of each shape becomes one of the call at home: a table of functions. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const struct out returned = {.rule = OUT_RETURNED, .scale = 1};
static const unsigned char no_modes[4]; /* of a struct timex that sets nothing */

/* A result at `at` of the area, which the table describes. */
static void add_result(struct argument *a, uint32_t at)
{
	struct marshalled *m = a->m;
	add_out(m, at, a->size, a->row);
	add_segment(m, a->address, a->size);
	if (!m->failed) {
		m->segments[m->segments_count - 1].writes = a->row->writes;
		m->segments[m->segments_count - 1].records = a->row->records;
	}
}

/* ---- without memory ---- */

static void put_number(struct argument *a)
{
	(void)a;
}

static void put_zero(struct argument *a)
{
	become(a, 0);
}

static void put_mask(struct argument *a)
{
	struct marshalled *m = a->m;
	become(a, 0);
	if (a->address && a->all[a->index + 1] == sizeof m->signal_mask && !guest_read(a->tid, a->address, &m->signal_mask, 8))
		m->has_mask = 1;
	else if (a->address)
		become(a, fault(a->address)); /* EINVAL by its length, or EFAULT */
}

/* What rt_sigtimedwait(2) waits for, the size of which is its last argument. */
static void put_signals(struct argument *a)
{
	uint64_t wanted;
	if (a->all[3] != sizeof wanted || guest_read(a->tid, a->address, &wanted, sizeof wanted)) {
		become(a, fault(a->address)); /* EINVAL by its length, or EFAULT */
		return;
	}
	int64_t at = send_buffer(a, sizeof wanted);
	if (at < 0)
		return;
	set_u64(a->m, at, wanted & a->m->watched);
	a->m->signal_mask = ~wanted;
	a->m->has_mask = 1;
}

/* ---- of a size that the shape knows ---- */

static void put_string(struct argument *a)
{
	uint32_t room = a->row->size_add ? a->row->size_add : PATH_ROOM;
	point_to(a, copy_string(a->m, a->tid, a->address, room, a->row->shape == SHAPE_TEXT));
}

static void put_strings(struct argument *a)
{
	point_to(a, copy_strings(a->m, a->tid, a->address));
}

/* A pointer to a mask, and its length. */
static void put_mask6(struct argument *a)
{
	struct marshalled *m = a->m;
	uint64_t pair[2];
	int64_t at = send_buffer(a, sizeof pair);
	if (at < 0)
		return;
	memcpy(pair, m->image + at, sizeof pair);
	m->has_mask = pair[0] && pair[1] == sizeof m->signal_mask && !guest_read(a->tid, pair[0], &m->signal_mask, 8);
	set_u64(m, at, !pair[0] || m->has_mask ? 0 : fault(pair[0]));
}

static void put_message(struct argument *a, enum traffic traffic)
{
	int64_t at = send_whole(a, sizeof(struct msghdr));
	if (at >= 0)
		copy_message(a->m, a->tid, at, a->address, traffic, returned);
}

static void put_message_in(struct argument *a)
{
	put_message(a, SENT);
}

static void put_message_out(struct argument *a)
{
	put_message(a, RETURNED);
}

static void put_message_part(struct argument *a)
{
	put_message(a, BOTH_WAYS);
}

/* ---- of a size by the table ---- */

static void put_in(struct argument *a)
{
	send_whole(a, a->size);
}

static int64_t send_and_return(struct argument *a)
{
	int64_t at = send_whole(a, a->size);
	if (at >= 0 && a->size) {
		if (a->row->writes == WRITES_AFTER)
			wants_room(a->m, a->tid, a->address, a->size);
		add_result(a, at);
	}
	return at;
}

static void put_in_and_out(struct argument *a)
{
	send_and_return(a);
}

static void put_in_place(struct argument *a)
{
	struct call *call = &a->m->call;
	if (send_and_return(a) < 0 || !a->size)
		return;
	call->place = a->address;
	call->place_argument = a->index;
	call->place_length = a->size;
}

static void put_part(struct argument *a)
{
	if (a->row->writes == WRITES_AFTER && !has_room(a->m, a->tid, a->address, a->size)) {
		point_to(a, -2);
		return;
	}
	int64_t at = send_whole(a, a->size);
	if (at >= 0 && a->size)
		add_result(a, at);
}

static void put_timex(struct argument *a)
{
	int64_t at = send_whole(a, a->size);
	if (at < 0)
		return;
	if (memcmp(a->m->image + at, no_modes, sizeof no_modes)) {
		a->m->failed = -ENOTSUP;
		return;
	}
	if (a->row->writes == WRITES_AFTER)
		wants_room(a->m, a->tid, a->address, a->size);
	add_result(a, at);
}

static void put_out(struct argument *a)
{
	int has = a->row->writes != WRITES_AFTER || has_room(a->m, a->tid, a->address, a->size);
	int64_t at = has ? behind_room(a->m, a->address, a->size) : -2;
	point_to(a, at);
	if (at >= 0 && a->size)
		add_result(a, at);
}

/* ---- counted by the table ---- */

static void put_vector(struct argument *a, enum traffic traffic)
{
	uint64_t total;
	int64_t at = copy_vector(a->m, a->tid, a->address, a->size, &total);
	point_to(a, at);
	if (at >= 0)
		copy_parts(a->m, a->tid, at, a->size, total, traffic, returned);
}

static void put_vector_in(struct argument *a)
{
	put_vector(a, SENT);
}

static void put_vector_out(struct argument *a)
{
	put_vector(a, RETURNED);
}

static void put_messages_in(struct argument *a)
{
	point_to(a, copy_messages(a->m, a->tid, a->address, a->size, SENT));
}

static void put_messages_out(struct argument *a)
{
	point_to(a, copy_messages(a->m, a->tid, a->address, a->size, RETURNED));
}

static void put_messages_part(struct argument *a)
{
	point_to(a, copy_messages(a->m, a->tid, a->address, a->size, BOTH_WAYS));
}

/* ---- the table ---- */

enum needs { NOTHING, POINTER, SIZE, COUNT }; /* what a shape needs: a pointer that is not null, and its size, or count, by the table */

static const struct {
	void (*put)(struct argument *a);
	enum needs needs;
} shapes[] = {
	[SHAPE_NUMBER] = {put_number, NOTHING},
	[SHAPE_TERMINAL] = {put_number, NOTHING},
	[SHAPE_ZERO] = {put_zero, NOTHING},
	[SHAPE_MASK] = {put_mask, NOTHING},
	[SHAPE_SIGNALS] = {put_signals, NOTHING},
	[SHAPE_STRING] = {put_string, POINTER},
	[SHAPE_TEXT] = {put_string, POINTER},
	[SHAPE_STRINGS] = {put_strings, POINTER},
	[SHAPE_EVENT] = {put_event, POINTER},
	[SHAPE_MASK6] = {put_mask6, POINTER},
	[SHAPE_MSG_IN] = {put_message_in, POINTER},
	[SHAPE_MSG_OUT] = {put_message_out, POINTER},
	[SHAPE_MSG_PART] = {put_message_part, POINTER},
	[SHAPE_IN] = {put_in, SIZE},
	[SHAPE_OUT] = {put_out, SIZE},
	[SHAPE_INOUT] = {put_in_and_out, SIZE},
	[SHAPE_IN_PLACE] = {put_in_place, SIZE},
	[SHAPE_PART] = {put_part, SIZE},
	[SHAPE_TIMEX] = {put_timex, SIZE},
	[SHAPE_PROGRAM] = {put_program, SIZE},
	[SHAPE_XATTR_IN] = {put_attribute_in, SIZE},
	[SHAPE_XATTR_OUT] = {put_attribute_out, SIZE},
	[SHAPE_MMSG_IN] = {put_messages_in, SIZE},
	[SHAPE_MMSG_OUT] = {put_messages_out, SIZE},
	[SHAPE_MMSG_PART] = {put_messages_part, SIZE},
	[SHAPE_IOV_IN] = {put_vector_in, COUNT},
	[SHAPE_IOV_OUT] = {put_vector_out, COUNT},
};

/* Whether its size is known. If not, the argument is what it is to be, or only home can make the call. */
static int has_size(struct argument *a, enum needs needs)
{
	int error = size_of(a, &a->size);
	if (error == -EFAULT)
		become(a, fault(a->address));
	else if (needs == COUNT && (error || a->size > VECTOR_LIMIT))
		become(a, FAULT_ADDRESS); /* EINVAL by its count, before the kernel looks */
	else if (error)
		a->m->failed = error;
	else /* of no bytes, and yet the kernel may say EFAULT: that no program has memory there is enough */
		return a->size || !(a->address >> 47) || needs == COUNT;
	return 0;
}

void marshal_argument(struct argument *a)
{
	enum needs needs = shapes[a->row->shape].needs;
	if ((needs == NOTHING || a->address) && (needs < SIZE || has_size(a, needs)))
		shapes[a->row->shape].put(a);
}
