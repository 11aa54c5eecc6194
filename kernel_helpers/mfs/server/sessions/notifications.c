/* What a peer is sent besides replies: above all, what it is to forget. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

int mfs_send(struct mfs_session *session, const void *frame, size_t size)
{
	pthread_mutex_lock(&session->writing);
	int result = mfs_is_connected(session) ? mfs_stream_write(&session->out, frame, size) : 0;
	pthread_mutex_unlock(&session->writing);
	if (result)
		mfs_session_break(session);
	return result;
}

/* Under `writing`. */
static void send_notification(struct mfs_session *session, const void *frame, size_t size)
{
	if (mfs_is_connected(session) && mfs_stream_write(&session->out, frame, size))
		mfs_session_break(session);
}

void mfs_notify(struct mfs_session *session, const void *frame, size_t size)
{
	/* Counted first: a reply that is being made and sent before it loses its promises. */
	session->notified_at = mfs_now();
	atomic_fetch_add(&session->notified, 1);
	atomic_fetch_add(&session->counters->invalidations, 1);
	/* If not, something large is on its way to it; what it remembered has run out by itself. */
	bool may_send = mfs_lock_until(&session->writing, mfs_now() + MFS_SETTLES_WITHIN);
	if (may_send)
		send_notification(session, frame, size);
	atomic_fetch_add(&session->sent, 1);
	if (may_send)
		pthread_mutex_unlock(&session->writing);
}

uint64_t mfs_fence(struct mfs_session *session)
{
	struct {
		struct fuse_out_header header;
		uint64_t number;
	} fence = {.header = {.len = sizeof fence, .error = MFS_FENCE}};

	if (session->settled >= session->notified)
		return 0;
	if (!mfs_lock_until(&session->writing, mfs_now() + MFS_SETTLES_WITHIN))
		return session->notified;
	fence.number = session->sent; /* what others are about to send comes after it */
	send_notification(session, &fence, sizeof fence);
	pthread_mutex_unlock(&session->writing);
	return fence.number;
}

void mfs_fence_wait(struct mfs_session *session, uint64_t number, bool (*gives_up)(struct mfs_session *, void *), void *argument)
{
	long long end = mfs_now() + MFS_SETTLES_WITHIN;

	pthread_mutex_lock(&session->settling);
	while (session->settled < number && !(gives_up && gives_up(session, argument)) &&
	       mfs_wait_until(&session->is_settled, &session->settling, end))
		;
	pthread_mutex_unlock(&session->settling);
}

void mfs_forget_node(struct mfs_session *session, uint64_t id)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} inode = {.header = {.len = sizeof inode, .error = FUSE_NOTIFY_INVAL_INODE}, .body = {.ino = id, .off = 0, .len = 0}};

	mfs_notify(session, &inode, sizeof inode);
}
