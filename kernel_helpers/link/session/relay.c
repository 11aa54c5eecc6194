/* A session whose calls are made and whose replies are taken by Python: for the reference interceptor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "link/link.h"

#define RELAYED_REPLY 15    /* neither an event's kind nor a control frame's: see PtraceLink */

/* Runs in the receiver: a REPLY becomes an event as if it were a control frame. */
static int take_reply(void *owner, struct session *session, const struct frame *frame)
{
	(void)owner;
	if (frame->kind != FRAME_REPLY || frame->length < sizeof(struct reply)) {
		session_broken(session, "a frame of unknown kind");
		return -1;
	}
	unsigned char *body = malloc(frame->length);
	if (!body || session_read(session, body, frame->length)) {
		free(body);
		return -1;
	}
	struct event event = {.kind = EVENT_CONTROL, .control = RELAYED_REPLY, .tid = frame->tid, .length = frame->length};
	session_accept(session, frame);
	session_event(session, &event, body);
	free(body);
	return 0;
}

struct session *relay_new(int event_fd)
{
	return session_new(take_reply, NULL, event_fd);
}

/* Posts a CALL or ABANDON. 0, -EINVAL, -ENOMEM. */
int relay_post(struct session *session, uint16_t kind, uint32_t tid, const void *data, uint32_t length)
{
	if ((kind != FRAME_CALL && kind != FRAME_ABANDON) || length > FRAME_LIMIT)
		return -EINVAL;
	struct outgoing *o = outgoing_new(kind, tid, 0);
	void *body = malloc(length + 1);
	if (!o || !body) {
		free(body);
		if (o)
			outgoing_free(o);
		return -ENOMEM;
	}
	memcpy(body, data, length);
	outgoing_body(o, body, length);
	session_post(session, o, SEND_LATER);
	return 0;
}
