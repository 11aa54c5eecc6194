/* Frames that leave a session: numbered, kept until the other side has them, and sent again on a new connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include "link/session/inner.h"

#define SIGN_OF_LIFE 1000       /* ms between two, if nothing else is sent */
#define LOOK 250                /* ms: whether a side that was silent is heard again */
#define TICK 3                  /* ms */
#define LAST_WORD 100           /* ms that it may wait to be sent */
#define SURE 8192               /* bytes: so few that are on their way keep no writer waiting */
#define LEAST_WAIT 20           /* ms: something is due, and somebody else is sending */

struct outgoing *outgoing_new(uint16_t kind, uint32_t tid, size_t head)
{
	struct outgoing *o = malloc(sizeof *o + head);
	if (!o)
		return NULL;
	memset(o, 0, sizeof *o);
	o->head = head;
	o->frame.kind = kind;
	o->frame.tid = tid;
	return o;
}

void *outgoing_head(struct outgoing *o)
{
	return o + 1;
}

void outgoing_body(struct outgoing *o, void *body, size_t length)
{
	o->body = body;
	o->body_length = length;
}

void outgoing_free(struct outgoing *o)
{
	free(o->body);
	free(o);
}

int session_send_bare(struct session *s, struct stream *stream, uint16_t kind, uint64_t acknowledged)
{
	struct frame frame = {.kind = kind, .acknowledged = acknowledged};
	struct iovec part = {&frame, sizeof frame};
	session_note_time(&s->spoken);
	return stream_send(stream, &part, 1, -1);
}

/* Sends what waits, unless another thread is doing so: that one sends ours as well. Called without locks. */
void session_drain(struct session *s, int wait)
{
	for (;;) {
		if (wait)
			pthread_mutex_lock(&s->sending);
		else if (pthread_mutex_trylock(&s->sending))
			return;
		pthread_mutex_lock(&s->lock);
		while (s->ready && s->next) {
			struct outgoing *o = s->next;
			struct stream *stream = s->stream;
			o->frame.acknowledged = s->acknowledged_sent = s->received;
			/* Before it is written: its answer, which acknowledges it, may be here before we look again. */
			if (o->frame.number > s->sent)
				s->sent = o->frame.number;
			s->carried += sizeof o->frame + o->head + o->body_length;
			pthread_mutex_unlock(&s->lock);
			struct iovec parts[2] = {{&o->frame, sizeof o->frame + o->head}, {o->body, o->body_length}};
			int failed = stream_send(stream, parts, o->body_length ? 2 : 1, -1);
			pthread_mutex_lock(&s->lock);
			session_note_time(&s->spoken);
			if (failed) {
				session_note_broken(s, strerror(-failed));
				break;
			}
			s->next = o->next;
			s->frames_out++;
		}
		pthread_mutex_unlock(&s->lock);
		pthread_mutex_unlock(&s->sending);
		/* One that was posted between our last look and the unlock found us sending: look again. */
		pthread_mutex_lock(&s->lock);
		int more = s->ready && s->next;
		pthread_mutex_unlock(&s->lock);
		if (!more)
			return;
	}
}

/* With the lock held. */
static uint64_t add(struct session *s, struct outgoing *o)
{
	o->frame.length = o->head + o->body_length;
	uint64_t number = o->frame.number = ++s->last_number;
	o->next = NULL;
	if (s->last)
		s->last->next = o;
	else
		s->first = o;
	s->last = o;
	if (!s->next)
		s->next = o;
	s->kept += o->frame.length;
	return number;
}

void session_set_before(struct session *s, void (*before)(void *owner))
{
	s->before = before;
}

void session_queue_first(struct session *s, struct outgoing *o)
{
	pthread_mutex_lock(&s->lock);
	add(s, o);
	pthread_mutex_unlock(&s->lock);
}

void session_send_later(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	s->later = 1;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

uint64_t session_queue(struct session *s, struct outgoing *o)
{
	if (s->before)
		s->before(s->owner);
	pthread_mutex_lock(&s->lock);
	uint64_t number = add(s, o);
	pthread_mutex_unlock(&s->lock);
	return number;
}

uint64_t session_queue_after(struct session *s, struct outgoing *o, uint64_t number)
{
	if (s->before)
		s->before(s->owner);
	pthread_mutex_lock(&s->lock);
	uint64_t given = s->last_number == number ? add(s, o) : 0;
	pthread_mutex_unlock(&s->lock);
	return given;
}

uint64_t session_last_queued(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	uint64_t number = s->last_number;
	pthread_mutex_unlock(&s->lock);
	return number;
}

void session_send(struct session *s)
{
	session_drain(s, 0);
}

uint64_t session_post(struct session *s, struct outgoing *o, enum send_mode mode)
{
	uint64_t number = session_queue(s, o);
	if (mode == SEND_NOW) {
		session_send(s);
		return number;
	}
	session_send_later(s);
	return number;
}

void session_post_soon(struct session *s, struct outgoing *o)
{
	pthread_mutex_lock(&s->lock);
	int is_sure = s->kept + o->head + o->body_length <= SURE;
	pthread_mutex_unlock(&s->lock);
	session_post(s, o, is_sure ? SEND_NOW : SEND_LATER);
}

int session_control(struct session *s, uint16_t kind, uint16_t flags, uint32_t tid, const void *data, uint32_t length)
{
	if (kind < FRAME_CONTROL || length > CONTROL_LIMIT)
		return -EINVAL;
	struct outgoing *o = outgoing_new(kind, tid, length);
	if (!o)
		return -ENOMEM;
	o->frame.flags = flags;
	memcpy(outgoing_head(o), data, length);
	session_post_soon(s, o);
	return 0;
}

int session_acknowledge(struct session *s, uint64_t number)
{
	if (number > s->sent)
		return -1;
	while (s->first && s->first->frame.number <= number) {
		struct outgoing *o = s->first;
		if (o == s->next)
			break;
		s->first = o->next;
		if (!s->first)
			s->last = NULL;
		s->kept -= o->frame.length;
		outgoing_free(o);
	}
	return 0;
}

int session_flush(struct session *s, int milliseconds)
{
	struct timespec pause = {0, 500000};
	int64_t begin;
	session_note_time(&begin);
	for (;;) {
		pthread_mutex_lock(&s->lock);
		int waiting = s->next != NULL;
		pthread_mutex_unlock(&s->lock);
		if (!waiting)
			return 0;
		if (session_milliseconds_since(&begin) > milliseconds)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
}

void session_say_received(struct session *s)
{
	if (pthread_mutex_trylock(&s->sending))
		return;
	pthread_mutex_lock(&s->lock);
	struct stream *stream = s->ready ? s->stream : NULL;
	uint64_t received = s->received;
	pthread_mutex_unlock(&s->lock);
	struct frame frame = {.kind = FRAME_HEARTBEAT, .acknowledged = received};
	struct iovec part = {&frame, sizeof frame};
	if (stream && stream_send(stream, &part, 1, LAST_WORD))
		session_broken(s, "closed");
	pthread_mutex_unlock(&s->sending);
}

/* Milliseconds until something may be due; the lock is held. */
static long patience(const struct session *s)
{
	long left = SIGN_OF_LIFE;
	if (__atomic_load_n(&s->ticking, __ATOMIC_SEQ_CST))
		return TICK;
	if (s->ready && left > SIGN_OF_LIFE - session_milliseconds_since(&s->spoken))
		left = SIGN_OF_LIFE - session_milliseconds_since(&s->spoken);
	if (s->stream && s->silence && !s->silent && !s->held && left > s->silence - session_milliseconds_since(&s->heard))
		left = s->silence - session_milliseconds_since(&s->heard);
	if (s->silent && left > LOOK)
		left = LOOK;
	return left < LEAST_WAIT ? LEAST_WAIT : left + 1;
}

void session_set_tick(struct session *s, int (*on_tick)(void *owner))
{
	s->on_tick = on_tick;
}

void session_tick(struct session *s)
{
	if (__atomic_exchange_n(&s->ticking, 1, __ATOMIC_SEQ_CST))
		return;
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* What others have asked to be done later. One that asks while we find that there is nothing is asked again. */
static void tick(struct session *s)
{
	__atomic_store_n(&s->ticking, 0, __ATOMIC_SEQ_CST);
	if (s->on_tick(s->owner))
		__atomic_store_n(&s->ticking, 1, __ATOMIC_SEQ_CST);
}

/* Sends what others may not wait for, and once a second a sign of life; notices the other side's silence. */
void *session_send_loop(void *argument)
{
	struct session *s = argument;
	pthread_setname_np(pthread_self(), "link-send");
	pthread_mutex_lock(&s->lock);
	while (!s->stopping) {
		if (!s->later) {
			struct timespec until;
			clock_gettime(CLOCK_MONOTONIC, &until);
			until.tv_nsec += patience(s) * 1000000L;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			pthread_cond_timedwait(&s->changed, &s->lock, &until);
		}
		struct stream *stream = s->stream;
		int work = s->later, ready = s->ready;
		s->later = 0;
		if (!work && stream && s->silence && !s->silent && !s->held && session_milliseconds_since(&s->heard) > s->silence) {
			s->silent = 1;
			session_plain_event(s, EVENT_SILENT, "");
		} else if (s->silent && session_milliseconds_since(&s->heard) <= s->silence) {
			s->silent = 0;
			session_plain_event(s, EVENT_HEARD, "");
		}
		uint64_t received = s->received;
		int ticks = __atomic_load_n(&s->ticking, __ATOMIC_SEQ_CST);
		if (ticks)
			__atomic_add_fetch(&s->with_owner, 1, __ATOMIC_SEQ_CST);
		pthread_mutex_unlock(&s->lock);
		if (ticks) {
			tick(s);
			__atomic_sub_fetch(&s->with_owner, 1, __ATOMIC_SEQ_CST);
		}
		if (work)
			session_drain(s, 1);
		else if (ready && session_milliseconds_since(&s->spoken) >= SIGN_OF_LIFE && !pthread_mutex_trylock(&s->sending)) {
			pthread_mutex_lock(&s->lock);
			ready = s->ready && s->stream == stream;
			pthread_mutex_unlock(&s->lock);
			int failed = ready ? session_send_bare(s, stream, FRAME_HEARTBEAT, received) : 0;
			if (failed)
				session_broken(s, strerror(-failed));
			pthread_mutex_unlock(&s->sending);
			session_drain(s, 1);    /* what was posted meanwhile counted on us */
		}
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}
