/* Whether the guest can take what a call will write into its memory: what farhome's home asks before it makes a call that cannot be
 * taken back. It goes by the guest's mappings, as the kernel does; no page of them is touched. */
#ifndef FARHOME_GUEST_ROOM_H
#define FARHOME_GUEST_ROOM_H
#include <stdint.h>

#pragma GCC visibility push(hidden)
/* PART: a beginning or a piece of it, or a stack that grows when it is written to. */
enum room { ROOM_ALL, ROOM_NONE, ROOM_PART };

struct guest_room;
/* The mapping that was seen last: it holds for the rest of the same call. `end` 0: none. */
struct room_seen {
	uint64_t start, end;
	int writable;
};

/* NULL: no memory. */
struct guest_room *guest_room_new(void);
void guest_room_free(struct guest_room *room);
/* Where the guest's mappings cannot be seen, because it has just ended, all is said to fit. */
enum room guest_room_look(struct guest_room *room, struct room_seen *seen, int tid, uint64_t address, uint64_t length);
/* Whether nothing is mapped at an address, and a stack grows down to it when the program touches it. */
int guest_room_grows(struct guest_room *room, int tid, uint64_t address);
/* Memory may have protection keys from now on: its own, or those of the process that it is copied from. */
void guest_room_keys_change(struct guest_room *room);
int guest_room_may_have_keys(const struct guest_room *room);
/* Whether any of that memory has one. What a thread may do there, its own register says, which nobody else can read while it waits. */
int guest_room_is_keyed(struct guest_room *room, int tid, uint64_t address, uint64_t length);
#pragma GCC visibility pop
#endif
