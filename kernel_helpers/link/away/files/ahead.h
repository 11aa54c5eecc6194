/* Writes that run ahead of home: answered on the node, and made at home a few milliseconds later, in order.
 *
 * Home grants a descriptor room with the reply to its open, or to a write to it: a regular file of its own, to which the next AHEAD_ROOM bytes can be written
 * as far as anybody knows. They are kept in a list, which leaves before any other frame, so that nobody hears of anything that comes after
 * them before they are made. What home cannot write all the same shows at the process's next call on that descriptor. */
#ifndef FARHOME_AHEAD_H
#define FARHOME_AHEAD_H
#include "link/away/files/carried.h"

#pragma GCC visibility push(hidden)
/* Answers a write of the guest's thread, if there is room for it: then 1, and the value. */
int ahead_answers(struct carried *c, int host_tid, uint32_t tid, long number, const uint64_t arguments[6], int64_t *value);
/* Whether home is to look, with the write or open that leaves now, if there is room for more. */
int ahead_wants(struct carried *c, long number, const uint64_t arguments[6]);
/* What the reply to such a call says, whose value is no error; NULL: there is none. */
void ahead_put(struct carried *c, const struct call *call, int64_t value, const struct room_answer *answer);
/* A call about that descriptor has failed: home is asked before the next write. */
void ahead_failed(struct carried *c, int descriptor);
/* The list leaves. Before each frame of the session. */
void ahead_leave(struct carried *c);
#pragma GCC visibility pop
#endif
