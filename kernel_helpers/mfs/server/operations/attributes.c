/* Attributes: what a file is, whose, how large, since when; and of what file system. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

static long answer(struct mfs_request *request, struct mfs_node *node)
{
	struct fuse_attr_out *reply = (struct fuse_attr_out *)request->reply;
	struct stat stat;

	mfs_pages_measured(request->session, request->in->nodeid, 0); /* a thread that makes it larger from now on notifies the peer */
	if (fstat(node->fd, &stat))
		return -errno;
	memset(reply, 0, sizeof *reply);
	reply->attr_valid = mfs_promise_attributes(request, node, request->in->nodeid, &stat);
	mfs_pages_measured(request->session, request->in->nodeid, (uint64_t)stat.st_size);
	mfs_fill_attributes(&reply->attr, &stat);
	return sizeof *reply;
}

long mfs_getattr(struct mfs_request *request)
{
	struct mfs_node *node = mfs_node_get(&request->session->table, request->in->nodeid);

	if (!node)
		return -errno;
	long result = answer(request, node);
	mfs_node_put(&request->session->table, node);
	return result;
}

static int change_mode(const struct mfs_request *request, int fd, const struct fuse_setattr_in *asked)
{
	return asked->valid & FATTR_MODE ? fchmodat(AT_FDCWD, mfs_path_of(fd).text, mfs_mode(request, asked->mode), 0) : 0;
}

static int change_owner(int fd, const struct fuse_setattr_in *asked)
{
	if (!(asked->valid & (FATTR_UID | FATTR_GID)))
		return 0;
	uid_t uid = asked->valid & FATTR_UID ? asked->uid : (uid_t)-1;
	gid_t gid = asked->valid & FATTR_GID ? asked->gid : (gid_t)-1;
	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}

static int change_times(int fd, const struct fuse_setattr_in *asked)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

	if (!(asked->valid & (FATTR_ATIME | FATTR_MTIME)))
		return 0;
	if (asked->valid & FATTR_ATIME)
		times[0] = (struct timespec){.tv_sec = (time_t)asked->atime, .tv_nsec = asked->atimensec};
	if (asked->valid & FATTR_MTIME)
		times[1] = (struct timespec){.tv_sec = (time_t)asked->mtime, .tv_nsec = asked->mtimensec};
	if (asked->valid & FATTR_ATIME_NOW)
		times[0].tv_nsec = UTIME_NOW;
	if (asked->valid & FATTR_MTIME_NOW)
		times[1].tv_nsec = UTIME_NOW;
	return utimensat(AT_FDCWD, mfs_path_of(fd).text, times, 0);
}

/* -errno, or MFS_ALONE: others have to be waited for. */
static long change_size(struct mfs_request *request, struct mfs_node *node, const struct fuse_setattr_in *asked)
{
	struct mfs_session *session = request->session;
	long result = 0;

	if (!(asked->valid & FATTR_SIZE))
		return 0;
	if (asked->valid & FATTR_KILL_SUIDGID)
		mfs_without_fsetid();
	if (asked->valid & FATTR_FH) {
		/* It was opened for writing; whether it may be written to now does not matter. */
		struct mfs_file *file = mfs_handle_get(&session->handles, &session->table, asked->fh);
		if (!file)
			return -errno;
		result = ftruncate(file->fd, (off_t)asked->size) ? -errno : 0;
		mfs_handle_put(file);
		return result;
	}
	struct stat stat;
	if (fstat(node->fd, &stat))
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return S_ISDIR(stat.st_mode) ? -EISDIR : -EINVAL;
	mfs_lease_drop(node, false);
	int fd = mfs_open_patiently(node->fd, O_WRONLY);
	if (fd < 0)
		return -errno;
	result = ftruncate(fd, (off_t)asked->size) ? -errno : 0;
	close(fd);
	return result;
}

long mfs_setattr(struct mfs_request *request)
{
	const struct fuse_setattr_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_node *node = asked ? mfs_object(request, request->in->nodeid, true) : NULL;
	long result;

	if (!node)
		return asked ? -errno : -EINVAL;
	/* The size first: it may have to wait, and is then done again from the beginning. */
	result = change_size(request, node, asked);
	if (!result)
		result = mfs_assume(request->in->uid, request->in->gid); /* a file may have been opened again, as ourselves */
	if (!result && (change_mode(request, node->fd, asked) || change_owner(node->fd, asked) || change_times(node->fd, asked)))
		result = -errno;
	if (!result && asked->valid & FATTR_SIZE)
		mfs_pages_settle(request, request->in->nodeid, true);
	if (!result) {
		mfs_changed_by_peer(node);
		result = answer(request, node);
	}
	mfs_node_put(&request->session->table, node);
	return result;
}

long mfs_statfs(struct mfs_request *request)
{
	struct mfs_node *node = mfs_node_get(&request->session->table, request->in->nodeid);
	struct fuse_statfs_out *reply = (struct fuse_statfs_out *)request->reply;
	struct statfs about;

	if (!node)
		return -errno;
	long result = fstatfs(node->fd, &about) ? -errno : (long)sizeof *reply;
	mfs_node_put(&request->session->table, node);
	if (result < 0)
		return result;
	*reply = (struct fuse_statfs_out){
		.st =
			{
				.blocks = about.f_blocks,
				.bfree = about.f_bfree,
				.bavail = about.f_bavail,
				.files = about.f_files,
				.ffree = about.f_ffree,
				.bsize = (uint32_t)about.f_bsize,
				.namelen = (uint32_t)about.f_namelen,
				.frsize = (uint32_t)about.f_frsize,
			},
	};
	return result;
}

long mfs_access(struct mfs_request *request)
{
	const struct fuse_access_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_node *node = asked ? mfs_object(request, request->in->nodeid, asked->mask & W_OK) : NULL;

	if (!node)
		return asked ? -errno : -EINVAL;
	long result = faccessat(AT_FDCWD, mfs_path_of(node->fd).text, (int)asked->mask & 7, AT_EACCESS) ? -errno : 0;
	mfs_node_put(&request->session->table, node);
	return result;
}
