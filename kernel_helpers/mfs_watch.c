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
#include "mfs_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/fanotify.h>
#include <time.h>
#include <unistd.h>

#define NOTIFY_INC_EPOCH 8
#define DEVICES 64
#define UNUSED 5000 /* ms after which a file system is not watched any more if no peer has been told anything of it */
#define TICK 500    /* ms */

static const uint64_t names_change = FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO;
static const uint64_t changes = FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO | FAN_ATTRIB | FAN_MOVE_SELF | FAN_DELETE_SELF |
				FAN_ONDIR | FAN_EVENT_ON_CHILD;

static struct device {
	dev_t device;
	int fd;                 /* something on it */
	enum { FREE, WANTED, WATCHED, REFUSED } state;
	long long used;
} devices[DEVICES];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;
static int events = -1;

bool mfs_is_quiet(const struct stat *stat)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	long long age = (now.tv_sec - stat->st_ctim.tv_sec) * 1000ll + (now.tv_nsec - stat->st_ctim.tv_nsec) / 1000000;
	return age > MFS_QUIET;
}

bool mfs_is_watched(dev_t device, int fd)
{
	struct device *free = NULL;
	bool watched = false, known = false;

	if (events < 0)
		return false;
	pthread_mutex_lock(&devices_lock);
	for (struct device *one = devices; one < devices + DEVICES && !known; one++) {
		if (one->state == FREE) {
			free = free ? free : one;
		} else if (one->device == device) {
			known = true;
			watched = one->state == WATCHED;
			one->used = mfs_now();
		}
	}
	if (!known && free) {
		int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (own >= 0)
			*free = (struct device){.device = device, .fd = own, .state = WANTED, .used = mfs_now()};
	}
	pthread_mutex_unlock(&devices_lock);
	return watched;
}

/* Before the node is looked at: whoever changes it from now on finds that somebody may remember it. */
static void mark(struct mfs_request *request, struct mfs_node *node)
{
	request->promises = true;
	node->until = mfs_now() + MFS_TERM + MFS_MARGIN;
}

bool mfs_promise_names(struct mfs_request *request, struct mfs_node *directory)
{
	struct stat stat;

	if (events < 0 || !request->session->epochs || fstat(directory->fd, &stat) || !mfs_is_quiet(&stat) || !mfs_is_watched(stat.st_dev, directory->fd))
		return false;
	mark(request, directory);
	return true;
}

bool mfs_promise_attributes(struct mfs_request *request, struct mfs_node *node, uint64_t id, struct stat *stat)
{
	if (events < 0 || !mfs_is_quiet(stat) || !mfs_is_watched(stat->st_dev, node->fd))
		return false;
	mark(request, node);
	if (S_ISREG(stat->st_mode) && !mfs_lease_hold(request->session, node, id))
		return false;
	return !fstat(node->fd, stat);
}

/* Begins and ends to watch file systems, as is wanted. */
static void follow_devices(void)
{
	pthread_mutex_lock(&devices_lock);
	for (struct device *one = devices; one < devices + DEVICES; one++) {
		struct mfs_path path = mfs_path_of(one->fd);
		if (one->state == FREE)
			continue;
		if (one->state == WANTED)
			one->state = fanotify_mark(events, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, changes, AT_FDCWD, path.text) ? REFUSED : WATCHED;
		if (mfs_now() - one->used > UNUSED) {
			if (one->state == WATCHED)
				fanotify_mark(events, FAN_MARK_REMOVE | FAN_MARK_FILESYSTEM, changes, AT_FDCWD, path.text);
			close(one->fd);
			one->state = FREE;
		}
	}
	pthread_mutex_unlock(&devices_lock);
}

/* ---- telling peers ---- */

struct told {
	uint64_t mask;
	const struct file_handle *handle;
};

void mfs_forget_node(struct mfs_session *session, uint64_t id)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} inode = {.header = {.len = sizeof inode, .error = FUSE_NOTIFY_INVAL_INODE}, .body = {.ino = id, .off = 0, .len = 0}};

	mfs_notify(session, &inode, sizeof inode);
}

static void tell_session(struct mfs_session *session, void *argument)
{
	const struct told *told = argument;
	uint64_t id, found = 0;
	struct fuse_out_header names = {.len = sizeof names, .error = NOTIFY_INC_EPOCH};
	uint32_t index = 0;

	while ((id = told->handle ? mfs_node_remembered(&session->table, told->handle) : mfs_node_next_remembered(&session->table, &index))) {
		mfs_forget_node(session, id);
		found = id;
	}
	if (found && (!told->handle || told->mask & names_change))
		mfs_notify(session, &names, sizeof names);
}

static void take_event(const struct fanotify_event_metadata *event)
{
	const char *at = (const char *)(event + 1), *end = (const char *)event + event->event_len;

	if (event->mask & FAN_Q_OVERFLOW) {
		struct told everything = {0};
		mfs_sessions_each(tell_session, &everything);
		return;
	}
	while (at + sizeof(struct fanotify_event_info_fid) <= end) {
		const struct fanotify_event_info_fid *about = (const struct fanotify_event_info_fid *)at;
		struct told told = {.mask = event->mask, .handle = (const struct file_handle *)about->handle};
		mfs_sessions_each(tell_session, &told);
		at += about->hdr.len;
	}
}

/* All that is in the queue now. */
static void take_events(void)
{
	_Alignas(8) static char buffer[64 << 10];

	if (events < 0)
		return;
	pthread_mutex_lock(&reading);
	for (;;) {
		ssize_t count = read(events, buffer, sizeof buffer);
		const struct fanotify_event_metadata *event = (const struct fanotify_event_metadata *)buffer;
		if (count <= 0)
			break;
		for (long left = count; FAN_EVENT_OK(event, left); event = FAN_EVENT_NEXT(event, left))
			take_event(event);
	}
	pthread_mutex_unlock(&reading);
}

static void settle_session(struct mfs_session *session, void *except)
{
	if (session != except)
		mfs_fence_wait(session, mfs_fence(session));
}

void mfs_watch_settle(struct mfs_request *request)
{
	take_events();
	if (!mfs_sessions_unsettled(request->session))
		return;
	mfs_step_down(request); /* those that are waited for may wait for this one's peer */
	mfs_sessions_each(settle_session, request->session);
}

static void *watch(void *unused)
{
	struct pollfd watched = {.fd = events, .events = POLLIN};

	(void)unused;
	for (;;) {
		poll(&watched, 1, TICK);
		take_events();
		follow_devices();
	}
	return NULL;
}

int mfs_watch_begin(void)
{
	pthread_t thread;

	events = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_REPORT_DFID_NAME | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);
	if (events < 0)
		return -errno;
	return -pthread_create(&thread, NULL, watch, NULL);
}
