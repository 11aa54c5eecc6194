/* Spinning for a moment before sleeping, where a thread waits for what mostly comes soon: being woken costs more than
 * most calls do, and most of all on a processor that has gone idle.
 *
 * Between two looks the processor is offered to others that can run there (sched_yield), so that even the side that is
 * waited for may share it. When nothing comes in time, and all the more when somebody computes there for long, the next
 * waits go by without a look, more of them each time, fewer again as spinning pays. */
#ifndef FARHOME_SPIN_H
#define FARHOME_SPIN_H
#include <stdint.h>

struct spin {            /* all zero: about to begin */
	uint32_t rest;          /* waits to come without a look */
	uint32_t next_rest;     /* how many they will be the next time */
	uint64_t begun;         /* cycles of the time-stamp counter */
};

/* Whether to spin now, instead of sleeping at once. */
int spin_begins(struct spin *spin);
/* After a look that found nothing: offers the processor; whether to look again. */
int spin_goes_on(const struct spin *spin);
/* Whatever was found. */
void spin_ends(struct spin *spin);
#endif
