/* What the parts of the guest's side have for one another. Each calls what stands before it here, and away.c; life.c calls them all. */
#ifndef FARHOME_AWAY_PARTS_H
#define FARHOME_AWAY_PARTS_H
#include "inspection/guest_signals.h"
#include "link/away/threads/away.h"

/* Whether a signal waits for the thread that its call lets in, which has a mask of its own. */
static inline int away_lets_in(const struct guest_thread *t)
{
	struct signal_sets s;
	return t->m.has_mask && !guest_signals(t->host_tid, &s) && (s.pending & ~t->m.signal_mask) != 0;
}

/* Of what one thread counts and anybody may read. */
static inline void away_add(uint64_t *number, int more)
{
	__atomic_store_n(number, *number + (uint64_t)more, __ATOMIC_RELAXED);
}

/* The guest may map the file that it has as `descriptor` by itself, for a while (mapping.c). */
void away_let_map(struct away *a, int descriptor, uint64_t size);
/* It may not any more. */
static inline void away_forbid_map(struct away *a)
{
	pthread_mutex_lock(&a->lock);
	a->map_descriptor = -1;
	a->map_size = 0;
	pthread_mutex_unlock(&a->lock);
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

/* ---- remembered.c ---- */

enum remembered_answer {
	ANSWERED_NOT,
	ANSWERED,
	ANSWERED_FROM_OPEN, /* which counts as such */
	TAKEN, /* the call was answered by the row itself, or will be */
};

/* What a reply has besides its results, in memory of its own. */
struct addition {
	void *bytes; /* NULL: nothing */
	size_t size;
};

/* What the node does with one thing that it remembers. Each function may be NULL. */
struct remembered_row {
	/* Whether it knows the answer to a call of the guest, and that. */
	enum remembered_answer (*answers)(struct away *a, struct guest_thread *t, const struct seccomp_notif *n,
	                                  const uint64_t arguments[6], int64_t *value);
	/* Whether home is to say more with the reply to the thread's call, which leaves now. */
	int (*wants)(struct away *a, struct guest_thread *t);
	uint32_t asks; /* the flag of a CALL that asks for it */
	/* The thread's call leaves: what it makes void is forgotten. */
	void (*leaves)(struct away *a, struct guest_thread *t);
	uint32_t brought_by; /* that of a REPLY which has it */
	/* Takes the addition of the reply to the thread's call, and may keep its bytes: then they are NULL afterwards. Whether it can be. */
	int (*brings)(struct away *a, struct guest_thread *t, const struct frame *frame, const struct reply *reply, struct addition *added);
	/* The reply to the thread's call has come, whatever it is. */
	void (*notes)(struct away *a, struct guest_thread *t, const struct reply *reply);
	int is_of_errors; /* also the reply to a call that has failed brings something */
};

#define REMEMBERED_ROWS 4
extern const struct remembered_row remembered_rows[REMEMBERED_ROWS];

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

/* ---- mapping.c ---- */

/* Whether a call maps what the guest may map by itself: then the node's kernel makes it. */
int away_may_map(struct away *a, const struct seccomp_notif *n);

/* ---- sending.c ---- */

/* Has the call that was marshalled under way. 0, or -ENOMEM. */
int away_send(struct away *a, struct guest_thread *t);
/* Sends a caught call home. Whether it was: else Python has to deal with it. */
int away_forward_caught(struct away *a, struct guest_thread *t, const uint64_t arguments[6], const struct call_entry *entry);

/* ---- calls.c ---- */

extern const struct listener_uses away_uses;
#pragma GCC visibility pop

#endif
