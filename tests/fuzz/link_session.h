/* A session for handlers of frames that takes its bytes from the input: what the handlers see of a real one (link.h), without threads, a
 * connection, or encryption. Made by link_session.c, which is linked in place of session*.c. */
#ifndef FARHOME_FUZZ_LINK_SESSION_H
#define FARHOME_FUZZ_LINK_SESSION_H
#include "input.h"
#include "link/link.h"

struct session {
	session_handler handler;
	void *owner;
	struct input input;
	int is_broken;
	uint64_t accepted;      /* frames */
	uint64_t replies;       /* that were queued, REPLYs and CALLs */
};

/* Hands one frame of that header to the handler: its body is what comes next of the input. Whether the session goes on. */
int link_session_take(struct session *session, const struct frame *frame);

#endif
