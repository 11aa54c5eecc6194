/* Names: looking up, making, removing, renaming. */
#define _GNU_SOURCE
#include "mfs/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 4 /* to find what is moved at the same moment */

struct mfs_path mfs_path_of(int fd)
{
	struct mfs_path path;

	snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
	return path;
}

int mfs_own_files = -1;

struct mfs_path mfs_number_of(int fd)
{
	struct mfs_path path;

	snprintf(path.text, sizeof path.text, "%d", fd);
	return path;
}

/* Whether the node still is below its export, and where nothing is hidden: somebody may have moved it, or a directory above it. */
static bool is_inside(const struct mfs_export *export, int fd)
{
	char path[4096];
	size_t length = strlen(export->path);
	ssize_t count;

	if (export->fd < 0)
		return true; /* a direct file: where it is does not matter */
	count = readlinkat(mfs_own_files, mfs_number_of(fd).text, path, sizeof path - 1);
	if (count < 0)
		return false;
	path[count] = 0;
	if (export->hides && mfs_is_hidden_path(path))
		return false;
	return export->whole || (!strncmp(path, export->path, length) && (!path[length] || path[length] == '/'));
}

struct mfs_node *mfs_object(struct mfs_request *request, uint64_t id, bool writable)
{
	struct mfs_table *table = &request->session->table;
	struct mfs_node *node = mfs_node_get(table, id);
	int result = 0;

	if (!node)
		return NULL;
	if (mfs_node_kind(table, node) == MFS_ELSEWHERE)
		mfs_step_down(request); /* it may last */
	const struct mfs_export *export = &mfs_exports.all[mfs_node_export(table, node)];
	if (writable && (export->read_only || mfs_node_kind(table, node) == MFS_CLOSED))
		result = -EROFS;
	else if (export == &mfs_exports.all[MFS_DIRECT] && request->in->opcode != FUSE_OPEN)
		result = -EPERM;
	else if (!is_inside(export, node->fd))
		result = -ESTALE;
	else if (export == &mfs_exports.all[MFS_DIRECT] && request->squashed)
		mfs_be_self(); /* its own process has it open, and nobody else gets there */
	else
		result = mfs_assume(request->in->uid, request->in->gid);
	if (!result && writable)
		mfs_peer_may_change(node);
	if (!result)
		return node;
	mfs_node_put(table, node);
	return errno = -result, NULL;
}

struct mfs_node *mfs_directory(struct mfs_request *request, uint64_t id, bool writable)
{
	struct mfs_node *node = mfs_object(request, id, writable);

	if (!node || mfs_node_kind(&request->session->table, node) != MFS_CLOSED)
		return node;
	mfs_node_put(&request->session->table, node);
	return errno = writable ? EROFS : ENOENT, NULL;
}

int mfs_find(struct mfs_request *request, struct mfs_node *parent, const char *name, struct mfs_found *found)
{
	struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
	struct mfs_table *table = &request->session->table;

	if (found->below)
		how.resolve |= RESOLVE_NO_XDEV;
	found->names = false;
	if (mfs_is_hidden(parent->fd, name))
		return -ENOENT;
	if (request->told_of != parent) {
		request->told_of = parent;
		request->tells_names = mfs_promise_names(request, parent);
	}
	found->names = request->tells_names;
	int result = mfs_assume(request->in->uid, request->in->gid); /* what was told before may have taken a lease, as ourselves */
	if (result)
		return result;
	for (int tries = 0; tries < TRIES; tries++) {
		found->fd = (int)syscall(SYS_openat2, parent->fd, name, &how, sizeof how);
		if (found->fd >= 0 || (errno != EXDEV && errno != EAGAIN) || (errno == EXDEV && found->below))
			break;
	}
	if (found->fd < 0 && errno == EXDEV && found->below)
		return -EXDEV;
	if (found->fd < 0 && (errno == EXDEV || errno == EAGAIN)) {
		found->names = false; /* it is not there while it is being moved */
		return -ENOENT;
	}
	if (found->fd < 0)
		return -errno;
	found->export = mfs_node_export(table, parent);
	if (fstat(found->fd, &found->stat))
		goto failed;
	if (mfs_is_hidden_file(found->fd, &found->stat)) {
		close(found->fd);
		found->names = false;
		return -ENOENT;
	}
	for (unsigned i = 1; i < mfs_exports.count && S_ISDIR(found->stat.st_mode); i++) {
		const struct mfs_export *export = &mfs_exports.all[i];
		if (export->from_inode != found->stat.st_ino || export->from_device != found->stat.st_dev)
			continue;
		close(found->fd);
		found->fd = fcntl(export->fd, F_DUPFD_CLOEXEC, 0);
		found->export = i;
		if (found->fd < 0 || fstat(found->fd, &found->stat))
			goto failed;
		break;
	}
	found->kind = mfs_kind_of(found->fd, &found->stat, mfs_node_device(table, parent), mfs_node_kind(table, parent));
	return 0;
failed:;
	int reason = errno;
	if (found->fd >= 0)
		close(found->fd);
	return -reason;
}

int mfs_tell(struct mfs_request *request, struct mfs_found *found, struct fuse_entry_out *entry)
{
	memset(entry, 0, sizeof *entry);
	entry->nodeid = mfs_node_enter(&request->session->table, found->fd, &found->stat, found->export, found->kind);
	if (!entry->nodeid)
		return -errno;
	entry->entry_valid = found->names;
	struct mfs_node *node = &request->session->table.nodes[(uint32_t)entry->nodeid];
	mfs_pages_measured(request->session, entry->nodeid, 0);
	if (node->opened > 0)
		fstat(node->fd, &found->stat); /* what it has mapped has this end now */
	entry->attr_valid = mfs_promise_attributes(request, node, entry->nodeid, &found->stat);
	mfs_pages_measured(request->session, entry->nodeid, (uint64_t)found->stat.st_size);
	mfs_fill_attributes(&entry->attr, &found->stat);
	return 0;
}

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

/* What has that name, as far as that can be told: else of no inode. */
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
