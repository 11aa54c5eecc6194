/* What the kernel reports about the signals of a guest's thread. */
#ifndef FARHOME_GUEST_SIGNALS_H
#define FARHOME_GUEST_SIGNALS_H
#include <stdint.h>

struct signal_sets {
	uint64_t pending, blocked;
};    /* bit n-1: signal n; pending: for the thread, and for its process */

/* 0, or a negative errno. */
int guest_signals(int tid, struct signal_sets *sets);

#endif
