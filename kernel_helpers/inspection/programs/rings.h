/* What the kernel writes of births, executions and ends of processes into a ring for each processor (perf_event_open(2)). Pids are as in the pid
 * namespace of the thread that opens the ring; those of others are left out. */
#ifndef FARHOME_RINGS_H
#define FARHOME_RINGS_H
#include <stdint.h>

enum what { BIRTH, EXECUTION, END };

struct record {
	uint64_t time;
	uint32_t pid, parent; /* parent: of BIRTH alone */
	enum what what;
};

struct ring {
	int fd;
	struct perf_event_mmap_page *page;
};

/* That of a processor; off. `epoll` reports when something is in it. 1; 0: there is no such processor; or -errno. */
int ring_open(struct ring *ring, int processor, int epoll);
void ring_close(struct ring *ring);
void ring_switch(const struct ring *ring, int on);
/* What is there, at most `room` of it. How much. `lost`: whether some is missing. */
unsigned ring_take(struct ring *ring, struct record *records, unsigned room, int *lost);

#endif
