/* Vectors of buffers, and what a structure points to. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

int64_t copy_vector(struct marshalled *m, int tid, uint64_t address, uint64_t count, uint64_t *total)
{
	*total = 0;
	int64_t at = copy_in(m, tid, address, count * sizeof(struct iovec));
	if (at < 0)
		return at;
	const struct iovec *v = (void *)(m->image + at);
	for (uint64_t i = 0; i < count; i++) {
		if (v[i].iov_len > SLOT_DATA) {
			m->failed = -E2BIG;
			return -1;
		}
		*total += v[i].iov_len;
	}
	return at;
}

void copy_parts(struct marshalled *m, int tid, uint32_t at, uint64_t count, uint64_t total, enum traffic traffic, struct out rule)
{
	struct iovec there[VECTOR_LIMIT];
	if (!count)
		return;
	memcpy(there, m->image + at, count * sizeof *there);
	uint64_t first = (uint64_t)there[0].iov_base;
	int64_t data = traffic == RETURNED ? behind_room(m, first, total) : image_room(m, first, total);
	if (data < 0)
		return;
	int readable = 1;
	if (traffic != RETURNED && total) {
		struct iovec here = {m->image + data, total};
		readable = process_vm_readv(tid, &here, 1, there, count, 0) == (ssize_t)total;
	}
	if (traffic != SENT) {
		rule.offset = data;
		rule.length = total;
		add_ruled(m, rule);
	}
	for (uint64_t i = 0, offset = data; i < count && !m->failed; i++) {
		uint32_t where = at + i * sizeof(struct iovec);
		uint64_t address = (uint64_t)there[i].iov_base, length = there[i].iov_len;
		int fits = traffic == SENT || has_room(m, tid, address, length);
		if (!length && address >> 47)
			set_u64(m, where, address);
		else if (!length || (fits && (readable || !guest_read(tid, address, m->image + offset, length))))
			point(m, where, offset);
		else if (fits && begins(m, tid, address))
			m->failed = -ENOTSUP;
		else
			set_u64(m, where, fault(address));
		if (traffic != SENT)
			add_segment(m, address, length);
		offset += length;
	}
}

void copy_nested(struct marshalled *m, int tid, uint32_t where, uint64_t length, int back)
{
	uint64_t address;
	memcpy(&address, m->image + where, 8);
	if (!address)
		return;
	int64_t at = back && !has_room(m, tid, address, length) ? -2 : copy_in(m, tid, address, length);
	if (at == -2)
		set_u64(m, where, fault(address));
	if (at < 0)
		return;
	point(m, where, at);
	if (back && length) {
		add_ruled(m, (struct out){.offset = at, .length = length, .rule = OUT_ALWAYS});
		add_segment(m, address, length);
	}
}
