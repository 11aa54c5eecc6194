/* Requests to the peer. While it is there they go straight to it. While it is not they wait, but no longer than the time-out; then they fail, as
 * does all that follows, until the peer is back. */
#define _GNU_SOURCE
#include "mfs/client/link/connection.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>

#define WAITING_MOST 4096 /* requests; more fail at once */

static struct mfs_held *first, **last = &first; /* under `lock` */
static unsigned held_count;

static bool is_too_late(long long now)
{
	return mfs_options.timeout && mfs_connection.lost_at && now - mfs_connection.lost_at > mfs_options.timeout;
}

static bool is_forget(uint32_t opcode)
{
	return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT;
}

/* Under `lock`. Whether it is kept for when the peer is there. */
static bool hold(const void *frame, size_t size)
{
	struct mfs_held *one;

	if (held_count >= WAITING_MOST || is_too_late(mfs_now()))
		return false;
	one = malloc(sizeof *one + size);
	if (!one)
		return false;
	one->next = NULL;
	one->since = mfs_now();
	one->size = size;
	memcpy(one->frame, frame, size);
	*last = one;
	last = &one->next;
	held_count++;
	mfs_figures->waiting = held_count;
	mfs_connection.wanted = true;
	pthread_cond_signal(&mfs_connection.needed);
	return true;
}

static struct mfs_held *take_held(void)
{
	struct mfs_held *one = first;

	if (one) {
		first = one->next;
		if (!first)
			last = &first;
		held_count--;
		mfs_figures->waiting = held_count;
	}
	return one;
}

void mfs_held_send(void)
{
	int result = 0;

	/* If that fails the connection is lost, and the kernel is made to ask again. */
	for (struct mfs_held *one; (one = take_held()); free(one))
		if (!result && (result = mfs_stream_write(&mfs_connection.to, one->frame, one->size)))
			mfs_stream_shut(&mfs_connection.from);
}

unsigned mfs_held_count(void)
{
	return held_count;
}

struct mfs_held *mfs_held_late(long long now)
{
	struct mfs_held *late = first;

	if (mfs_connection.connected || !is_too_late(now))
		return NULL;
	first = NULL;
	last = &first;
	held_count = 0;
	mfs_figures->waiting = 0;
	return late;
}

void mfs_held_fail(struct mfs_held *late)
{
	for (struct mfs_held *next; late; late = next) {
		struct fuse_in_header *in = (struct fuse_in_header *)late->frame;
		next = late->next;
		if (!is_forget(in->opcode))
			mfs_fuse_fail(in->unique, ENOTCONN);
		free(late);
	}
}

void mfs_link_forward(const void *frame, size_t size)
{
	const struct fuse_in_header *in = frame;
	bool kept = true;

	atomic_fetch_add(&mfs_figures->requests, 1);
	pthread_mutex_lock(&mfs_connection.sending);
	pthread_mutex_lock(&mfs_connection.lock);
	bool now = mfs_connection.connected;
	if (!now)
		kept = hold(frame, size);
	pthread_mutex_unlock(&mfs_connection.lock);
	/* If this fails the connection is lost, and the kernel is made to ask again. */
	if (now && mfs_stream_write(&mfs_connection.to, frame, size))
		mfs_stream_shut(&mfs_connection.from);
	pthread_mutex_unlock(&mfs_connection.sending);
	if (now)
		atomic_fetch_add(&mfs_figures->bytes_out, size);
	else if (!kept && !is_forget(in->opcode))
		mfs_fuse_fail(in->unique, ENOTCONN);
}

void mfs_link_send(const void *frame, size_t size)
{
	pthread_mutex_lock(&mfs_connection.sending);
	if (mfs_connection.connected && mfs_stream_write(&mfs_connection.to, frame, size))
		mfs_stream_shut(&mfs_connection.from);
	pthread_mutex_unlock(&mfs_connection.sending);
}
