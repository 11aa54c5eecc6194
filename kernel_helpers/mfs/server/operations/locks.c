/* Locks on files, held in this node's kernel, so that processes here and on any peer exclude one another.
 *
 * flock() locks belong to an open file: they are taken on its descriptor here. fcntl() locks belong to a process: for each process and file
 * there is a descriptor here whose locks (F_OFD_...) stand for it; it is closed when the process closes the file. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct owner {
	uint64_t node, owner, handle;
	int fd;
	unsigned pins;
	unsigned ranges; /* that it may have by now; no more, anyway */
	bool dropped;
	struct owner *next;
};

struct mfs_locks {
	pthread_mutex_t lock;
	struct owner *owners;
	struct mfs_peer *peer;
};

struct mfs_locks *mfs_locks_new(struct mfs_peer *peer)
{
	struct mfs_locks *locks = calloc(1, sizeof *locks);

	if (locks) {
		pthread_mutex_init(&locks->lock, NULL);
		locks->peer = peer;
	}
	return locks;
}

static void unpin(struct mfs_locks *locks, struct owner *owner)
{
	pthread_mutex_lock(&locks->lock);
	bool last = !--owner->pins;
	pthread_mutex_unlock(&locks->lock);
	if (last) {
		close(owner->fd); /* and its locks are gone */
		mfs_place_give(locks->peer, MFS_LOCKERS, 1);
		free(owner);
	}
}

typedef bool (*chosen)(const struct owner *, uint64_t, uint64_t);

static void drop(struct mfs_locks *locks, chosen is_chosen, uint64_t a, uint64_t b)
{
	struct owner *gone = NULL;

	pthread_mutex_lock(&locks->lock);
	for (struct owner **at = &locks->owners; *at;) {
		struct owner *owner = *at;
		if (!is_chosen(owner, a, b)) {
			at = &owner->next;
			continue;
		}
		*at = owner->next;
		owner->next = gone;
		gone = owner;
	}
	pthread_mutex_unlock(&locks->lock);
	while (gone) {
		struct owner *next = gone->next;
		unpin(locks, gone);
		gone = next;
	}
}

static bool is_of_owner(const struct owner *one, uint64_t node, uint64_t owner)
{
	return one->node == node && one->owner == owner;
}

static bool is_of_handle(const struct owner *one, uint64_t handle, uint64_t unused)
{
	(void)unused;
	return one->handle == handle;
}

static bool is_any(const struct owner *one, uint64_t a, uint64_t b)
{
	(void)one, (void)a, (void)b;
	return true;
}

void mfs_locks_drop_owner(struct mfs_locks *locks, uint64_t node, uint64_t owner)
{
	drop(locks, is_of_owner, node, owner);
}

void mfs_locks_drop_handle(struct mfs_locks *locks, uint64_t handle)
{
	drop(locks, is_of_handle, handle, 0);
}

void mfs_locks_drop_all(struct mfs_locks *locks)
{
	drop(locks, is_any, 0, 0);
}

/* A descriptor for locks: whether the caller may have them its own kernel has decided, by how it opened the file. */
static int open_for_locks(int file)
{
	mfs_be_self();
	int fd = mfs_open_patiently(file, O_RDWR);

	return fd >= 0 || errno == ERESTART ? fd : mfs_open_patiently(file, O_RDONLY);
}

/* That process's, pinned; made if need be. NULL: errno says why. */
static struct owner *get_owner(struct mfs_locks *locks, uint64_t node, const struct fuse_lk_in *asked, int file)
{
	struct owner *found;

	struct owner *fresh = NULL;

	for (;;) {
		pthread_mutex_lock(&locks->lock);
		for (found = locks->owners; found && !is_of_owner(found, node, asked->owner); found = found->next)
			;
		if (!found && fresh) {
			fresh->next = locks->owners;
			locks->owners = found = fresh;
			fresh = NULL;
		}
		if (found) {
			found->handle = asked->fh;
			found->pins++;
		}
		pthread_mutex_unlock(&locks->lock);
		if (found)
			break;
		if (!mfs_place_take(locks->peer, MFS_LOCKERS))
			return errno = ENOLCK, NULL;
		int fd = open_for_locks(file); /* may wait for a lease; nobody is to wait for us meanwhile */
		if (fd < 0 || !(fresh = malloc(sizeof *fresh))) {
			int reason = errno;
			mfs_place_give(locks->peer, MFS_LOCKERS, 1);
			if (fd >= 0)
				close(fd);
			return errno = reason, NULL;
		}
		*fresh = (struct owner){.node = node, .owner = asked->owner, .fd = fd, .pins = 1};
	}
	if (fresh) {
		close(fresh->fd);
		mfs_place_give(locks->peer, MFS_LOCKERS, 1);
		free(fresh);
	}
	return found;
}

static struct flock to_flock(const struct fuse_file_lock *lock)
{
	return (struct flock){
		.l_type = (short)lock->type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)lock->start,
		.l_len = lock->end >= INT64_MAX ? 0 : (off_t)(lock->end - lock->start + 1),
	};
}

long mfs_getlk(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_lk_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? mfs_handle_get(&session->handles, &session->table, asked->fh) : NULL;
	struct fuse_lk_out *reply = (struct fuse_lk_out *)request->reply;

	if (!file)
		return asked ? -errno : -EINVAL;
	struct owner *owner = get_owner(session->locks, request->in->nodeid, asked, file->fd);
	long result = owner ? 0 : -errno;
	struct flock lock = to_flock(&asked->lk);
	if (owner && fcntl(owner->fd, F_OFD_GETLK, &lock))
		result = -errno;
	if (owner)
		unpin(session->locks, owner);
	mfs_handle_put(file);
	if (result)
		return result;
	*reply = (struct fuse_lk_out){.lk = {.type = (uint32_t)lock.l_type}};
	if (lock.l_type != F_UNLCK) {
		reply->lk.start = (uint64_t)lock.l_start;
		reply->lk.end = lock.l_len ? (uint64_t)(lock.l_start + lock.l_len - 1) : INT64_MAX;
	}
	return sizeof *reply;
}

/* How many it has, as the kernel reports. */
static unsigned count_ranges(int fd)
{
	char path[64], line[256];
	unsigned count = 0;

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	FILE *about = fopen(path, "re");
	while (about && fgets(line, sizeof line, about))
		count += !strncmp(line, "lock:", 5);
	if (about)
		fclose(about);
	return count;
}

/* Whether it may have one more: each lock, and each that is given up in part, may make one. */
static bool may_have_range(struct mfs_locks *locks, struct owner *owner, const struct fuse_lk_in *asked)
{
	bool is_all = !asked->lk.start && asked->lk.end >= INT64_MAX;

	pthread_mutex_lock(&locks->lock);
	if (is_all)
		owner->ranges = 0;
	else if (owner->ranges >= mfs_ranges_most)
		owner->ranges = count_ranges(owner->fd);
	bool may = is_all || owner->ranges < (asked->lk.type == F_UNLCK ? mfs_ranges_most + mfs_ranges_most / 2 : mfs_ranges_most);
	if (may)
		owner->ranges++;
	pthread_mutex_unlock(&locks->lock);
	return may;
}

/* Waits, if it may, until it is interrupted. */
static long take(int fd, const struct fuse_lk_in *asked, bool wait)
{
	struct flock lock = to_flock(&asked->lk);

	if (asked->lk_flags & FUSE_LK_FLOCK) {
		int how = asked->lk.type == F_RDLCK ? LOCK_SH : asked->lk.type == F_WRLCK ? LOCK_EX : LOCK_UN;
		return flock(fd, wait ? how : how | LOCK_NB) ? -errno : 0;
	}
	return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock) ? -errno : 0;
}

static long set_lock(struct mfs_request *request, bool wait)
{
	struct mfs_session *session = request->session;
	const struct fuse_lk_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? mfs_handle_get(&session->handles, &session->table, asked->fh) : NULL;
	struct owner *owner = NULL;
	long result = 0;

	if (!file)
		return asked ? -errno : -EINVAL;
	if (!(asked->lk_flags & FUSE_LK_FLOCK)) {
		owner = get_owner(session->locks, request->in->nodeid, asked, file->fd);
		result = owner ? may_have_range(session->locks, owner, asked) ? 0 : -ENOLCK : -errno;
	}
	if (!result)
		result = request->interrupted ? -EINTR : take(owner ? owner->fd : file->fd, asked, wait && request->alone);
	if (wait && !request->alone && (result == -EAGAIN || result == -EACCES))
		result = MFS_ALONE;
	if (!result && asked->lk.type != F_UNLCK)
		mfs_handle_mark(&session->handles, asked->fh, MFS_LOCKED);
	else if (!result && (asked->lk_flags & FUSE_LK_FLOCK || (!asked->lk.start && asked->lk.end >= INT64_MAX)))
		mfs_handle_mark(&session->handles, asked->fh, MFS_UNLOCKED);
	if (owner)
		unpin(session->locks, owner);
	mfs_handle_put(file);
	return result;
}

long mfs_setlk(struct mfs_request *request)
{
	return set_lock(request, false);
}

long mfs_setlkw(struct mfs_request *request)
{
	return set_lock(request, true);
}
