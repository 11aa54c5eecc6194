/* What the parts of the home side have for one another. Each calls what stands before it here, and home.c; life.c calls them all. */
#ifndef FARHOME_HOME_PARTS_H
#define FARHOME_HOME_PARTS_H
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "link/home/threads/home.h"

#define WAIT_LIMIT_NS 200000    /* that a receiver waits for a call of a loop without a look at anything else */

static inline long home_futex(uint32_t *word, int operation, uint32_t value)
{
	return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

/* Where the buffer of the call's place is in the slot. */
static inline unsigned char *home_place_data(struct home_thread *t)
{
	return data_of(t) + t->call.arguments[t->call.place_argument];
}

#pragma GCC visibility push(hidden)
/* ---- suspended.c, all with the lock held ---- */

/* Nanoseconds that the call may wait; 0: it does not wait, has no limit, or the kernel keeps it itself. */
int64_t home_patience(struct home *h, struct home_thread *t);
/* Has the call in the slot wait only to its deadline. */
void home_shorten(struct home *h, struct home_thread *t);
/* Whether this is the suspended call made again: the same number, arguments and bytes. */
int home_resumes(struct home_thread *t);
/* Notes how a suspended call is to be gone on with, if it is made again. */
void home_remember(struct home_thread *t, int64_t code);
void home_forget(struct home_thread *t);

/* ---- rests.c, all with the lock held ---- */

void home_note_rest(struct home_thread *t, int64_t number, const uint64_t arguments[6], uint64_t done);
/* Whether the call in the slot is the one of which a part is done. */
int home_has_rest(const struct home_thread *t);
/* Has the call in the slot be the rest of it. */
void home_make_rest(struct home *h, struct home_thread *t);

/* ---- self_signals.c ---- */

/* For the call that a thread is about to make; with the lock held. */
enum signalling home_signalling(struct home *h, struct home_thread *t);
/* Gives the loop what it has to know of a call that may be one for a terminal; with the lock held. */
void home_face_terminal(struct home_thread *t);

/* ---- received.c ---- */

/* Whether the call of a thread, which RECEIVES and has ended, has brought a signalfd from elsewhere. With the lock held. */
int home_has_received(struct home *h, struct home_thread *t);

/* ---- children.c, with the lock held ---- */

/* The call is about to be made; the process may end by it, and says then what it has used. */
void home_note_end(struct home *h, struct home_thread *t);
/* The call has ended, and reports children perhaps: adds what these have used away. */
void home_add_children(struct home *h, struct home_thread *t, int64_t value);

/* ---- launch.c ---- */

/* Gives the call to the loop, or has the loop map its place first. Called with the lock held. */
void home_launch(struct home *h, struct home_thread *t, uint32_t watched);

/* Has the loop make an effect, and no call. Called with the lock held. */
void home_launch_effect(struct home_thread *t, const struct effect *effect, uint32_t watched);
/* The same of the list in its data area, from one of its bytes up to another. */
void home_launch_ahead(struct home_thread *t, uint32_t from, uint32_t to, uint32_t watched);

/* ---- ahead.c ---- */

/* Waits, in the receiver and within reason, until the thread's loop is at no effect any more. Whether that is so. */
int home_await_settled(struct home *h, struct home_thread *t);
/* A list of a thread that makes no call: what comes after it comes after it is made, unless somebody holds the thread up. */
int home_take_ahead(struct home *h, struct home_thread *t, struct session *session, const struct frame *frame);
/* The errno that a call shows in place of its own value, since a write before it was answered and could not be made; 0: none. With the
 * lock held. */
int home_take_failure(struct home *h, const struct call *call);

/* ---- finish.c ---- */

/* Sends the reply of a call that has ended, unless another thread did; whether it has. Once the call is no longer BUSY its reply has its
 * place among the frames, before whatever is said to a guest that has nothing under way. */
int home_finish(struct home *h, struct home_thread *t);
/* Runs in the receiver, after a call is launched: stays with it for a while if it ought to be quick (`stays`), and sends its reply then. */
void home_stay_with(struct home *h, struct home_thread *t, int stays);
/* A thread that answers calls which take longer than the receiver spins, begun (0 or -errno) and ended. */
int home_begin_finishing(struct home *h);
void home_end_finishing(struct home *h);

/* ---- calls.c ---- */

/* Runs in the receiver: a CALL. */
int home_take_call(void *owner, struct session *session, const struct frame *frame);
#pragma GCC visibility pop
#endif
