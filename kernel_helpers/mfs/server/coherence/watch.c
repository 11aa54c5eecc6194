/* Telling peers that names and attributes have changed.
 *
 * A peer's kernel may remember for MFS_TERM what it has learned about a directory or file that has been quiet for a while. Anyone who changes it then,
 * here or through us, is noticed by fanotify: the event is in the queue before the call that made it returns. The peers that may remember
 * are asked to forget, and where it matters (mfs_watch_settle) it is waited for until they have.
 *
 * What is said about must not be older than what was said before of the same thing. So a node is marked as remembered before it is looked at;
 * and a reply that promises anything is sent under the same lock as notifications, and without its promises if there has been one since its
 * request was begun. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <unistd.h>

#define NOTIFY_INC_EPOCH 8

/* `handle` NULL: everything has. */
static void has_changed(struct mfs_session *session, const struct file_handle *handle, uint64_t mask)
{
	struct fuse_out_header names = {.len = sizeof names, .error = NOTIFY_INC_EPOCH};
	uint32_t index = 0;
	uint64_t id, found = 0;

	if (mask & FAN_MODIFY)
		mfs_pages_changed(session, handle);
	if (mask == FAN_MODIFY)
		return; /* peers that remember attributes have been notified before */
	while ((id = handle ? mfs_node_remembered(&session->table, handle) : mfs_node_next_remembered(&session->table, &index))) {
		mfs_forget_node(session, id);
		found = id;
	}
	/* A directory that has changed itself counts as not remembered from now on: neither are its names. */
	if (found && mask & (MFS_NAMES_CHANGE | FAN_ONDIR))
		mfs_notify(session, &names, sizeof names);
}

/* Whether it is about a directory in which something has changed that is no name: that does not change the directory. */
static bool is_bystander(const struct fanotify_event_info_fid *about, uint64_t mask)
{
	const struct file_handle *handle = (const struct file_handle *)about->handle;
	const char *name = (const char *)handle->f_handle + handle->handle_bytes;

	return about->hdr.info_type == FAN_EVENT_INFO_TYPE_DFID_NAME && !(mask & MFS_NAMES_CHANGE) && strcmp(name, ".");
}

static void take_event(struct mfs_session *session, const struct fanotify_event_metadata *event)
{
	const char *at = (const char *)(event + 1), *end = (const char *)event + event->event_len;

	uint64_t mask = event->mask;

	if (mask & FAN_Q_OVERFLOW)
		has_changed(session, NULL, MFS_NAMES_CHANGE | FAN_MODIFY);
	const struct mfs_session *by = mfs_thread_serves(event->pid);
	if (by)
		mask &= ~(uint64_t)FAN_MODIFY; /* by a request, that notifies the other peers itself */
	if (by == session)
		return; /* whose kernel knows */
	while (at + sizeof(struct fanotify_event_info_fid) <= end) {
		const struct fanotify_event_info_fid *about = (const struct fanotify_event_info_fid *)at;
		if (mask && !is_bystander(about, mask))
			has_changed(session, (const struct file_handle *)about->handle, mask);
		at += about->hdr.len;
	}
}

/* All that is in the session's queue now. */
static void take_events(struct mfs_session *session, void *except)
{
	_Alignas(8) char buffer[8192];

	if (session == except || session->table.events < 0)
		return;
	pthread_mutex_lock(&session->watching); /* the second thread finds that all has been reported */
	for (ssize_t count; (count = read(session->table.events, buffer, sizeof buffer)) > 0;) {
		const struct fanotify_event_metadata *event = (const struct fanotify_event_metadata *)buffer;
		for (; FAN_EVENT_OK(event, count); event = FAN_EVENT_NEXT(event, count))
			take_event(session, event);
	}
	pthread_mutex_unlock(&session->watching);
}

static void settle_session(struct mfs_session *session, void *except)
{
	if (session != except)
		mfs_fence_wait(session, mfs_fence(session), NULL, NULL);
}

void mfs_watch_settle(struct mfs_request *request)
{
	mfs_sessions_each(take_events, request->session);
	if (!mfs_sessions_unsettled(request->session))
		return;
	mfs_step_down(request); /* those that are waited for may wait for this one's peer */
	mfs_sessions_each(settle_session, request->session);
}

static void *watch(void *unused)
{
	struct epoll_event event;

	(void)unused;
	for (;;)
		if (epoll_wait(mfs_arrivals, &event, 1, -1) > 0)
			mfs_sessions_each(take_events, NULL);
	return NULL;
}

int mfs_watch_begin(void)
{
	pthread_t thread;

	mfs_arrivals = epoll_create1(EPOLL_CLOEXEC);
	return mfs_arrivals < 0 ? -errno : -pthread_create(&thread, NULL, watch, NULL);
}

static void let_go(struct mfs_table *table, uint32_t index)
{
	mfs_lease_drop(&table->nodes[index], false);
	mfs_stop_watching(table, index);
}

static void reopened(struct mfs_table *table, uint64_t node)
{
	mfs_pages_opened(table, node, 1);
}

void mfs_watch_session(struct mfs_session *session)
{
	session->table.events = mfs_watch_open();
	session->table.let_go = let_go;
	session->handles.reopened = reopened;
}
