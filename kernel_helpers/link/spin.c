/* When it pays to spin: see spin.h. */
#define _GNU_SOURCE
#include <sched.h>
#include "link/spin.h"

#define SPIN_CYCLES 300000u     /* about 100 us: a call over a local network and back */
#define REST_AFTER_CROWD 256u   /* a look that lasted twice as long: somebody else had the processor */
#define REST_LIMIT 4096u

int spin_begins(struct spin *l)
{
	if (l->rest) {
		l->rest--;
		return 0;
	}
	l->begun = __builtin_ia32_rdtsc();
	return 1;
}

int spin_goes_on(const struct spin *l)
{
	if (__builtin_ia32_rdtsc() - l->begun > SPIN_CYCLES)
		return 0;
	sched_yield();
	return 1;
}

void spin_ends(struct spin *l)
{
	uint64_t lasted = __builtin_ia32_rdtsc() - l->begun;
	if (lasted <= SPIN_CYCLES) {
		l->next_rest -= l->next_rest > 0;
		return;
	}
	l->next_rest = l->next_rest * 2 + 1;
	if (lasted > 2 * SPIN_CYCLES && l->next_rest < REST_AFTER_CROWD)
		l->next_rest = REST_AFTER_CROWD;
	if (l->next_rest > REST_LIMIT)
		l->next_rest = REST_LIMIT;
	l->rest = l->next_rest;
}
