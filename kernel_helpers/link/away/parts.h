/* What the parts of the guest's side have for one another. Each calls what stands before it here, and away.c; life.c calls them all. */
#ifndef FARHOME_AWAY_PARTS_H
#define FARHOME_AWAY_PARTS_H
#include "inspection/guest_signals.h"
#include "link/away/away.h"

/* Whether a signal waits for the thread that its call lets in, which has a mask of its own. */
static inline int away_lets_in(const struct guest_thread *t)
{
	struct signal_sets s;
	return t->m.has_mask && !guest_signals(t->host_tid, &s) && (s.pending & ~t->m.signal_mask) != 0;
}

/* The thread has come out of whatever it read by itself (direct_calls.c). */
void away_direct_left(struct away *a, int host_tid);

#pragma GCC visibility push(hidden)
/* ---- parked.c ---- */

/* So much (bytes) of the call of that number is done, which the thread makes next. */
void away_note_part(struct away *a, struct guest_thread *t, int64_t number, int64_t done);
/* Of a thread's parked call. Whether there is one. */
int away_notification_of(struct away *a, int tid, uint64_t *id);

/* ---- direct_calls.c ---- */

/* Whether a call is dealt with because of a file that is direct, or about to be. */
int away_takes_directly(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]);

/* ---- clocks.c ---- */

/* A call is sent home, and its reply has come. */
void away_count_call(struct away *a, struct guest_thread *t);
void away_count_reply(struct away *a, struct guest_thread *t);
/* A cpu clock whose home share is known is answered at once. Whether it was. */
int away_answer_clock(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]);
/* A REPLY to a call of class SUM, whose bytes are the receiver's results. */
void away_add_used(struct away *a, struct guest_thread *t, uint32_t length);

/* ---- replies.c ---- */

/* Runs in the receiver: a REPLY. */
int away_take_reply(void *owner, struct session *session, const struct frame *frame);

/* ---- classes.c ---- */

/* What is particular about the calls of a class. */
struct class_row {
	/* The call's answer, if it needs no word of home, whether or not the thread is known (NULL: it is). */
	int (*answers)(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]);
	/* Whether Python deals with the call; NULL: it goes home. */
	int (*is_for_python)(struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]);
	/* What goes home with it. */
	void (*adds)(struct away *a, struct guest_thread *t);
	/* Home has made it, and has not failed; the results are the receiver's still. `length`: of the first; 0: there is none. */
	void (*after)(struct away *a, struct guest_thread *t, uint32_t length);
	/* The node's kernel makes it as well. */
	int is_made_here;
	/* Any thread's call is answered, be it ours or not. */
	int is_anybodys;
};

const struct class_row *away_class(int class);

/* ---- calls.c ---- */

extern const struct hub_uses away_uses;
/* Has the call that was marshalled under way. 0, or -ENOMEM. */
int away_send(struct away *a, struct guest_thread *t);
#pragma GCC visibility pop

#endif
