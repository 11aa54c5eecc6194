/* Looking on for a moment before sleeping, for who waits for something that mostly comes soon: being woken costs more than
 * most calls do, and most of all on a processor that has gone idle.
 *
 * Between two looks the processor is offered to whoever else can run there (sched_yield), so that even the side that is
 * waited for may share it. When nothing comes in time, and all the more when somebody computes there for long, the next
 * waits go by without a look, more of them each time, fewer again as looking pays. */
#ifndef FARHOME_LOOKING_H
#define FARHOME_LOOKING_H
#include <stdint.h>

struct looking {            /* all zero: about to begin */
	uint32_t rest;          /* waits to come without a look */
	uint32_t next_rest;     /* how many they will be the next time */
	uint64_t begun;         /* cycles of the time-stamp counter */
};

/* Whether to look on now, instead of sleeping at once. */
int looking_begins(struct looking *looking);
/* After a look that found nothing: offers the processor; whether to look again. */
int looking_goes_on(const struct looking *looking);
/* Whatever was found. */
void looking_ends(struct looking *looking);
#endif
