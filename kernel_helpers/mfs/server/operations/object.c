/* What a request is about: the node that it names, what has a name in it, and what is reported to the peer about that. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 4 /* to find what is moved at the same moment */

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
	int result = mfs_assume(request->in->uid, request->in->gid); /* an earlier report may have taken a lease, as ourselves */
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

uint32_t mfs_mode(const struct mfs_request *request, uint32_t mode)
{
	return mode & (request->squashed ? 01777 : 07777); /* what nobody has made is for nobody to be run as */
}
