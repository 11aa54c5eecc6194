/* Telling peers that names and attributes have changed.
 *
 * A peer's kernel may remember for MFS_TERM what it was told of a directory or file that has been quiet for a while. Whoever changes it then,
 * here or through us, is noticed by fanotify: the event is in the queue before the call that made it returns. The peers that may remember
 * are told to forget, and where it matters (mfs_watch_settle) it is waited for until they have.
 *
 * What is told of must not be older than what was said before of the same thing. So a node is marked as remembered before it is looked at;
 * and a reply that promises anything is sent under the same lock as notifications, and without its promises if there has been one since its
 * request was begun. */
#define _GNU_SOURCE
#include "mfs/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <unistd.h>

#define NOTIFY_INC_EPOCH 8

static const uint64_t names_change = FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO;
static const uint64_t itself_changes = FAN_ATTRIB | FAN_MOVE_SELF | FAN_DELETE_SELF | FAN_ONDIR;

static int arrivals = -1; /* an epoll of what all sessions are told */

static int mark(int events, unsigned how, int fd)
{
	struct stat stat;

	if (events < 0 || fstat(fd, &stat))
		return -EOPNOTSUPP;
	uint64_t mask = S_ISDIR(stat.st_mode) ? itself_changes | names_change : itself_changes;
	return fanotify_mark(events, how, mask, mfs_own_files, mfs_number_of(fd).text) ? -errno : 0;
}

int mfs_watch_mark(int events, int fd)
{
	return mark(events, FAN_MARK_ADD, fd);
}

void mfs_watch_unmark(int events, int fd)
{
	mark(events, FAN_MARK_REMOVE, fd);
}

int mfs_watch_mark_data(int events, int fd)
{
	return fanotify_mark(events, FAN_MARK_ADD, FAN_MODIFY, mfs_own_files, mfs_number_of(fd).text) ? -errno : 0;
}

void mfs_watch_unmark_data(int events, int fd)
{
	fanotify_mark(events, FAN_MARK_REMOVE, FAN_MODIFY, mfs_own_files, mfs_number_of(fd).text);
}

void mfs_forget_node(struct mfs_session *session, uint64_t id)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} inode = {.header = {.len = sizeof inode, .error = FUSE_NOTIFY_INVAL_INODE}, .body = {.ino = id, .off = 0, .len = 0}};

	mfs_notify(session, &inode, sizeof inode);
}

/* `handle` NULL: everything has. */
static void has_changed(struct mfs_session *session, const struct file_handle *handle, uint64_t mask)
{
	struct fuse_out_header names = {.len = sizeof names, .error = NOTIFY_INC_EPOCH};
	uint32_t index = 0;
	uint64_t id, found = 0;

	if (mask & FAN_MODIFY)
		mfs_pages_changed(session, handle);
	if (mask == FAN_MODIFY)
		return; /* whoever remembers attributes has been told before */
	while ((id = handle ? mfs_node_remembered(&session->table, handle) : mfs_node_next_remembered(&session->table, &index))) {
		mfs_forget_node(session, id);
		found = id;
	}
	/* A directory that has changed itself counts as not remembered from now on: neither are its names. */
	if (found && mask & (names_change | FAN_ONDIR))
		mfs_notify(session, &names, sizeof names);
}

/* Whether it is about a directory in which something has changed that is no name: that does not change the directory. */
static bool is_bystander(const struct fanotify_event_info_fid *about, uint64_t mask)
{
	const struct file_handle *handle = (const struct file_handle *)about->handle;
	const char *name = (const char *)handle->f_handle + handle->handle_bytes;

	return about->hdr.info_type == FAN_EVENT_INFO_TYPE_DFID_NAME && !(mask & names_change) && strcmp(name, ".");
}

static void take_event(struct mfs_session *session, const struct fanotify_event_metadata *event)
{
	const char *at = (const char *)(event + 1), *end = (const char *)event + event->event_len;

	uint64_t mask = event->mask;

	if (mask & FAN_Q_OVERFLOW)
		has_changed(session, NULL, names_change | FAN_MODIFY);
	const struct mfs_session *by = mfs_thread_serves(event->pid);
	if (by)
		mask &= ~(uint64_t)FAN_MODIFY; /* by a request, that tells the other peers itself */
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
	pthread_mutex_lock(&session->watching); /* whoever comes second finds that all has been told */
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
		if (epoll_wait(arrivals, &event, 1, -1) > 0)
			mfs_sessions_each(take_events, NULL);
	return NULL;
}

int mfs_watch_open(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int events = arrivals < 0 ? -1
	                          : fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_TID | FAN_REPORT_FID | FAN_REPORT_DFID_NAME |
	                                                  FAN_UNLIMITED_MARKS | FAN_NONBLOCK | FAN_CLOEXEC,
	                                          O_RDONLY);

	if (events >= 0 && epoll_ctl(arrivals, EPOLL_CTL_ADD, events, &event)) {
		close(events);
		events = -1;
	}
	return events;
}

int mfs_watch_begin(void)
{
	pthread_t thread;

	arrivals = epoll_create1(EPOLL_CLOEXEC);
	return arrivals < 0 ? -errno : -pthread_create(&thread, NULL, watch, NULL);
}
