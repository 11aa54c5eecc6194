/* Of which files the kernel notifies a session when they change. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <unistd.h>

static const uint64_t itself_changes = FAN_ATTRIB | FAN_MOVE_SELF | FAN_DELETE_SELF | FAN_ONDIR;
int mfs_arrivals = -1; /* an epoll of the notifications of all sessions */

static int mark(int events, unsigned how, int fd)
{
	struct stat stat;

	if (events < 0 || fstat(fd, &stat))
		return -EOPNOTSUPP;
	uint64_t mask = S_ISDIR(stat.st_mode) ? itself_changes | MFS_NAMES_CHANGE : itself_changes;
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

int mfs_watch_open(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int events = mfs_arrivals < 0 ? -1
	                              : fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_TID | FAN_REPORT_FID | FAN_REPORT_DFID_NAME |
	                                                      FAN_UNLIMITED_MARKS | FAN_NONBLOCK | FAN_CLOEXEC,
	                                              O_RDONLY);

	if (events >= 0 && epoll_ctl(mfs_arrivals, EPOLL_CTL_ADD, events, &event)) {
		close(events);
		events = -1;
	}
	return events;
}
