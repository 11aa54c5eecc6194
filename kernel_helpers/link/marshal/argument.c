/* One argument of a call: its size by the table, and what becomes of it. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <errno.h>

void become(struct argument *a, uint64_t value)
{
	a->m->call.arguments[a->index] = value;
}

void point_to(struct argument *a, int64_t at)
{
	if (at == -2)
		become(a, fault(a->address));
	else if (at >= 0) {
		become(a, at);
		a->m->call.offsets |= 1u << a->index;
	}
}

int64_t send_buffer(struct argument *a, uint64_t size)
{
	int64_t at = copy_in(a->m, a->tid, a->address, size);
	point_to(a, at);
	return at;
}

int64_t send_whole(struct argument *a, uint64_t size)
{
	int64_t at = send_buffer(a, size);
	if (at == -2 && begins(a->m, a->tid, a->address))
		a->m->failed = -ENOTSUP;
	return at;
}

int size_of(const struct argument *of, uint64_t *size)
{
	const struct call_argument *a = of->row;
	const uint64_t *arguments = of->all;
	uint64_t x = 0;
	uint32_t behind;
	switch (a->size_kind) {
	case SIZE_ARGUMENT:
		x = arguments[a->size_argument];
		break;
	case SIZE_BEHIND:
		if (guest_read(of->tid, arguments[a->size_argument], &behind, 4))
			return -EFAULT;
		x = behind > 0x7fffffff ? 0 : behind;   /* the kernel refuses a negative length before it looks further */
		break;
	case SIZE_BITS: {
		int64_t bits = (int64_t)(int)arguments[a->size_argument] + (int32_t)a->size_add;
		*size = bits <= 0 ? 0 : (uint64_t)(bits + 63) / 64 * 8;
		return *size > SLOT_DATA ? -E2BIG : 0;
	}
	}
	if (x > SLOT_DATA)
		return -E2BIG;
	*size = x * a->size_scale + a->size_add;
	if (a->size_least && *size < a->size_least)
		*size = a->size_least;
	if (a->size_most && *size > a->size_most)
		*size = a->size_most;
	return *size > SLOT_DATA ? -E2BIG : 0;
}
