/* The data area of a CALL while it is made: what data_area.h says. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include "link/marshal/data_area.h"
#include "process/guest_memory.h"

#define PAGE 4096u
#define STRING_LIMIT (32 * PAGE)     /* MAX_ARG_STRLEN, with the NUL */

int guest_read(int tid, uint64_t address, void *to, size_t length)
{
	return guest_memory_read(tid, address, to, length);
}

int begins(const struct marshalled *m, int tid, uint64_t address)
{
	char byte;
	return !guest_read(tid, address, &byte, 1) || (m->room && guest_room_grows(m->room, tid, address));
}

uint64_t fault(uint64_t address)
{
	return address >> 47 ? address : FAULT_ADDRESS;
}

static int grow(void **array, uint32_t *room, uint32_t needed, size_t size, uint32_t limit)
{
	if (needed > limit)         /* first: there may be room for more */
		return -E2BIG;
	if (needed <= *room)
		return 0;
	uint32_t more = needed < 16 ? 16 : needed * 2;
	void *fresh = realloc(*array, more * size);
	if (!fresh)
		return -ENOMEM;
	*array = fresh;
	*room = more;
	return 0;
}

static uint32_t aligned(uint32_t offset, uint64_t address, uint64_t length)
{
	/* Direct I/O wants sectors; a buffer that is aligned to them is so at home. */
	uint32_t to = length >= 512 && !(address & 511) ? 512 : 16;
	return (offset + to - 1) & ~(to - 1);
}

int64_t image_room(struct marshalled *m, uint64_t address, uint64_t length)
{
	uint32_t at = aligned(m->call.image, address, length);
	if (length > SLOT_DATA - at) {
		m->failed = -E2BIG;
		return -1;
	}
	size_t needed = at + length;
	if (needed > m->image_room || !m->image) {
		size_t room = needed < 256 ? 256 : needed;
		if (m->image && needed < 1 << 20)
			room = needed * 2;
		void *fresh = realloc(m->image, room);
		if (!fresh) {
			m->failed = -ENOMEM;
			return -1;
		}
		m->image = fresh;
		m->image_room = room;
	}
	memset(m->image + m->call.image, 0, at - m->call.image);
	m->call.image = needed;
	return at;
}

int64_t behind_room(struct marshalled *m, uint64_t address, uint64_t length)
{
	uint32_t at = aligned(m->call.area, address, length);
	if (length > SLOT_DATA - at) {
		m->failed = -E2BIG;
		return -1;
	}
	m->call.area = at + length;
	return at | BEHIND;
}

static void relocate(struct marshalled *m, uint32_t where)
{
	int error = grow((void **)&m->relocations, &m->relocations_room, m->call.relocations + 1, sizeof(uint32_t), RELOCATIONS_LIMIT);
	if (error)
		m->failed = error;
	else
		m->relocations[m->call.relocations++] = where;
}

void set_u64(struct marshalled *m, uint32_t where, uint64_t value)
{
	memcpy(m->image + where, &value, 8);
}

void point(struct marshalled *m, uint32_t where, uint32_t offset)
{
	set_u64(m, where, offset);
	relocate(m, where);
}

void add_ruled(struct marshalled *m, struct out out)
{
	int error = grow((void **)&m->outs, &m->outs_room, m->call.outs + 1, sizeof(struct out), OUTS_LIMIT);
	if (error)
		m->failed = error;
	else
		m->outs[m->call.outs++] = out;
}

void add_out(struct marshalled *m, uint32_t offset, uint32_t length, const struct call_argument *rule)
{
	add_ruled(m, (struct out){.offset = offset,
	                          .length = length,
	                          .rule = rule ? rule->rule : OUT_FULL,
	                          .scale = rule ? rule->rule_scale : 1,
	                          .add = rule ? rule->rule_add : 0});
}

void add_segment(struct marshalled *m, uint64_t address, uint32_t length)
{
	int error = grow((void **)&m->segments, &m->segments_room, m->segments_count + 1, sizeof(struct segment), 65536);
	if (error)
		m->failed = error;
	else
		m->segments[m->segments_count++] = (struct segment){address, length, m->call.outs - 1, 0, 0};
}

int has_room(struct marshalled *m, int tid, uint64_t address, uint64_t length)
{
	if (!length || !m->room)
		return 1;
	if (guest_room_is_keyed(m->room, tid, address, length)) {
		m->failed = -ENOTSUP;
		return 1;
	}
	enum room room = guest_room_look(m->room, &m->seen, tid, address, length);
	if (room == ROOM_PART)
		m->failed = -ENOTSUP;
	return room != ROOM_NONE;
}

void wants_room(struct marshalled *m, int tid, uint64_t address, uint64_t length)
{
	if (!has_room(m, tid, address, length))
		m->failed = -ENOTSUP;
}

static int by_address(const void *one, const void *other)
{
	const struct segment *a = one, *b = other;
	return a->address < b->address ? -1 : a->address > b->address;
}

static int overlaps(const struct segment *a, const struct segment *b)
{
	return a->length && b->length && a->address < b->address + b->length && b->address < a->address + a->length;
}

int results_overlap(const struct marshalled *m)
{
	const struct segment *s = m->segments;
	uint32_t count = m->segments_count;
	int yes = 0;
	if (count <= 8) {
		for (uint32_t i = 1; i < count; i++)
			for (uint32_t j = 0; j < i; j++)
				yes |= overlaps(&s[i], &s[j]);
		return yes;
	}
	struct segment *sorted = malloc(count * sizeof *sorted);
	if (!sorted)
		return 1;
	uint32_t used = 0;
	for (uint32_t i = 0; i < count; i++)
		if (s[i].length)
			sorted[used++] = s[i];
	qsort(sorted, used, sizeof *sorted, by_address);
	for (uint32_t i = 1; i < used; i++)
		yes |= overlaps(&sorted[i - 1], &sorted[i]);
	free(sorted);
	return yes;
}

int64_t copy_in(struct marshalled *m, int tid, uint64_t address, uint64_t length)
{
	uint32_t before = m->call.image;
	if (m->room && guest_room_is_keyed(m->room, tid, address, length))
		m->failed = -ENOTSUP;
	int64_t at = image_room(m, address, length);
	if (at >= 0 && length && guest_read(tid, address, m->image + at, length)) {
		m->call.image = before;
		return -2;
	}
	return at;
}

int64_t guest_string(int tid, uint64_t address, char *text, uint32_t room)
{
	uint32_t length = 0;
	while (length < room) {
		uint32_t part = PAGE - ((address + length) & (PAGE - 1));
		if (part > 256 && length == 0)
			part = 256;         /* most names are short */
		if (part > room - length)
			part = room - length;
		if (guest_read(tid, address + length, text + length, part))
			return -1;
		char *end = memchr(text + length, 0, part);
		if (end)
			return end - text;
		length += part;
	}
	text[length] = 0;
	return length;
}

int64_t copy_string(struct marshalled *m, int tid, uint64_t address, uint32_t room, int whole)
{
	char text[PATH_ROOM + 1];
	int64_t length = guest_string(tid, address, text, room);
	if (length < 0)
		return -2;
	if (whole && length == room) {
		m->failed = -ENOTSUP;
		return -1;
	}
	length++;
	int64_t at = image_room(m, 0, length);
	if (at >= 0)
		memcpy(m->image + at, text, length);
	return at;
}

/* How many pointers there are before the NULL; -1: not all can be read, -2: more than a CALL relocates. */
static int64_t count_pointers(int tid, uint64_t address)
{
	uint64_t part[PAGE / 8];
	for (uint64_t count = 0; count < RELOCATIONS_LIMIT;) {
		uint64_t at = address + count * 8, n = (PAGE - (at & (PAGE - 1))) / 8;
		if (!n)
			n = 1;              /* across the border of two pages */
		if (guest_read(tid, at, part, n * 8))
			return -1;
		for (uint64_t i = 0; i < n; i++, count++)
			if (!part[i])
				return count;
	}
	return -2;
}

int64_t copy_strings(struct marshalled *m, int tid, uint64_t address)
{
	char *text = malloc(STRING_LIMIT + 1);
	int64_t count = count_pointers(tid, address), at = -1;
	if (!text || count == -2)
		m->failed = text ? -E2BIG : -ENOMEM;
	else
		at = count < 0 ? -2 : copy_in(m, tid, address, (count + 1) * 8);
	if (at >= 0)
		set_u64(m, at + count * 8, 0);      /* other threads may write there */
	for (int64_t i = 0; i < count && at >= 0 && !m->failed; i++) {
		uint64_t pointer;
		memcpy(&pointer, m->image + at + i * 8, 8);
		int64_t length = guest_string(tid, pointer, text, STRING_LIMIT);
		int64_t string = length >= 0 ? image_room(m, 0, length + 1) : -1;
		if (string >= 0) {
			memcpy(m->image + string, text, length + 1);
			point(m, at + i * 8, string);
		} else
			set_u64(m, at + i * 8, fault(pointer));
	}
	free(text);
	return m->failed ? -1 : at;
}
