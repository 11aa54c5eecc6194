/* What children have used away that have ended there, for the parents that wait for them. Home's kernel knows only what their stubs have
 * used. Kept for the processes of this program that are away, by the ids that it knows their stubs by. */
#ifndef FARHOME_CHILDREN_H
#define FARHOME_CHILDREN_H
#include <stdint.h>
#include "usage/account.h"

/* A process is away, or is a stub from its birth on: `known_as` by its parent, `parent` (0: not ours, or as it was). 0, or -ENOMEM. */
int children_begin(int pid, uint32_t known_as, int parent);
/* It is at home, or nobody asks for it any more. */
void children_forget(int pid);
/* It is about to end, having used that: its parent may come to wait for it. What its own children have used, and it
 * has waited for, is its parent's then, too. */
void children_end(int pid, const struct used *used);
/* What the child that its parent knows by that id has used in all: 1, or 0: there is none. taken: the parent has waited for it, and has
 * used that by its children from now on. */
int children_used(int parent, uint32_t known_as, int taken, struct used *used);
/* Of the same child, without what its own children have used. */
void children_own(int parent, uint32_t known_as, struct used *used);
/* What a process has used away that is about to end, or has ended; zeros if it has reported nothing. */
void children_at_end(int pid, struct used *used);
/* What a process has used by children that it has waited for. */
void children_in_all(int pid, struct used *used);
#endif
