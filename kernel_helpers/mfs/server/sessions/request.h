/* mfs-server: one mount of a peer, and what it asks. */
#ifndef MFS_REQUESTS_H
#define MFS_REQUESTS_H

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "mfs/log.h"
#include "mfs/server/files/tables.h"
#include "mfs/server/server.h"
#include "mfs/wire.h"

struct mfs_locks;
struct mfs_ledger;

struct mfs_turn {
	pthread_mutex_t lock;
	pthread_cond_t is_free;
	bool taken;
	atomic_int waiting;
	/* The number of the leader's request; 0 while the leader waits. The thread that sets it to 0 holds the turn, or passes it on. */
	atomic_ullong at;
	unsigned long long last;
	atomic_llong since; /* ms, monotonic */
};

struct mfs_session {
	char peer[MFS_NAME_MOST];
	struct mfs_peer *owner; /* the same, and what it has of us */
	uint8_t id[MFS_SESSION];
	struct mfs_stream in, out;
	struct mfs_turn turn; /* to read from `in` */
	pthread_mutex_t writing;
	atomic_int threads; /* that serve it; */
	atomic_int busy; /* of these, who is at a request: not in the connections, but to answer it */
	atomic_uint connections; /* that it has had before */
	bool held; /* it is nobody's turn, for it is not connected yet; of who holds sessions_lock */
	atomic_bool broken, ended;
	atomic_int kept; /* by whom it is used besides its threads */
	atomic_ullong notified; /* notifications that are to be sent; */
	atomic_ullong sent; /* so many of them have been, or never will be */
	atomic_ullong dropped; /* what was promised to it, and taken back without a notification */
	atomic_ullong settled; /* of the notifications, how many the peer's kernel is known to have obeyed */
	atomic_llong notified_at; /* ms, monotonic: when the last was sent */
	pthread_mutex_t settling, watching;
	pthread_cond_t is_settled;
	atomic_llong heard; /* ms, monotonic */
	bool hurries; /* the last request came soon after the one before; the leader's */
	bool root_counts; /* its root is root here, too */
	pthread_mutex_t ends; /* of `in` and `out` themselves: who shuts them must not find others in their places */
	bool has_in, has_out, serving;
	atomic_bool epochs, takes_beside;
	struct mfs_table table;
	struct mfs_handles handles;
	struct mfs_locks *locks;
	struct mfs_ledger *ledger;
	struct mfs_counters *counters;
	struct mfs_session *next;
};

struct mfs_request {
	struct mfs_session *session;
	struct fuse_in_header *in;
	char *argument; /* what follows the header, ended by a NUL of ours */
	size_t size; /* of the argument */
	char *buffer; /* of the reply, with room for its header */
	char *reply; /* within it, after the header */
	size_t room; /* for the reply */
	void (*steps_down)(struct mfs_request *request); /* called once, of the thread that leads: see mfs_step_down */
	bool leads; /* nobody else takes requests until we step down, or have been at this one for long */
	unsigned long long number; /* by which it leads */
	bool alone; /* in a thread of its own: may wait for others */
	struct mfs_node *told_of; /* a directory that is looked into, and whether its names may be remembered */
	bool tells_names;
	bool makes; /* what it reports about is new, and the peer's own */
	bool promises; /* the reply says that something may be remembered */
	bool has_beside;
	struct mfs_beside beside;
	unsigned long long news; /* of the session, when it was begun */
	unsigned connection; /* by which it came */
	atomic_bool interrupted;
	bool squashed; /* the peer's root asks, who is nobody here */
};

#define MFS_AGAIN (1ull << 63) /* of a request's number: the kernel asks again (FUSE_UNIQUE_RESEND) */
#define MFS_ALONE (-ERESTART) /* a handler's result: others have to be waited for; to be done again in a thread of its own */
#define MFS_LARGE (64u << 10) /* bytes of a read or write: it is worth another thread's taking the next request meanwhile */
/* This thread serves that session until it ends. */
void mfs_thread_begin(struct mfs_session *session);
void mfs_thread_end(void);
struct mfs_session *mfs_thread_serves(int thread); /* NULL: it is none of ours */
/* Lets another thread take the next request: this one may last. */
static inline void mfs_step_down(struct mfs_request *request)
{
	if (request->leads)
		request->steps_down(request);
}

/* 0 or -errno; from then on a thread whose request takes long loses the turn. add_thread: has one more thread take requests, for which there
 * is a place. */
int mfs_turns_begin(void (*add_thread)(struct mfs_session *session));
extern void (*mfs_add_thread)(struct mfs_session *session); /* set when turns begin */
void mfs_turn_begin(struct mfs_turn *turn);
/* Waits until it is this thread's turn; false: the connection is broken. Ends it for good. */
bool mfs_turn_take(struct mfs_session *session);
void mfs_turn_end(struct mfs_session *session);
/* It is nobody's turn until it is ended; false: it is somebody's. */
bool mfs_turn_hold(struct mfs_session *session);
void mfs_turn_break(struct mfs_session *session); /* the connection is broken: nobody waits for his turn */
/* The leader has a request, under that number; is done with it: whether it leads still; or lets another lead, unless one does already. */
unsigned long long mfs_turn_work(struct mfs_session *session);
bool mfs_turn_goes_on(struct mfs_session *session, unsigned long long number);
void mfs_turn_give(struct mfs_session *session, unsigned long long number);
/* The argument as a structure; NULL if it is too short. */
void *mfs_argument(struct mfs_request *request, size_t size);
/* The string after `skip` bytes of the argument; NULL if there is none. A name: if it is one of a file. The second: what follows it. */
const char *mfs_word(struct mfs_request *request, size_t skip);
const char *mfs_name(struct mfs_request *request, size_t skip);
const char *mfs_second_name(struct mfs_request *request, const char *first);
int mfs_send(struct mfs_session *session, const void *frame, size_t size);

/* Ends its connections; its threads end then. */
void mfs_session_break(struct mfs_session *session);

/* ---- notifications to the peer: notifications.c ---- */

#define MFS_TERM 1000 /* ms for which a peer's kernel may use an answer, without asking */
#define MFS_MARGIN 300 /* ms more, for which a peer that does not answer is waited for */
#define MFS_SETTLES_WITHIN (MFS_TERM + MFS_MARGIN)

/* Under `writing`. To who is not, nothing is sent: it asks again. */
static inline bool mfs_is_connected(const struct mfs_session *session)
{
	return session->serving && !session->broken;
}

void mfs_notify(struct mfs_session *session, const void *frame, size_t size);
/* The peer is asked to forget attributes and data of a node. */
void mfs_forget_node(struct mfs_session *session, uint64_t id);
/* Asks the peer to say when it has obeyed all so far; the number of the last, 0: it has. */
uint64_t mfs_fence(struct mfs_session *session);
/* Until it has obeyed those up to that number, but no longer than it remembers anything; or until gives_up(argument). */
void mfs_fence_wait(struct mfs_session *session, uint64_t number, bool (*gives_up)(struct mfs_session *, void *), void *argument);

/* ---- who has a session: list.c ---- */

extern struct mfs_session *mfs_sessions; /* changed under the lock of anyone who begins and ends them, and */
extern pthread_rwlock_t mfs_list_lock;
void mfs_sessions_each(void (*visit)(struct mfs_session *, void *), void *argument);
bool mfs_sessions_unsettled(const struct mfs_session *except);
/* Whether it may still remember what it was asked to forget. */
bool mfs_session_is_unsettled(struct mfs_session *session);
/* Grows whenever a reply that is being made must not promise anything any more. */
unsigned long long mfs_session_news(const struct mfs_session *session);
void mfs_session_keep(struct mfs_session *session);
void mfs_session_let_go(struct mfs_session *session);

/* ---- predecessor.c ---- */

/* What the program before this one has promised runs out before anything is changed: waits for that, once after the start. */
void mfs_sessions_begin(void);
void mfs_wait_for_predecessor(struct mfs_request *request);

#endif
