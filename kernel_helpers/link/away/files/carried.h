/* What the reply to an open has carried to the guest's node: calls about that file are answered here, as of the open.
 *
 * That is right for as long as nothing else from outside has reached the guest: until the next frame comes from home, and for a few
 * milliseconds at most, for time passes without a frame, too. A process of one thread has one such file at a time. Where a call changes
 * something (the position, the descriptor itself), home makes that change before the guest's next call: an effect. */
#ifndef FARHOME_CARRIED_H
#define FARHOME_CARRIED_H
#include "link/link.h"

#pragma GCC visibility push(hidden)
struct carried;

struct carried *carried_new(struct session *session);
void carried_free(struct carried *c);
/* The reply with the number `as_of` says that `descriptor` was opened, and carries `answer` with its bytes, for us to free. */
void carried_put(struct carried *c, int descriptor, uint32_t tid, uint64_t as_of, struct carried_answer *answer);
/* Answers a call of the guest's thread, if it can be: then 1, and the value. */
int carried_answers(struct carried *c, int host_tid, long number, const uint64_t arguments[6], int64_t *value);
/* Answers the close of a file that was carried at some time, and that is still what that descriptor is: at home it comes to nothing else. Then
 * 1, and the value. */
int carried_closes(struct carried *c, long number, const uint64_t arguments[6], int64_t *value);
/* The file (of struct carried_answer) that a descriptor still is, which was carried at some time; 0: it is none, or not known. */
uint64_t carried_file(struct carried *c, int descriptor);
/* A call goes home, or to Python, after which a descriptor may be another. */
void carried_leave(struct carried *c, long number, const uint64_t arguments[6]);
/* The effect that home has still to make goes with the call that the guest makes now; nothing is answered any more. */
void carried_settle(struct carried *c, struct effect *effect);
/* The same by a frame of its own, which is queued. */
void carried_settle_alone(struct carried *c);
/* Run every few milliseconds: an effect that has waited for that long is sent. Whether to run it again. */
int carried_tick(struct carried *c);
#pragma GCC visibility pop
#endif
