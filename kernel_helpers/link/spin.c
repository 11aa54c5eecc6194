/* When it pays to look on: see spin.h. */
#define _GNU_SOURCE
#include <sched.h>
#include "link/spin.h"

#define LOOK_CYCLES 300000u     /* about 100 us: a call over a local network and back */
#define REST_AFTER_CROWD 256u   /* a look that lasted twice as long: somebody else had the processor */
#define REST_LIMIT 4096u

int looking_begins(struct looking *l)
{
	if (l->rest) {
		l->rest--;
		return 0;
	}
	l->begun = __builtin_ia32_rdtsc();
	return 1;
}

int looking_goes_on(const struct looking *l)
{
	if (__builtin_ia32_rdtsc() - l->begun > LOOK_CYCLES)
		return 0;
	sched_yield();
	return 1;
}

void looking_ends(struct looking *l)
{
	uint64_t lasted = __builtin_ia32_rdtsc() - l->begun;
	if (lasted <= LOOK_CYCLES) {
		l->next_rest -= l->next_rest > 0;
		return;
	}
	l->next_rest = l->next_rest * 2 + 1;
	if (lasted > 2 * LOOK_CYCLES && l->next_rest < REST_AFTER_CROWD)
		l->next_rest = REST_AFTER_CROWD;
	if (l->next_rest > REST_LIMIT)
		l->next_rest = REST_LIMIT;
	l->rest = l->next_rest;
}
