/* See link_session.h. */
#define _GNU_SOURCE
#include "link_session.h"
#include <stdlib.h>

struct outgoing {
	unsigned char *body;
	uint16_t kind;
	unsigned char head[];
};

struct session *session_new(session_handler handler, void *owner, int event_fd)
{
	struct session *s = calloc(1, sizeof *s);
	(void)event_fd;
	if (s) {
		s->handler = handler;
		s->owner = owner;
	}
	return s;
}

void session_free(struct session *s)
{
	free(s);
}
void session_say_received(struct session *s)
{
	(void)s;
}
void session_detach(struct session *s)
{
	s->is_broken = 1;
}

/* Fewer bytes than a frame has promised: the connection has broken. */
int session_read(struct session *s, void *to, size_t length)
{
	if (length > s->input.left) {
		s->is_broken = 1;
		return -1;
	}
	input_take(&s->input, to, length);
	return 0;
}

int session_skip(struct session *s, size_t length)
{
	if (length > s->input.left)
		return -1;
	s->input.at += length;
	s->input.left -= length;
	return 0;
}

void session_accept(struct session *s, const struct frame *frame)
{
	(void)frame;
	s->accepted++;
}

size_t session_buffered(const struct session *s)
{
	return s->input.left;
}

void session_broken(struct session *s, const char *reason)
{
	(void)reason;
	s->is_broken = 1;
}

void session_event(struct session *s, const struct event *event, const void *data)
{
	/* Read whole, as the queue of a real one copies it. */
	const unsigned char *bytes = data;
	volatile unsigned char last = 0;
	(void)s;
	for (uint32_t i = 0; i < event->length; i++)
		last = bytes[i];
	(void)last;
}

struct outgoing *outgoing_new(uint16_t kind, uint32_t tid, size_t head)
{
	struct outgoing *o = calloc(1, sizeof *o + head);
	(void)tid;
	if (o)
		o->kind = kind;
	return o;
}

void *outgoing_head(struct outgoing *o)
{
	return o->head;
}

void outgoing_body(struct outgoing *o, void *body, size_t length)
{
	(void)length;
	o->body = body;
}

void outgoing_free(struct outgoing *o)
{
	free(o->body);
	free(o);
}

uint64_t session_queue(struct session *s, struct outgoing *o)
{
	outgoing_free(o);
	return __atomic_add_fetch(&s->replies, 1, __ATOMIC_SEQ_CST);
}

uint64_t session_queue_after(struct session *s, struct outgoing *o, uint64_t number)
{
	(void)number;
	return session_queue(s, o);
}

uint64_t session_last_queued(struct session *s)
{
	return __atomic_load_n(&s->replies, __ATOMIC_SEQ_CST);
}

uint64_t session_last_received(struct session *s)
{
	(void)s;
	return 0; /* every frame has that number here */
}

void session_hand_over(struct session *s, void *owner)
{
	(void)s, (void)owner;
}

void session_set_before(struct session *s, void (*before)(void *owner))
{
	(void)s, (void)before;
}

void session_queue_first(struct session *s, struct outgoing *o)
{
	session_queue(s, o);
}

void session_send_later(struct session *s)
{
	(void)s;
}

void session_set_tick(struct session *s, int (*on_tick)(void *owner))
{
	(void)s, (void)on_tick;
}

void session_tick(struct session *s)
{
	(void)s;
}

void session_send(struct session *s)
{
	(void)s;
}

uint64_t session_post(struct session *s, struct outgoing *o, enum send_mode mode)
{
	(void)mode;
	return session_queue(s, o);
}

int session_control(struct session *s, uint16_t kind, uint16_t flags, uint32_t tid, const void *data, uint32_t length)
{
	struct event event = {.kind = kind, .flags = flags, .tid = tid, .length = length};
	session_event(s, &event, data);
	return 0;
}

int link_session_take(struct session *s, const struct frame *frame)
{
	/* As from a peer that has received all that was queued: another one is turned away at once. */
	struct frame full = *frame;
	full.acknowledged = __atomic_load_n(&s->replies, __ATOMIC_SEQ_CST);
	if (frame->length > FRAME_LIMIT)
		return 0;
	return !s->handler(s->owner, s, &full) && !s->is_broken;
}
