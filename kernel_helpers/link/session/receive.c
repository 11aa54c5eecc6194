/* Frames that arrive at a session, each once and in order: only its receiver runs what is here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "link/session/inner.h"

#define SPARE_LIMIT 8192        /* bodies at least this long are received in place, not through the buffer */

size_t session_buffered(const struct session *s)
{
	return s->end - s->begin;
}

int session_read(struct session *s, void *to, size_t length)
{
	unsigned char *at = to;
	while (length) {
		size_t have = s->end - s->begin;
		if (have) {
			if (have > length)
				have = length;
			memcpy(at, s->buffer + s->begin, have);
			s->begin += have;
			at += have;
			length -= have;
			continue;
		}
		int direct = length >= SPARE_LIMIT;
		ssize_t n = stream_receive(s->stream, direct ? at : s->buffer, direct ? length : SESSION_BUFFER, true);
		if (n <= 0) {
			session_broken(s, n == -EBADMSG ? "what came was changed on its way"
			                  : n           ? strerror(-n)
			                                : "closed by the other side");
			return -1;
		}
		session_note_time(&s->heard);
		if (direct) {
			at += n;
			length -= n;
		} else {
			s->begin = 0;
			s->end = n;
		}
	}
	return 0;
}

/* Spins until the next frame comes, for a while. What else may come of it, session_read() finds. */
static void spin(struct session *s)
{
	ssize_t n;
	if (s->begin < s->end || !spin_begins(&s->spinning))
		return;
	do
		n = stream_receive(s->stream, s->buffer, SESSION_BUFFER, false);
	while (n == -EAGAIN && spin_goes_on(&s->spinning));
	spin_ends(&s->spinning);
	if (n > 0) {
		session_note_time(&s->heard);
		s->begin = 0;
		s->end = n;
	}
}

int session_skip(struct session *s, size_t length)
{
	unsigned char waste[4096];
	while (length) {
		size_t part = length < sizeof waste ? length : sizeof waste;
		if (session_read(s, waste, part))
			return -1;
		length -= part;
	}
	return 0;
}

static int take_control(struct session *s, const struct frame *frame)
{
	if (frame->length > CONTROL_LIMIT) {
		session_broken(s, "a control frame is too long");
		return -1;
	}
	unsigned char *data = malloc(frame->length + 1);
	if (!data || session_read(s, data, frame->length)) {
		free(data);
		return -1;
	}
	struct event event = {.kind = EVENT_CONTROL,
	                      .tid = frame->tid,
	                      .control = frame->kind,
	                      .flags = frame->flags,
	                      .number = frame->number,
	                      .length = frame->length};
	pthread_mutex_lock(&s->lock);
	if (frame->flags & FRAME_BARRIER)
		s->held++;
	s->received = frame->number;
	session_add_event(s, &event, data);
	while (!s->stopping && (s->held || session_is_full(s)))
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
	free(data);
	return 0;
}

static int take_branch(struct session *s, const struct frame *frame)
{
	if (frame->length > BRANCH_PART) {
		session_broken(s, "a part of a branch is too long");
		return -1;
	}
	unsigned char *data = malloc(frame->length + 1);
	int failed = !data || session_read(s, data, frame->length);
	if (!failed) {
		session_accept(s, frame);
		session_give_branch(s, frame->tid, data, frame->length);
	}
	free(data);
	return failed ? -1 : 0;
}

static int take_frame(struct session *s)
{
	struct frame frame;
	spin(s);
	if (session_read(s, &frame, sizeof frame))
		return -1;
	if (frame.length > FRAME_LIMIT || (!frame.number && frame.length)) {
		session_broken(s, "a frame of senseless length");
		return -1;
	}
	pthread_mutex_lock(&s->lock);
	s->frames_in++;
	s->carried += sizeof frame + frame.length;
	if (s->broken) {        /* what is dropped now comes again */
		pthread_mutex_unlock(&s->lock);
		return -1;
	}
	int resume = frame.kind == FRAME_RESUME;
	int bad = resume != !s->ready;      /* RESUME comes first, and once */
	if (!bad)
		bad = session_acknowledge(s, frame.acknowledged);
	if (!bad && resume) {
		/* What the other side lacks is sent again: it is all kept, for only what it had was let go. */
		for (s->next = s->first; s->next && s->next->frame.number <= frame.acknowledged; s->next = s->next->next)
			;
		s->ready = 1;
		s->later = 1;
		session_plain_event(s, EVENT_CONNECTED, "");
		pthread_cond_broadcast(&s->changed);
	}
	if (!bad && frame.number && frame.number != s->received + 1 && frame.number > s->received)
		bad = 1;
	int seen = frame.number && frame.number <= s->received;
	int is_owners = frame.number && !seen && frame.kind < FRAME_CONTROL && frame.kind != FRAME_BRANCH;
	if (bad)
		session_note_broken(s, "a frame out of order");
	while (!bad && frame.number && s->held && !s->stopping)     /* by session_hold(): behind a barrier its own thread waits */
		pthread_cond_wait(&s->changed, &s->lock);
	if (!bad && is_owners)
		__atomic_add_fetch(&s->with_owner, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&s->lock);
	if (bad)
		return -1;
	if (!frame.number)
		return 0;
	if (seen)
		return session_skip(s, frame.length);
	if (frame.kind >= FRAME_CONTROL)
		return take_control(s, &frame);
	if (frame.kind == FRAME_BRANCH)
		return take_branch(s, &frame);
	int failed = s->handler(s->owner, s, &frame);
	__atomic_sub_fetch(&s->with_owner, 1, __ATOMIC_SEQ_CST);
	return failed ? -1 : 0;
}

void *session_receive_loop(void *argument)
{
	struct session *s = argument;
	pthread_setname_np(pthread_self(), "link-receive");
	for (;;) {
		pthread_mutex_lock(&s->lock);
		while (!s->fresh && !s->stopping)
			pthread_cond_wait(&s->changed, &s->lock);
		if (s->stopping) {
			pthread_mutex_unlock(&s->lock);
			return NULL;
		}
		s->stream = s->fresh;
		s->fresh = NULL;
		s->broken = s->ready = 0;
		s->reason[0] = 0;
		s->begin = s->end = 0;
		struct stream *stream = s->stream;
		uint64_t received = s->received;
		session_note_time(&s->heard);
		s->silent = 0;
		pthread_mutex_unlock(&s->lock);

		pthread_mutex_lock(&s->sending);
		int failed = session_send_bare(s, stream, FRAME_RESUME, received);
		pthread_mutex_unlock(&s->sending);
		if (failed)
			session_broken(s, strerror(-failed));
		while (!failed)
			failed = take_frame(s);

		pthread_mutex_lock(&s->lock);
		session_note_broken(s, "protocol error");
		pthread_mutex_unlock(&s->lock);
		pthread_mutex_lock(&s->sending);        /* nobody writes to it any more */
		pthread_mutex_lock(&s->lock);
		stream_close(s->stream);
		s->stream = NULL;
		if (!s->stopping && !s->fresh)
			session_plain_event(s, EVENT_CONNECTION_LOST, s->reason);
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->lock);
		pthread_mutex_unlock(&s->sending);
	}
}

/* A handler has the whole body of this frame: from here on it counts as received. */
void session_accept(struct session *s, const struct frame *frame)
{
	pthread_mutex_lock(&s->lock);
	s->received = frame->number;
	pthread_mutex_unlock(&s->lock);
}

uint64_t session_last_received(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t number = s->received;
	pthread_mutex_unlock(&s->lock);
	return number;
}

/* From here on no frame is handled, as behind a barrier; one that is being handled may still be. */
void session_hold(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	s->held++;
	pthread_mutex_unlock(&s->lock);
}

/* Lets go of one barrier, or of one hold: later frames are handled again. */
void session_release(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->held)
		s->held--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}
