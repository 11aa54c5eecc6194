/* The session under a link: numbered frames over a connection that may break and be made again.
 * Every numbered frame is seen exactly once and in order, in each direction: it is kept until the other side has said
 * that it has it, and after a new connection both sides say first how far they had come (RESUME).
 * A broken connection is an event for Python and nothing to anybody else. Nobody who posts SEND_LATER ever blocks. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "link/session/inner.h"

int session_attach(struct session *s, struct stream *stream)
{
	int on = 1;
	setsockopt(stream_socket(stream), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);   /* not a TCP socket in tests: then it fails */
	stream_wait_in_kernel(stream);
	pthread_mutex_lock(&s->lock);
	if (s->fresh)
		stream_close(s->fresh);
	s->fresh = stream;
	session_note_broken(s, "replaced by a new connection");
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

void session_detach(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	if (s->fresh)
		stream_close(s->fresh);
	s->fresh = NULL;
	session_note_broken(s, "detached");
	pthread_mutex_unlock(&s->lock);
}

void session_set_silence(struct session *s, int milliseconds)
{
	pthread_mutex_lock(&s->lock);
	s->silence = milliseconds;
	pthread_mutex_unlock(&s->lock);
}

/* 0: bytes kept for sending again; 1, 2: frames in, out; 3: connected; 4: last number received; 5: bytes in and out. */
uint64_t session_statistic(struct session *s, int which)
{
	pthread_mutex_lock(&s->lock);
	uint64_t values[] = {s->kept, s->frames_in, s->frames_out, s->ready, s->received, s->carried};
	uint64_t value = which >= 0 && which < 6 ? values[which] : 0;
	pthread_mutex_unlock(&s->lock);
	return value;
}

struct session *session_new(session_handler handler, void *owner, int event_fd)
{
	struct session *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->handler = handler;
	s->owner = owner;
	s->event_fd = event_fd;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->sending, NULL);
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&s->changed, &attributes);
	if (pthread_create(&s->receiver, NULL, session_receive_loop, s)) {
		free(s);
		return NULL;
	}
	if (pthread_create(&s->sender, NULL, session_send_loop, s)) {
		pthread_mutex_lock(&s->lock);
		s->stopping = 1;
		pthread_cond_broadcast(&s->changed);
		pthread_mutex_unlock(&s->lock);
		pthread_join(s->receiver, NULL);
		free(s);
		return NULL;
	}
	return s;
}

void session_hand_over(struct session *s, void *owner)
{
	struct timespec moment = {0, 20000};
	pthread_mutex_lock(&s->lock);
	while (__atomic_load_n(&s->with_owner, __ATOMIC_SEQ_CST)) {
		pthread_mutex_unlock(&s->lock);
		nanosleep(&moment, NULL);
		pthread_mutex_lock(&s->lock);
	}
	s->owner = owner;
	pthread_mutex_unlock(&s->lock);
}

/* Ends the threads; frames that were not acknowledged are gone with it. */
void session_free(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	s->stopping = 1;
	if (s->fresh)
		stream_close(s->fresh);
	s->fresh = NULL;
	session_note_broken(s, "closed");
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->receiver, NULL);
	pthread_join(s->sender, NULL);
	session_end_branches(s);
	while (s->first) {
		struct outgoing *next = s->first->next;
		outgoing_free(s->first);
		s->first = next;
	}
	while (s->events) {
		struct queued_event *next = s->events->next;
		free(s->events);
		s->events = next;
	}
	free(s);
}
