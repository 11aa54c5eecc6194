/* A guest's call into a CALL frame, by the table's shapes. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <errno.h>
#include <string.h>

/* Moves everything that lies behind the image to behind its final length. */
static void finish(struct marshalled *m)
{
	uint32_t base = (m->call.image + 511) & ~511u;
	for (int i = 0; i < 6; i++)
		if (m->call.offsets >> i & 1 && m->call.arguments[i] & BEHIND)
			m->call.arguments[i] = (m->call.arguments[i] & ~(uint64_t)BEHIND) + base;
	for (uint32_t i = 0; i < m->call.relocations; i++) {
		uint64_t value;
		memcpy(&value, m->image + m->relocations[i], 8);
		if (value & BEHIND)
			set_u64(m, m->relocations[i], (value & ~(uint64_t)BEHIND) + base);
	}
	for (uint32_t i = 0; i < m->call.outs; i++)
		if (m->outs[i].offset & BEHIND)
			m->outs[i].offset = (m->outs[i].offset & ~BEHIND) + base;
	m->call.area += base;
	if (m->call.area > SLOT_DATA)
		m->failed = -E2BIG;
}

int marshal_call(struct marshalled *m, int tid, const struct call_entry *entry, long number, const uint64_t arguments[6])
{
	m->call = (struct call){.sequence = m->call.sequence, .number = number, .place_argument = NO_PLACE};
	memcpy(m->call.arguments, arguments, entry->count * sizeof *arguments);    /* registers beyond hold anything */
	m->segments_count = 0;
	m->seen.end = 0;
	m->failed = m->has_mask = 0;
	for (int i = 0; i < entry->count && !m->failed; i++) {
		struct argument a = {
			.m = m, .tid = tid, .index = i, .row = &entry->arguments[i], .all = arguments, .address = arguments[i]};
		if (a.row->shape != SHAPE_NUMBER)
			marshal_argument(&a);
	}
	if (!m->failed && m->room && results_overlap(m))
		m->failed = -ENOTSUP;
	if (!m->failed)
		finish(m);
	return m->failed;
}
