/* What a peer is sent: replies, and notifications of what it is to forget. A reply that promises something is sent under the same lock as
 * notifications, and without its promises if there has been one since its request was begun. */
#define _GNU_SOURCE
#include "mfs/server/server.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

#define QUEUE_MOST (64 << 10) /* bytes on their way to a peer, behind which no promise is sent: it might come late */

/* Under `writing`. To who is not, nothing is sent: it asks again. */
static bool is_connected(const struct mfs_session *session)
{
	return session->serving && !session->broken;
}

int mfs_send(struct mfs_session *session, const void *frame, size_t size)
{
	pthread_mutex_lock(&session->writing);
	int result = is_connected(session) ? mfs_stream_write(&session->out, frame, size) : 0;
	pthread_mutex_unlock(&session->writing);
	if (result)
		mfs_session_break(session);
	return result;
}

/* Something has changed since the request was begun: what it is told holds now, and is not to be remembered. */
static void take_promises_back(struct mfs_request *request, size_t size)
{
	const size_t entry_size = sizeof(struct fuse_entry_out);

	switch (request->in->opcode) {
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		((struct fuse_attr_out *)request->reply)->attr_valid = 0;
		break;
	case FUSE_READDIRPLUS:
		for (char *at = request->reply; at + entry_size <= request->reply + size;) {
			struct fuse_direntplus *one = (struct fuse_direntplus *)at;
			one->entry_out.entry_valid = one->entry_out.attr_valid = 0;
			at += FUSE_DIRENTPLUS_SIZE(one);
		}
		break;
	case FUSE_OPEN:
	case FUSE_RELEASE:
		break;
	default:
		((struct fuse_entry_out *)request->reply)->entry_valid = 0;
		((struct fuse_entry_out *)request->reply)->attr_valid = 0;
	}
}

/* Whether much that was sent before has not arrived. */
static bool is_behind(const struct mfs_session *session)
{
	int queued = 0;

	return ioctl(session->out.fd, SIOCOUTQ, &queued) || queued > QUEUE_MOST;
}

void mfs_reply(struct mfs_request *request, long result)
{
	struct fuse_out_header *header = (struct fuse_out_header *)request->buffer;
	size_t size = sizeof(struct fuse_out_header) + (result > 0 ? (size_t)result : 0);

	*header = (struct fuse_out_header){.len = (uint32_t)size, .error = result < 0 ? (int32_t)result : 0, .unique = request->in->unique};
	mfs_ledger_note(request->session->ledger, request);
	struct mfs_session *session = request->session;
	pthread_mutex_lock(&session->writing);
	bool holds = !request->promises || (mfs_session_news(session) == request->news && !is_behind(session));
	if (!holds && result > 0)
		take_promises_back(request, (size_t)result);
	if (!holds)
		request->beside.attributes.attr_valid = 0;
	if (result >= 0 && request->has_beside) {
		memcpy(request->buffer + size, &request->beside, sizeof request->beside);
		size += sizeof request->beside;
		header->len = (uint32_t)size;
		header->unique |= MFS_BESIDE;
	}
	/* What came by a connection that is lost is asked again, and answered as that. */
	bool may_send = is_connected(session) && (request->connection == session->connections || header->unique & MFS_AGAIN);
	result = may_send ? mfs_stream_write(&session->out, request->buffer, size) : 0;
	pthread_mutex_unlock(&session->writing);
	if (result)
		mfs_session_break(session);
}

/* Under `writing`. */
static void send_notification(struct mfs_session *session, const void *frame, size_t size)
{
	if (is_connected(session) && mfs_stream_write(&session->out, frame, size))
		mfs_session_break(session);
}

void mfs_notify(struct mfs_session *session, const void *frame, size_t size)
{
	/* Counted first: a reply that is being made and sent before it loses its promises. */
	session->told = mfs_now();
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

void mfs_session_settle(struct mfs_session *session, uint64_t number)
{
	pthread_mutex_lock(&session->settling);
	if (number > session->settled && number <= session->notified)
		session->settled = number;
	pthread_cond_broadcast(&session->is_settled);
	pthread_mutex_unlock(&session->settling);
	mfs_leases_settled(session);
}
