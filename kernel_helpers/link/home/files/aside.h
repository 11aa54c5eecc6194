/* Files that guests of this program map again and again. As a stub opens one, its loop maps all of it aside, and the reply says that the
 * guest may map any part of it privately, by a file of its own with the same content: that takes no trip then.
 *
 * Which files: those that Python has once mapped aside for a guest, and that are a part of the system, which is replaced and not
 * written (deputy/requests/mapping.py). They are known by device, inode, size and times. */
#ifndef FARHOME_ASIDE_H
#define FARHOME_ASIDE_H
#include <stdint.h>
#include <sys/stat.h>
#include "link/slot.h"

#define ASIDES 512u             /* files of one process; what it opens beyond is mapped by Python */

struct aside {
	uint64_t address, length; /* in the stub; 0: Python has mapped it */
	uint64_t key;
};

/* Of one process. */
struct asides {
	uint64_t next;          /* where the next file goes in the stub; 0: nowhere */
	uint64_t listed_version; /* as of which the control page lists files */
	unsigned listed_count;   /* how many this process had then */
	unsigned count, taken;  /* taken: Python knows of them */
	struct aside all[ASIDES];
};

#pragma GCC visibility push(hidden)
/* Before an open is made that may be answered so. */
void aside_offer(struct asides *a, struct control_page *control, struct slot *slot);
/* After an open of `file` (a descriptor of ours) that was offered that: the key by which the guest may map the file; 0: it may not. */
uint64_t aside_key(struct asides *a, struct slot *slot, int file, const struct stat *status);
#pragma GCC visibility pop

/* The open file `descriptor` is one of those from now on. 0, or a negative errno. `a`: of a process that has it mapped aside already. */
int aside_know(struct asides *a, int descriptor, uint64_t key);
/* It is none any more. */
void aside_forget(uint64_t key);
/* What was mapped aside since the last time; how many. */
unsigned aside_take(struct asides *a, struct aside *list, unsigned room);
#endif
