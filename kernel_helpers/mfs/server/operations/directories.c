/* Listing directories, with what each entry is. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK (32u << 10)

struct entry { /* struct linux_dirent64 */
	uint64_t inode;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

long mfs_opendir(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	struct fuse_open_out *reply = (struct fuse_open_out *)request->reply;
	struct mfs_node *node = mfs_object(request, request->in->nodeid, false);

	if (!node)
		return -errno;
	const int flags = O_RDONLY | O_DIRECTORY;
	struct stat stat;
	int fd = openat(mfs_own_files, mfs_number_of(node->fd).text, flags | O_CLOEXEC);
	long result = fd < 0 ? -errno : (long)sizeof *reply;
	mfs_node_put(&session->table, node);
	if (result < 0)
		return result;
	*reply = (struct fuse_open_out){.fh = mfs_handle_enter(&session->handles, fd, request->in->nodeid, flags)};
	if (!reply->fh)
		return -errno;
	mfs_pages_opened(&session->table, request->in->nodeid, 1);
	/* Listings that the peer has may stay: before they are used, the directory's time of change is compared. */
	if (!fstat(fd, &stat) && mfs_is_old(&stat))
		reply->open_flags = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE;
	return result;
}

/* One entry of the reply at `to`, which has `room`; its size, 0: it does not fit. */
static size_t put_entry(struct mfs_request *request, struct mfs_node *node, const struct entry *entry, char *to, size_t room, bool plus)
{
	size_t name = strlen(entry->name), before = plus ? sizeof(struct fuse_entry_out) : 0;
	size_t size = before + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name);
	struct fuse_dirent *dirent = (struct fuse_dirent *)(to + before);

	if (size > room)
		return 0;
	memset(to, 0, size);
	if (plus && strcmp(entry->name, ".") && strcmp(entry->name, "..")) {
		struct mfs_found found = {.below = true};
		/* If it has gone meanwhile, or may not be looked up, it is reported by name alone (its node is 0); so is what is mounted there, for
		 * that may hang, and be nobody's concern. */
		if (!mfs_find(request, node, entry->name, &found))
			mfs_tell(request, &found, (struct fuse_entry_out *)to);
	}
	dirent->ino = mfs_inode(mfs_node_device(&request->session->table, node), entry->inode);
	dirent->off = (uint64_t)entry->next;
	dirent->namelen = (uint32_t)name;
	dirent->type = entry->type;
	memcpy(dirent->name, entry->name, name);
	return size;
}

static long list(struct mfs_request *request, struct mfs_node *node, int fd, const struct fuse_read_in *asked, bool plus)
{
	_Alignas(8) char chunk[CHUNK];
	size_t most = asked->size < request->room ? asked->size : request->room, used = 0;
	bool closed = mfs_node_kind(&request->session->table, node) == MFS_CLOSED;

	if (lseek(fd, (off_t)asked->offset, SEEK_SET) < 0)
		return -errno;
	for (;;) {
		long count = syscall(SYS_getdents64, fd, chunk, sizeof chunk);
		if (count < 0)
			return used ? (long)used : -errno;
		if (count == 0)
			return (long)used;
		for (long at = 0; at < count;) {
			const struct entry *entry = (const struct entry *)(chunk + at);
			bool is_self = !strcmp(entry->name, ".") || !strcmp(entry->name, "..");
			at += entry->length;
			if ((closed && !is_self) || mfs_is_hidden(node->fd, entry->name))
				continue;
			size_t size = put_entry(request, node, entry, request->reply + used, most - used, plus);
			if (!size)
				return used ? (long)used : -EINVAL;
			used += size;
		}
	}
}

static long read_directory(struct mfs_request *request, bool plus)
{
	struct mfs_session *session = request->session;
	const struct fuse_read_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? mfs_handle_get(&session->handles, &session->table, asked->fh) : NULL;

	if (!file)
		return asked ? -errno : -EINVAL;
	struct mfs_node *node = mfs_object(request, file->node, false);
	long result = node ? 0 : -errno;
	mfs_step_down(request);
	if (node) {
		pthread_mutex_lock(&file->reading);
		result = list(request, node, file->fd, asked, plus);
		pthread_mutex_unlock(&file->reading);
		mfs_node_put(&session->table, node);
	}
	mfs_handle_put(file);
	return result;
}

long mfs_readdir(struct mfs_request *request)
{
	return read_directory(request, false);
}

long mfs_readdirplus(struct mfs_request *request)
{
	return read_directory(request, true);
}

long mfs_fsyncdir(struct mfs_request *request)
{
	return mfs_fsync(request);
}
