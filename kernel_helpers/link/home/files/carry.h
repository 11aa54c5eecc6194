/* What a reply to an open carries besides the descriptor: answers to what is asked of the file next; and what one to a write does. */
#ifndef FARHOME_CARRY_H
#define FARHOME_CARRY_H
#include "link/home/files/aside.h"
#include "link/link.h"

#pragma GCC visibility push(hidden)
/* Whether the call opens something for reading alone, so that its reply may carry answers. */
int carry_is_for(const struct call *call);
/* The answers about a file that process `pid` has just opened as `descriptor`: a struct carried_answer and `length` bytes, for the caller
 * to free; NULL: there are none. `pidfd`: of that process, kept for the next time; -1 at first. Never waits for a disk for contents.
 * `asides`, `slot`: of the process, and of the thread that has opened it. */
struct carried_answer *carry_take(int *pidfd, int pid, int descriptor, struct asides *asides, struct slot *slot);
/* Whether writes to a process's descriptor, to which it has just written, can run ahead: it is a regular file of this machine, and there is
 * room in it. Then 1, and which file it is. `pidfd`: as above. */
int carry_room(int *pidfd, int pid, int descriptor, struct room_answer *answer);
#pragma GCC visibility pop
#endif
