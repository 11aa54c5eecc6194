/* What a peer is sent: replies, and notifications of what it is to forget. A reply that promises something is sent under the same lock as
 * notifications, and without its promises if there has been one since its request was begun. */
#define _GNU_SOURCE
#include "mfs/server/serving/serving.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

#define QUEUE_MOST (64 << 10) /* bytes on their way to a peer, behind which no promise is sent: it might come late */

/* Something has changed since the request was begun: the answer holds now, and is not to be remembered. */
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
	bool may_send = mfs_is_connected(session) && (request->connection == session->connections || header->unique & MFS_AGAIN);
	result = may_send ? mfs_stream_write(&session->out, request->buffer, size) : 0;
	pthread_mutex_unlock(&session->writing);
	if (result)
		mfs_session_break(session);
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
