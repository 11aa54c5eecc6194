/* Names: looking up, making, removing, renaming. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The reply about what has that name now. */
static long answer(struct mfs_request *request, struct mfs_node *parent, const char *name)
{
	struct mfs_found found = {0};
	int result = mfs_find(request, parent, name, &found);
	struct fuse_entry_out *entry = (struct fuse_entry_out *)request->reply;

	if (result == -ENOENT && found.names) /* a promise, too: that there is none */
		*entry = (struct fuse_entry_out){.entry_valid = 1};
	else if (result || (result = mfs_tell(request, &found, entry)))
		return result;
	return sizeof *entry;
}

/* The same, after the request has made it. */
static long answer_made(struct mfs_request *request, struct mfs_node *parent, const char *name)
{
	mfs_changed_by_peer(parent);
	mfs_tell_beside(request, parent, request->in->nodeid);
	request->makes = true;
	return answer(request, parent, name);
}

long mfs_lookup(struct mfs_request *request)
{
	const char *name = mfs_name(request, 0);

	if (name && mfs_direct_is(request, name))
		return mfs_direct_lookup(request, name);
	struct mfs_node *parent = name ? mfs_directory(request, request->in->nodeid, false) : NULL;

	if (!parent)
		return name ? -errno : -EINVAL;
	long result = answer(request, parent, name);
	mfs_node_put(&request->session->table, parent);
	return result;
}

static int make_file(int parent, const char *name, mode_t mode)
{
	int fd = openat(parent, name, O_CREAT | O_EXCL | O_RDONLY | O_NOFOLLOW | O_CLOEXEC, mode);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

long mfs_mknod(struct mfs_request *request)
{
	const struct fuse_mknod_in *asked = mfs_argument(request, sizeof *asked);
	const char *name = asked ? mfs_name(request, sizeof *asked) : NULL;
	long result;

	if (!name)
		return -EINVAL;
	if (S_ISCHR(asked->mode) || S_ISBLK(asked->mode))
		return -EPERM; /* what a device is, is each node's own affair */
	struct mfs_node *parent = mfs_directory(request, request->in->nodeid, true);
	if (!parent)
		return -errno;
	umask(asked->umask);
	if (S_ISREG(asked->mode) || !(asked->mode & S_IFMT))
		result = make_file(parent->fd, name, mfs_mode(request, asked->mode));
	else
		result = mknodat(parent->fd, name, (asked->mode & S_IFMT) | mfs_mode(request, asked->mode), 0) ? -errno : 0;
	if (!result)
		result = answer_made(request, parent, name);
	mfs_node_put(&request->session->table, parent);
	return result;
}

long mfs_mkdir(struct mfs_request *request)
{
	const struct fuse_mkdir_in *asked = mfs_argument(request, sizeof *asked);
	const char *name = asked ? mfs_name(request, sizeof *asked) : NULL;
	struct mfs_node *parent = name ? mfs_directory(request, request->in->nodeid, true) : NULL;

	if (!parent)
		return name ? -errno : -EINVAL;
	umask(asked->umask);
	long result = mfs_is_hidden(parent->fd, name) ? -EEXIST : mkdirat(parent->fd, name, mfs_mode(request, asked->mode)) ? -errno : 0;
	if (!result)
		result = answer_made(request, parent, name);
	mfs_node_put(&request->session->table, parent);
	return result;
}

long mfs_symlink(struct mfs_request *request)
{
	const char *name = mfs_name(request, 0);
	const char *target = name ? mfs_second_name(request, name) : NULL;
	struct mfs_node *parent = target ? mfs_directory(request, request->in->nodeid, true) : NULL;

	if (!parent)
		return target ? -errno : -EINVAL;
	long result = symlinkat(target, parent->fd, name) ? -errno : 0;
	if (!result)
		result = answer_made(request, parent, name);
	mfs_node_put(&request->session->table, parent);
	return result;
}

long mfs_link(struct mfs_request *request)
{
	const struct fuse_link_in *asked = mfs_argument(request, sizeof *asked);
	const char *name = asked ? mfs_name(request, sizeof *asked) : NULL;
	struct mfs_table *table = &request->session->table;
	struct mfs_node *node = name ? mfs_object(request, asked->oldnodeid, true) : NULL;
	long result;

	if (!node)
		return name ? -errno : -EINVAL;
	struct mfs_node *parent = mfs_directory(request, request->in->nodeid, true);
	if (!parent) {
		result = -errno;
		mfs_node_put(table, node);
		return result;
	}
	result = linkat(AT_FDCWD, mfs_path_of(node->fd).text, parent->fd, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
	if (!result)
		result = answer_made(request, parent, name);
	mfs_node_put(table, parent);
	mfs_node_put(table, node);
	return result;
}

/* What has that name, as far as that is known: else of no inode. */
static struct stat look_at(struct mfs_node *parent, const char *name)
{
	struct stat found;

	return fstatat(parent->fd, name, &found, AT_SYMLINK_NOFOLLOW) ? (struct stat){0} : found;
}

static long remove_name(struct mfs_request *request, int flags)
{
	const char *name = mfs_name(request, 0);
	struct mfs_node *parent = name ? mfs_directory(request, request->in->nodeid, true) : NULL;

	if (!parent)
		return name ? -errno : -EINVAL;
	struct stat removed = look_at(parent, name);
	long result = mfs_is_hidden(parent->fd, name) ? -ENOENT : unlinkat(parent->fd, name, flags) ? -errno : 0;
	if (!result) {
		mfs_changed_by_peer(parent);
		mfs_tell_beside(request, parent, request->in->nodeid);
		mfs_tell_gone(request, &removed);
	}
	mfs_node_put(&request->session->table, parent);
	return result;
}

long mfs_unlink(struct mfs_request *request)
{
	return remove_name(request, 0);
}

long mfs_rmdir(struct mfs_request *request)
{
	return remove_name(request, AT_REMOVEDIR);
}

static long change_name(struct mfs_request *request, uint64_t to, const char *from_name, unsigned flags)
{
	struct mfs_table *table = &request->session->table;
	const char *to_name = from_name ? mfs_second_name(request, from_name) : NULL;
	struct mfs_node *from = to_name && !strchr(to_name, '/') ? mfs_directory(request, request->in->nodeid, true) : NULL;
	long result;

	if (!from)
		return to_name && !strchr(to_name, '/') ? -errno : -EINVAL;
	struct mfs_node *into = mfs_directory(request, to, true);
	struct stat moved = {0}, replaced = {0};
	if (into) {
		moved = look_at(from, from_name);
		replaced = look_at(into, to_name);
	}
	if (!into)
		result = -errno;
	else if (mfs_is_hidden(from->fd, from_name) || mfs_is_hidden(into->fd, to_name))
		result = -ENOENT;
	else
		result = syscall(SYS_renameat2, from->fd, from_name, into->fd, to_name, flags) ? -errno : 0;
	if (!result) {
		mfs_changed_by_peer(from);
		mfs_changed_by_peer(into);
		mfs_tell_gone(request, &moved);
		mfs_tell_gone(request, &replaced);
	}
	if (into)
		mfs_node_put(table, into);
	mfs_node_put(table, from);
	return result;
}

long mfs_rename(struct mfs_request *request)
{
	const struct fuse_rename_in *asked = mfs_argument(request, sizeof *asked);

	return asked ? change_name(request, asked->newdir, mfs_name(request, sizeof *asked), 0) : -EINVAL;
}

long mfs_rename2(struct mfs_request *request)
{
	const struct fuse_rename2_in *asked = mfs_argument(request, sizeof *asked);

	return asked ? change_name(request, asked->newdir, mfs_name(request, sizeof *asked), asked->flags) : -EINVAL;
}

long mfs_readlink(struct mfs_request *request)
{
	struct mfs_node *node = mfs_object(request, request->in->nodeid, false);

	if (!node)
		return -errno;
	ssize_t count = readlinkat(node->fd, "", request->reply, 4096);
	long result = count < 0 ? -errno : count;
	mfs_node_put(&request->session->table, node);
	return result;
}
