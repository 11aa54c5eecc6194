/* What a call may do to the numbers of a guest, and to the positions of its files: for direct_files.c. */
#ifndef FARHOME_DIRECT_SPANS_H
#define FARHOME_DIRECT_SPANS_H
#include "link/away/direct/direct_files.h"

/* Numbers, from first to last. */
struct span {
	unsigned first, last;
};

static inline struct span direct_span(uint64_t descriptor)
{
	return (struct span){descriptor, descriptor};
}

#pragma GCC visibility push(hidden)
/* Whether it reads by a number, or sets or returns its position. */
int direct_reads(const struct direct_call *call);
/* Whether a read says itself where, and leaves the position alone. */
int direct_names_place(const struct direct_call *call);
/* The numbers that a call which does not read may do something to, or to the positions that they stand for; how many spans. */
unsigned direct_touched(const struct direct_call *call, struct span spans[2]);
#pragma GCC visibility pop
#endif
