/* What the parts of a session share, each of which calls only those after it: life.c its life, receive.c frames that arrive, branch.c
 * connections inside of its own, send.c frames that leave, events.c what is noted. Others know link.h. */
#ifndef FARHOME_SESSION_INNER_H
#define FARHOME_SESSION_INNER_H
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include "link/link.h"
#include "link/spin.h"

#define SESSION_BUFFER 65536
/* More than these wait for Python: the receiver waits too. */
#define EVENTS_LIMIT 4096
#define EVENTS_BYTES (8u << 20)

struct outgoing {
	struct outgoing *next;
	unsigned char *body;
	size_t head, body_length;
	struct frame frame;         /* followed by the head */
};

struct queued_event {
	struct queued_event *next;
	struct event event;
	unsigned char data[];
};

struct session {
	session_handler handler;
	int (*on_tick)(void *owner);
	void (*before)(void *owner);
	void *owner;
	int event_fd;
	pthread_t receiver, sender;
	pthread_mutex_t lock;       /* everything below but times and the receiver's own */
	pthread_mutex_t sending;    /* held while bytes are written; never waited for by SEND_LATER */
	pthread_cond_t changed;
	struct stream *stream, *fresh;  /* in use, and the next one; NULL: none */
	int ready, stopping, held, silent, later, broken;
	int ticking; /* atomic */
	int with_owner; /* atomic: threads that are in a function of the owner's, and are counted under the lock before */
	uint64_t last_number, sent, received, acknowledged_sent;
	struct outgoing *first, *last, *next;   /* kept frames in order; the first one not sent on this connection */
	struct queued_event *events, *events_tail;
	unsigned events_count;
	size_t events_bytes;
	struct branch *branches;
	int silence;                /* ms, 0: never */
	int64_t heard, spoken;      /* by session_note_time(), of each thread that sends or receives, with no lock */
	char reason[120];
	uint64_t kept, frames_in, frames_out, carried;
	/* the receiver's own */
	struct spin spinning;
	unsigned char buffer[SESSION_BUFFER];
	size_t begin, end;
};

void session_note_time(int64_t *when);
long session_milliseconds_since(const int64_t *when);

/* The lock is held. */
static inline int session_is_full(const struct session *s)
{
	return s->events_count >= EVENTS_LIMIT || s->events_bytes >= EVENTS_BYTES;
}
void session_add_event(struct session *s, const struct event *event, const void *data);
void session_plain_event(struct session *s, enum event_kind kind, const char *text);
void session_note_broken(struct session *s, const char *reason);     /* the connection is of no use; the receiver closes it */
int session_acknowledge(struct session *s, uint64_t number);         /* -1: it was never sent */

/* `sending` is held. */
int session_send_bare(struct session *s, struct stream *stream, uint16_t kind, uint64_t acknowledged);

/* Posts a frame that may be sent at once if its writer does not have to wait for that, as those do not that are so few. */
void session_post_soon(struct session *s, struct outgoing *o);

#define BRANCH_PART 65536       /* bytes of a frame for one, at most */
/* What has come for that one, if it is there still. */
void session_give_branch(struct session *s, uint32_t number, const void *data, size_t length);
void session_end_branches(struct session *s);

void *session_receive_loop(void *session);
void *session_send_loop(void *session);

#endif
