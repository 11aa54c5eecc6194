/* Extended attributes, access control lists among them. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#define VALUE_MOST (64u << 10)

long mfs_setxattr(struct mfs_request *request)
{
	/* The short form of the structure: the long one has to be agreed upon. */
	const struct fuse_setxattr_in *asked = mfs_argument(request, FUSE_COMPAT_SETXATTR_IN_SIZE);
	const char *name = asked ? mfs_word(request, FUSE_COMPAT_SETXATTR_IN_SIZE) : NULL;

	if (!name)
		return -EINVAL;
	const char *value = name + strlen(name) + 1;
	if (value + asked->size != request->argument + request->size)
		return -EINVAL;
	struct mfs_node *node = mfs_object(request, request->in->nodeid, true);
	if (!node)
		return -errno;
	long result = setxattr(mfs_path_of(node->fd).text, name, value, asked->size, (int)asked->flags) ? -errno : 0;
	mfs_node_put(&request->session->table, node);
	return result;
}

/* The value, or its size if the caller has no room for it. */
static long answer(struct mfs_request *request, ssize_t count, uint32_t room)
{
	if (count < 0)
		return -errno;
	if (room)
		return count;
	*(struct fuse_getxattr_out *)request->reply = (struct fuse_getxattr_out){.size = (uint32_t)count};
	return sizeof(struct fuse_getxattr_out);
}

long mfs_getxattr(struct mfs_request *request)
{
	const struct fuse_getxattr_in *asked = mfs_argument(request, sizeof *asked);
	const char *name = asked ? mfs_word(request, sizeof *asked) : NULL;
	struct mfs_node *node = name ? mfs_object(request, request->in->nodeid, false) : NULL;

	if (!node)
		return name ? -errno : -EINVAL;
	uint32_t room = asked->size < VALUE_MOST ? asked->size : VALUE_MOST;
	long result = answer(request, getxattr(mfs_path_of(node->fd).text, name, request->reply, room), room);
	mfs_node_put(&request->session->table, node);
	return result;
}

long mfs_listxattr(struct mfs_request *request)
{
	const struct fuse_getxattr_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_node *node = asked ? mfs_object(request, request->in->nodeid, false) : NULL;

	if (!node)
		return asked ? -errno : -EINVAL;
	uint32_t room = asked->size < VALUE_MOST ? asked->size : VALUE_MOST;
	long result = answer(request, listxattr(mfs_path_of(node->fd).text, request->reply, room), room);
	mfs_node_put(&request->session->table, node);
	return result;
}

long mfs_removexattr(struct mfs_request *request)
{
	const char *name = mfs_word(request, 0);
	struct mfs_node *node = name ? mfs_object(request, request->in->nodeid, true) : NULL;

	if (!node)
		return name ? -errno : -EINVAL;
	long result = removexattr(mfs_path_of(node->fd).text, name) ? -errno : 0;
	mfs_node_put(&request->session->table, node);
	return result;
}
