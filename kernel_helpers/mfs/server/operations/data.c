/* Open files: opening, reading, writing, and what else is done with their contents. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FOR_EXECUTION 0x20 /* FMODE_EXEC: an execve(), which needs no right to read */
#define NOBODY ((uint32_t)-1)

static const int passed_on = O_ACCMODE | O_APPEND | O_TRUNC | O_SYNC | O_DSYNC | O_LARGEFILE;

/* What goes to the peer's kernel about a file that it opens, and counts as open from then on. */
static void describe_open(struct mfs_table *table, struct fuse_open_out *reply, uint64_t number, uint64_t node, uint32_t flags)
{
	bool is_first = mfs_pages_opened(table, node, 1);

	*reply = (struct fuse_open_out){.fh = number};
	if ((flags & O_ACCMODE) == O_RDONLY)
		reply->open_flags |= FOPEN_NOFLUSH;
	else if (flags & O_APPEND)
		reply->open_flags |= FOPEN_DIRECT_IO; /* where the end is, only the home knows */
	else if ((flags & O_ACCMODE) == O_WRONLY && is_first)
		reply->open_flags |= FOPEN_DIRECT_IO; /* pages of what is written would have no reader: they are not made */
}

/* A descriptor of the node's file; -errno, or MFS_ALONE. has_name: it must still have one. */
static long open_file(int node, uint32_t flags, bool has_name)
{
	int how = (int)flags & passed_on;
	struct stat stat;

	if (fstat(node, &stat))
		return -errno;
	if (!S_ISREG(stat.st_mode))
		return S_ISDIR(stat.st_mode) ? -EISDIR : -EACCES; /* fifos, sockets and devices are each node's own */
	if (has_name && !stat.st_nlink)
		return -ESTALE;
	if (flags & FOR_EXECUTION && !mfs_is_for_writing(flags)) {
		if (faccessat(AT_FDCWD, mfs_path_of(node).text, X_OK, AT_EACCESS))
			return -errno;
		mfs_be_self();
	}
	int fd = mfs_open_patiently(node, how);
	return fd >= 0 ? fd : -errno;
}

long mfs_open(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_open_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_node *node = asked ? mfs_object(request, request->in->nodeid, mfs_is_for_writing(asked->flags)) : NULL;
	struct stat stat;

	if (!node)
		return asked ? -errno : -EINVAL;
	if (asked->open_flags & FUSE_OPEN_KILL_SUIDGID)
		mfs_without_fsetid();
	if (mfs_is_for_writing(asked->flags))
		mfs_drop_own_lease(request, node, false);
	/* What the peer does not have open it has found by a name. If it has none any more, word of that is still on its way; but the kernel looks
	 * the name up anew when it learns that it is stale. */
	long fd = open_file(node->fd, asked->flags, node->named && node->opened <= 0);
	uint64_t number = fd < 0 ? 0 : mfs_handle_enter(&session->handles, (int)fd, request->in->nodeid, (int)asked->flags & passed_on);
	if (!number) {
		long reason = fd < 0 ? fd : -errno;
		mfs_node_put(&session->table, node);
		return reason;
	}
	struct fuse_open_out *reply = (struct fuse_open_out *)request->reply;
	describe_open(&session->table, reply, number, request->in->nodeid, asked->flags);
	if (mfs_is_for_writing(asked->flags))
		node->writer = number;
	if (asked->flags & O_TRUNC)
		mfs_pages_settle(request, request->in->nodeid, true);
	/* Pages that the peer has may stay: before they are used, their time of change is compared; and then they may be mapped. */
	if (!mfs_is_for_writing(asked->flags))
		mfs_pages_kept(session, request->in->nodeid);
	if (!mfs_is_for_writing(asked->flags) && !fstat((int)fd, &stat) && mfs_is_old(&stat))
		reply->open_flags |= FOPEN_KEEP_CACHE;
	if (mfs_is_for_writing(asked->flags))
		mfs_tell_beside(request, node, request->in->nodeid);
	mfs_node_put(&session->table, node);
	return sizeof *reply;
}

/* Makes the file, or opens the one that somebody else has made meanwhile; as mfs_find, with a descriptor of the open file. */
static long create_or_open(struct mfs_request *request, struct mfs_node *parent, const char *name, const struct fuse_create_in *asked,
                           struct mfs_found *found)
{
	struct open_how how = {
		.flags = ((unsigned)asked->flags & (unsigned)passed_on) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		.mode = mfs_mode(request, asked->mode),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};

	if (mfs_is_hidden(parent->fd, name))
		return -EISDIR;
	umask(asked->umask);
	int fd = (int)syscall(SYS_openat2, parent->fd, name, &how, sizeof how);
	if (fd < 0 && (errno != EEXIST || asked->flags & O_EXCL))
		return -errno;
	if (fd >= 0) {
		mfs_changed_by_peer(parent);
		mfs_tell_beside(request, parent, request->in->nodeid);
	}
	long result = mfs_find(request, parent, name, found);
	if (result && fd >= 0)
		close(fd);
	if (result)
		return result;
	struct stat made;
	if (fd >= 0 && !fstat(fd, &made) && made.st_ino == found->stat.st_ino && made.st_dev == found->stat.st_dev) {
		request->makes = true;
		return fd;
	}
	if (fd >= 0)
		close(fd); /* renamed over at once: what has the name now is opened */
	result = open_file(found->fd, asked->flags, false);
	if (result < 0)
		close(found->fd);
	return result;
}

long mfs_create(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_create_in *asked = mfs_argument(request, sizeof *asked);
	const char *name = asked ? mfs_name(request, sizeof *asked) : NULL;
	struct mfs_node *parent = name ? mfs_directory(request, request->in->nodeid, true) : NULL;
	struct fuse_entry_out *entry = (struct fuse_entry_out *)request->reply;
	struct mfs_found found = {0};

	if (!parent)
		return name ? -errno : -EINVAL;
	long fd = create_or_open(request, parent, name, asked, &found);
	mfs_node_put(&session->table, parent);
	if (fd < 0)
		return fd;
	long result = mfs_tell(request, &found, entry);
	if (result) {
		close((int)fd);
		return result;
	}
	uint64_t number = mfs_handle_enter(&session->handles, (int)fd, entry->nodeid, (int)asked->flags & passed_on);
	if (!number) {
		mfs_node_forget(&session->table, entry->nodeid, 1);
		return -ENFILE;
	}
	describe_open(&session->table, (struct fuse_open_out *)(entry + 1), number, entry->nodeid, asked->flags);
	if (asked->flags & O_TRUNC)
		mfs_pages_settle(request, entry->nodeid, true);
	struct mfs_node *node = &session->table.nodes[(uint32_t)entry->nodeid];
	if (mfs_is_for_writing((uint32_t)asked->flags))
		node->writer = number;
	if (request->makes) {
		entry->attr_valid = mfs_promise_attributes(request, node, entry->nodeid, &found.stat);
		mfs_fill_attributes(&entry->attr, &found.stat);
	}
	return sizeof *entry + sizeof(struct fuse_open_out);
}

long mfs_read(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_read_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? mfs_handle_get(&session->handles, &session->table, asked->fh) : NULL;

	if (!file)
		return asked ? -errno : -EINVAL;
	size_t size = asked->size < request->room ? asked->size : request->room, done = 0;
	mfs_pages_given(session, file, true);
	if (size >= MFS_LARGE)
		mfs_step_down(request);
	while (done < size) {
		struct iovec part = {request->reply + done, size - done};
		/* As long as nobody else takes requests, only what is in memory. */
		ssize_t count = preadv2(file->fd, &part, 1, (off_t)(asked->offset + done), request->leads ? RWF_NOWAIT : 0);
		if (count < 0 && request->leads && (errno == EAGAIN || errno == EOPNOTSUPP)) {
			mfs_step_down(request);
			continue;
		}
		if (count < 0 && !done) {
			mfs_handle_put(file);
			return -errno;
		}
		if (count <= 0)
			break;
		done += (size_t)count;
	}
	if (done < size) /* where the peer takes the end to be */
		mfs_pages_measured(session, file->node, asked->offset + done);
	mfs_handle_put(file);
	atomic_fetch_add(&session->counters->bytes_read, done);
	return (long)done;
}

long mfs_write(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_write_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = NULL;
	long result = 0;

	if (!asked || request->size - sizeof *asked < asked->size)
		return -EINVAL;
	file = mfs_handle_get(&session->handles, &session->table, asked->fh);
	if (!file)
		return -errno;
	if (asked->size >= MFS_LARGE)
		mfs_step_down(request);
	/* Who writes matters: the kernel takes setuid bits away when others than root do. */
	if (request->in->uid == NOBODY)
		mfs_be_self(); /* pages of a mapping: nobody knows who has written them */
	else
		result = mfs_assume(request->in->uid, request->in->gid);
	if (!result && asked->write_flags & FUSE_WRITE_KILL_SUIDGID)
		mfs_without_fsetid();
	mfs_pages_given(session, file, false);
	if (!result) {
		ssize_t count = pwrite(file->fd, asked + 1, asked->size, (off_t)asked->offset);
		result = count < 0 ? -errno : (long)sizeof(struct fuse_write_out);
		*(struct fuse_write_out *)request->reply = (struct fuse_write_out){.size = count < 0 ? 0 : (uint32_t)count};
		atomic_fetch_add(&session->counters->bytes_written, count < 0 ? 0 : (unsigned long long)count);
	}
	if (result >= 0) /* who writes back what was mapped holds those pages: others may wait for it */
		mfs_pages_settle(request, file->node, !(asked->write_flags & FUSE_WRITE_CACHE));
	mfs_handle_put(file);
	return result;
}

long mfs_flush(struct mfs_request *request)
{
	const struct fuse_flush_in *asked = mfs_argument(request, sizeof *asked);

	if (!asked)
		return -EINVAL;
	/* Closing any descriptor of a file gives up the locks that the process has on it. */
	mfs_locks_drop_owner(request->session->locks, request->in->nodeid, asked->lock_owner);
	return 0;
}

long mfs_release(struct mfs_request *request)
{
	const struct fuse_release_in *asked = mfs_argument(request, sizeof *asked);

	if (!asked)
		return -EINVAL;
	mfs_locks_drop_handle(request->session->locks, asked->fh);
	struct mfs_table *table = &request->session->table;
	struct mfs_node *node = mfs_node_get(table, request->in->nodeid);
	if (node && node->writer == asked->fh) {
		node->writer = 0;
		mfs_drop_own_lease(request, node, true);
	}
	uint64_t id = mfs_handle_release(&request->session->handles, asked->fh);
	if (id)
		mfs_pages_opened(table, id, -1);
	if (node && id == request->in->nodeid && mfs_is_for_writing(asked->flags) && request->in->opcode == FUSE_RELEASE) {
		mfs_changed_by_peer(node);
		mfs_tell_beside(request, node, request->in->nodeid);
	}
	if (node)
		mfs_node_put(table, node);
	return 0;
}

/* The open file of a request that may take its time; NULL: errno says why. */
static struct mfs_file *slow_file(struct mfs_request *request, uint64_t number)
{
	struct mfs_file *file = mfs_handle_get(&request->session->handles, &request->session->table, number);

	mfs_step_down(request);
	return file;
}

long mfs_fsync(struct mfs_request *request)
{
	const struct fuse_fsync_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? slow_file(request, asked->fh) : NULL;

	if (!file)
		return asked ? -errno : -EINVAL;
	long result = (asked->fsync_flags & FUSE_FSYNC_FDATASYNC ? fdatasync(file->fd) : fsync(file->fd)) ? -errno : 0;
	mfs_handle_put(file);
	return result;
}

long mfs_syncfs(struct mfs_request *request)
{
	struct mfs_node *node = mfs_object(request, request->in->nodeid, false);
	int fd;

	if (!node)
		return -errno;
	mfs_step_down(request);
	mfs_be_self();
	fd = open(mfs_path_of(node->fd).text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long result = fd < 0 || syncfs(fd) ? -errno : 0;
	if (fd >= 0)
		close(fd);
	mfs_node_put(&request->session->table, node);
	return result;
}

long mfs_fallocate(struct mfs_request *request)
{
	const struct fuse_fallocate_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? slow_file(request, asked->fh) : NULL;

	if (!file)
		return asked ? -errno : -EINVAL;
	long result = mfs_assume(request->in->uid, request->in->gid);
	if (!result && fallocate(file->fd, (int)asked->mode, (off_t)asked->offset, (off_t)asked->length))
		result = -errno;
	if (!result)
		mfs_pages_settle(request, file->node, true);
	mfs_handle_put(file);
	return result;
}

long mfs_lseek(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_lseek_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *file = asked ? mfs_handle_get(&session->handles, &session->table, asked->fh) : NULL;

	if (!file)
		return asked ? -errno : -EINVAL;
	off_t found = lseek(file->fd, (off_t)asked->offset, (int)asked->whence);
	long result = found < 0 ? -errno : (long)sizeof(struct fuse_lseek_out);
	*(struct fuse_lseek_out *)request->reply = (struct fuse_lseek_out){.offset = (uint64_t)found};
	mfs_handle_put(file);
	return result;
}

long mfs_copy_range(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_copy_file_range_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_file *from = asked ? slow_file(request, asked->fh_in) : NULL;
	struct mfs_file *to = from ? mfs_handle_get(&session->handles, &session->table, asked->fh_out) : NULL;
	long result = to ? mfs_assume(request->in->uid, request->in->gid) : asked ? -errno : -EINVAL;

	if (to && !result) {
		off_t in = (off_t)asked->off_in, out = (off_t)asked->off_out;
		ssize_t count = copy_file_range(from->fd, &in, to->fd, &out, asked->len < 1u << 30 ? asked->len : 1u << 30, 0);
		result = count < 0 ? -errno : (long)sizeof(struct fuse_write_out);
		*(struct fuse_write_out *)request->reply = (struct fuse_write_out){.size = count < 0 ? 0 : (uint32_t)count};
		if (count > 0)
			mfs_pages_settle(request, to->node, true);
	}
	if (to)
		mfs_handle_put(to);
	if (from)
		mfs_handle_put(from);
	return result;
}

long mfs_tmpfile(struct mfs_request *request)
{
	struct mfs_session *session = request->session;
	const struct fuse_create_in *asked = mfs_argument(request, sizeof *asked);
	struct mfs_node *parent = asked ? mfs_directory(request, request->in->nodeid, true) : NULL;
	struct fuse_entry_out *entry = (struct fuse_entry_out *)request->reply;

	if (!parent)
		return asked ? -errno : -EINVAL;
	umask(asked->umask);
	int fd = open(mfs_path_of(parent->fd).text, ((int)asked->flags & passed_on) | O_TMPFILE | (int)(asked->flags & O_EXCL) | O_CLOEXEC,
	              asked->mode & 07777);
	struct mfs_found found = {.export = mfs_node_export(&session->table, parent), .kind = mfs_node_kind(&session->table, parent)};
	long result = fd < 0 ? -errno : 0;
	mfs_node_put(&session->table, parent);
	if (result)
		return result;
	found.fd = open(mfs_path_of(fd).text, O_PATH | O_CLOEXEC);
	if (found.fd < 0 || fstat(found.fd, &found.stat)) {
		result = -errno;
		if (found.fd >= 0)
			close(found.fd);
	} else {
		result = mfs_tell(request, &found, entry);
	}
	if (result) {
		close(fd);
		return result;
	}
	uint64_t number = mfs_handle_enter(&session->handles, fd, entry->nodeid, (int)asked->flags & passed_on);
	if (!number)
		return -ENFILE;
	describe_open(&session->table, (struct fuse_open_out *)(entry + 1), number, entry->nodeid, asked->flags);
	return sizeof *entry + sizeof(struct fuse_open_out);
}
