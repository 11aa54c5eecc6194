/* What is noted of a session: when it was heard, what Python is to hear of, and that its connection is of no use any more. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include "link/session/inner.h"

static int64_t monotonic_milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* Threads note and read times without a lock: each is one number. */
void session_note_time(int64_t *when)
{
	__atomic_store_n(when, monotonic_milliseconds(), __ATOMIC_RELAXED);
}

long session_milliseconds_since(const int64_t *when)
{
	return monotonic_milliseconds() - __atomic_load_n(when, __ATOMIC_RELAXED);
}

void session_add_event(struct session *s, const struct event *event, const void *data)
{
	struct queued_event *q = malloc(sizeof *q + event->length);
	if (!q)
		return;
	q->next = NULL;
	q->event = *event;
	memcpy(q->data, data, event->length);
	if (s->events)
		s->events_tail->next = q;
	else
		s->events = q;
	s->events_tail = q;
	s->events_count++;
	s->events_bytes += event->length;
	eventfd_write(s->event_fd, 1);
}

void session_event(struct session *s, const struct event *event, const void *data)
{
	pthread_mutex_lock(&s->lock);
	session_add_event(s, event, data);
	pthread_mutex_unlock(&s->lock);
}

void session_plain_event(struct session *s, enum event_kind kind, const char *text)
{
	struct event event = {.kind = kind, .length = strlen(text)};
	session_add_event(s, &event, text);
}

/* 1 and an event, 0: none, -ENOSPC: `room` is too small (event->length says what is needed). */
int session_next_event(struct session *s, struct event *event, void *data, uint32_t room)
{
	int result = 0;
	pthread_mutex_lock(&s->lock);
	struct queued_event *q = s->events;
	if (!q) {
		eventfd_t count;
		eventfd_read(s->event_fd, &count);
	} else {
		*event = q->event;
		if (q->event.length > room)
			result = -ENOSPC;
		else {
			memcpy(data, q->data, q->event.length);
			s->events = q->next;
			int was_full = session_is_full(s);
			s->events_count--;
			s->events_bytes -= q->event.length;
			if (was_full && !session_is_full(s))
				pthread_cond_broadcast(&s->changed);
			free(q);
			result = 1;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return result;
}

void session_note_broken(struct session *s, const char *reason)
{
	if (!s->stream || s->broken)
		return;
	s->broken = 1;
	s->ready = 0;
	snprintf(s->reason, sizeof s->reason, "%s", reason);
	stream_shut(s->stream);
}

void session_broken(struct session *s, const char *reason)
{
	pthread_mutex_lock(&s->lock);
	session_note_broken(s, reason);
	pthread_mutex_unlock(&s->lock);
}
