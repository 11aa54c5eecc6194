/* The system calls by which plain mappings are made in a process that is to have them. */
#define _GNU_SOURCE
#include "pages/tables/plain.h"
#include "process/injection/inject.h"
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define DROPPABLE 0x08
#define ONFAULT 1
#define MOST_ADVICE 8

/* By the names of the flags, as others are advised. */
static const struct {
	uint32_t bit;
	int advice;
} advices[MOST_ADVICE] = {
	{PLAIN_BIT(PLAIN_DC), MADV_DONTFORK},   {PLAIN_BIT(PLAIN_DD), MADV_DONTDUMP},   {PLAIN_BIT(PLAIN_HG), MADV_HUGEPAGE},
	{PLAIN_BIT(PLAIN_MG), MADV_MERGEABLE},  {PLAIN_BIT(PLAIN_NH), MADV_NOHUGEPAGE}, {PLAIN_BIT(PLAIN_RR), MADV_RANDOM},
	{PLAIN_BIT(PLAIN_SR), MADV_SEQUENTIAL}, {PLAIN_BIT(PLAIN_WF), MADV_WIPEONFORK},
};

/* What is to be done for a table: calls that make, protect (when the pages are there), advise and lock, where they are all together, and which
 * are left to the caller. NULL for any of the pointers: they are counted alone. */
struct plan {
	struct injected *create, *protect, *advise, *lock;
	struct span *spans;
	uint32_t *left;
	uint64_t creates, protects, advises, locks, span_count, lefts;
};

static void add(struct injected *calls, uint64_t *count, long number, uint64_t start, uint64_t length, uint64_t third, uint64_t fourth,
                uint64_t fifth)
{
	if (calls)
		calls[*count] = (struct injected){.number = number, .arguments = {start, length, third, fourth, fifth}};
	++*count;
}

static uint64_t flags_of(uint32_t kind)
{
	return (kind & PLAIN_BIT(PLAIN_DP) ? DROPPABLE | MAP_ANONYMOUS : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED_NOREPLACE |
	       (kind & PLAIN_BIT(PLAIN_GD) ? MAP_GROWSDOWN : 0) | (kind & PLAIN_BIT(PLAIN_NR) ? MAP_NORESERVE : 0);
}

static void plan_one(const struct plain *plain, bool is_there, struct plan *plan)
{
	const uint32_t both = PLAIN_READ | PLAIN_WRITE;
	uint64_t start = plain->start, length = plain->end - start;
	uint32_t prot = plain->kind & (both | PLAIN_EXEC), first = prot;

	/* What once was writable counts as memory, and is made so. */
	if (!is_there && plain->kind & PLAIN_BIT(PLAIN_AC) && plain->own)
		first |= PLAIN_WRITE;
	if (is_there)
		first = both;
	else
		add(plan->create, &plan->creates, SYS_mmap, start, length, first, flags_of(plain->kind), -1);
	if (first != prot)
		add(plan->protect, &plan->protects, SYS_mprotect, start, length, prot, 0, 0);
	for (int i = 0; i < MOST_ADVICE; i++)
		if (plain->kind & advices[i].bit)
			add(plan->advise, &plan->advises, SYS_madvise, start, length, advices[i].advice, 0, 0);
	if (plain->kind & PLAIN_BIT(PLAIN_LO))
		add(plan->lock, &plan->locks, SYS_mlock2, start, length, plain->kind & PLAIN_BIT(PLAIN_LF) ? ONFAULT : 0, 0, 0);
	if (plan->span_count && plan->spans && plan->spans[plan->span_count - 1].end == start)
		plan->spans[plan->span_count - 1].end = plain->end;
	else {
		if (plan->spans)
			plan->spans[plan->span_count] = (struct span){start, plain->end};
		plan->span_count++;
	}
}

/* filled (sorted, apart): memory that is there, readable and writable, with its pages. apart (as sorted): where nothing is made without a look.
 * Mappings that lie there in part, or are filled in part, are left to the caller. */
void farhome_plain_plan(const struct plain *table, size_t count, const struct span *filled, size_t filled_count, const struct span *apart,
                        size_t apart_count, struct plan *plan)
{
	size_t here = 0, away = 0;

	plan->creates = plan->protects = plan->advises = plan->locks = plan->span_count = plan->lefts = 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t start = table[i].start, end = table[i].end;
		while (here < filled_count && filled[here].end <= start)
			here++;
		while (away < apart_count && apart[away].end <= start)
			away++;
		bool touches = here < filled_count && filled[here].start < end;
		bool is_there = touches && filled[here].start <= start && end <= filled[here].end;
		if ((touches && !is_there) || (away < apart_count && apart[away].start < end)) {
			if (plan->left)
				plan->left[plan->lefts] = i;
			plan->lefts++;
			continue;
		}
		plan_one(&table[i], is_there, plan);
	}
}
