/* A connection inside of another session's: what one side writes goes as frames of that session, the trunk, and so in its order and by its
 * keys. For a child whose session begins: it has a connection of its own when it lives longer.
 *
 * Nobody waits here but who reads. What is not read in time, or comes when the trunk has ended, breaks the branch, which is to its session
 * what the break of any connection is. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "link/session/inner.h"

#define UNREAD_MOST (1u << 20)  /* bytes that may wait to be read */

struct branch {
	struct branch *next;        /* in the trunk's list, under its lock */
	uint32_t number;
	unsigned uses;              /* the list, the stream, and who is at it */
	pthread_mutex_t posting;    /* held while something is given to the trunk */
	struct session *trunk;      /* under `posting`; NULL: it has ended */
	pthread_mutex_t lock;       /* all that follows */
	pthread_cond_t changed;
	unsigned char *unread;
	size_t begin, end, room;
	int over, shut;             /* the other side, or the trunk, has ended; ours has */
};

static void let_go(struct branch *b, unsigned uses)
{
	if (__atomic_sub_fetch(&b->uses, uses, __ATOMIC_ACQ_REL))
		return;
	pthread_mutex_destroy(&b->posting);
	pthread_mutex_destroy(&b->lock);
	pthread_cond_destroy(&b->changed);
	free(b->unread);
	free(b);
}

/* Takes it out of the trunk's list: whether it was there. */
static int leave(struct session *trunk, struct branch *b)
{
	pthread_mutex_lock(&trunk->lock);
	struct branch **at = &trunk->branches;
	while (*at && *at != b)
		at = &(*at)->next;
	int found = *at != NULL;
	if (found)
		*at = b->next;
	pthread_mutex_unlock(&trunk->lock);
	return found;
}

/* `posting` is held, and the trunk is there. 0 or -ENOMEM. */
static int post(struct branch *b, const unsigned char *data, size_t length)
{
	struct outgoing *o = outgoing_new(FRAME_BRANCH, b->number, length);
	if (!o)
		return -ENOMEM;
	if (length)
		memcpy(outgoing_head(o), data, length);
	session_post_soon(b->trunk, o);
	return 0;
}

static ssize_t receive(void *owner, void *to, size_t size, bool wait)
{
	struct branch *b = owner;
	ssize_t result = -EAGAIN;
	pthread_mutex_lock(&b->lock);
	while (wait && b->begin == b->end && !b->over && !b->shut)
		pthread_cond_wait(&b->changed, &b->lock);
	size_t have = b->end - b->begin;
	if (b->shut)
		result = 0;
	else if (have) {
		result = have < size ? have : size;
		memcpy(to, b->unread + b->begin, result);
		b->begin += result;
		if (b->begin == b->end)
			b->begin = b->end = 0;
	} else if (b->over)
		result = 0;
	pthread_mutex_unlock(&b->lock);
	return result;
}

static int send(void *owner, struct iovec *vector, size_t count)
{
	struct branch *b = owner;
	int result = 0;
	pthread_mutex_lock(&b->posting);
	for (size_t i = 0; i < count && !result; i++)
		for (size_t at = 0; at < vector[i].iov_len && !result; at += BRANCH_PART) {
			size_t left = vector[i].iov_len - at;
			result = b->trunk ? post(b, (unsigned char *)vector[i].iov_base + at, left < BRANCH_PART ? left : BRANCH_PART)
			                  : -EPIPE;
		}
	pthread_mutex_unlock(&b->posting);
	return result;
}

/* One of the two flags is set from here on, and each reader returns. */
static void set(struct branch *b, int *flag)
{
	pthread_mutex_lock(&b->lock);
	*flag = 1;
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

static void shut(void *owner)
{
	struct branch *b = owner;
	set(b, &b->shut);
}

static void end(void *owner)
{
	struct branch *b = owner;
	shut(b);
	pthread_mutex_lock(&b->posting);
	int was_listed = 0;
	if (b->trunk) {
		post(b, NULL, 0);
		was_listed = leave(b->trunk, b);
	}
	b->trunk = NULL;
	pthread_mutex_unlock(&b->posting);
	let_go(b, was_listed ? 2 : 1);
}

static const struct stream_kind kind = {receive, send, shut, end};

struct stream *session_branch(struct session *trunk, uint32_t number)
{
	struct branch *b = calloc(1, sizeof *b);
	struct stream *stream = b ? stream_of(&kind, b) : NULL;
	if (!stream) {
		free(b);
		return NULL;
	}
	b->number = number;
	b->uses = 2;
	b->trunk = trunk;
	pthread_mutex_init(&b->posting, NULL);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->changed, NULL);
	pthread_mutex_lock(&trunk->lock);
	b->next = trunk->branches;
	trunk->branches = b;
	pthread_mutex_unlock(&trunk->lock);
	return stream;
}

/* What has come for it. Too much: it is broken. */
static void take(struct branch *b, const void *data, size_t length)
{
	pthread_mutex_lock(&b->lock);
	size_t have = b->end - b->begin;
	if (length && !b->over && have + length > b->room && have + length <= UNREAD_MOST) {
		size_t twice = 2 * (have + length);
		size_t room = twice < BRANCH_PART ? BRANCH_PART : twice < UNREAD_MOST ? twice : UNREAD_MOST;
		unsigned char *more = malloc(room);
		if (more) {
			memcpy(more, b->unread + b->begin, have);
			free(b->unread);
			b->unread = more;
			b->room = room, b->begin = 0, b->end = have;
		}
	}
	if (!length || have + length > b->room)
		b->over = 1;
	else if (!b->over) {
		if (b->end + length > b->room) {
			memmove(b->unread, b->unread + b->begin, have);
			b->begin = 0, b->end = have;
		}
		memcpy(b->unread + b->end, data, length);
		b->end += length;
	}
	pthread_cond_broadcast(&b->changed);
	pthread_mutex_unlock(&b->lock);
}

void session_give_branch(struct session *s, uint32_t number, const void *data, size_t length)
{
	pthread_mutex_lock(&s->lock);
	struct branch *b = s->branches;
	while (b && b->number != number)
		b = b->next;
	if (b)
		__atomic_add_fetch(&b->uses, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&s->lock);
	if (b) {        /* else it has ended here */
		take(b, data, length);
		let_go(b, 1);
	}
}

void session_end_branches(struct session *s)
{
	pthread_mutex_lock(&s->lock);
	struct branch *b = s->branches;
	s->branches = NULL;
	pthread_mutex_unlock(&s->lock);
	while (b) {
		struct branch *next = b->next;
		pthread_mutex_lock(&b->posting);
		b->trunk = NULL;
		pthread_mutex_unlock(&b->posting);
		set(b, &b->over);
		let_go(b, 1);
		b = next;
	}
}
