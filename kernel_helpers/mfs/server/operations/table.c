/* Which handler does what is asked. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

static const mfs_handler handlers[] = {
	[FUSE_LOOKUP] = mfs_lookup,       [FUSE_GETATTR] = mfs_getattr,
	[FUSE_SETATTR] = mfs_setattr,     [FUSE_READLINK] = mfs_readlink,
	[FUSE_SYMLINK] = mfs_symlink,     [FUSE_MKNOD] = mfs_mknod,
	[FUSE_MKDIR] = mfs_mkdir,         [FUSE_UNLINK] = mfs_unlink,
	[FUSE_RMDIR] = mfs_rmdir,         [FUSE_RENAME] = mfs_rename,
	[FUSE_RENAME2] = mfs_rename2,     [FUSE_LINK] = mfs_link,
	[FUSE_OPEN] = mfs_open,           [FUSE_READ] = mfs_read,
	[FUSE_WRITE] = mfs_write,         [FUSE_STATFS] = mfs_statfs,
	[FUSE_RELEASE] = mfs_release,     [FUSE_FSYNC] = mfs_fsync,
	[FUSE_SETXATTR] = mfs_setxattr,   [FUSE_GETXATTR] = mfs_getxattr,
	[FUSE_LISTXATTR] = mfs_listxattr, [FUSE_REMOVEXATTR] = mfs_removexattr,
	[FUSE_FLUSH] = mfs_flush,         [FUSE_OPENDIR] = mfs_opendir,
	[FUSE_READDIR] = mfs_readdir,     [FUSE_READDIRPLUS] = mfs_readdirplus,
	[FUSE_RELEASEDIR] = mfs_release,  [FUSE_FSYNCDIR] = mfs_fsyncdir,
	[FUSE_GETLK] = mfs_getlk,         [FUSE_SETLK] = mfs_setlk,
	[FUSE_SETLKW] = mfs_setlkw,       [FUSE_ACCESS] = mfs_access,
	[FUSE_CREATE] = mfs_create,       [FUSE_FALLOCATE] = mfs_fallocate,
	[FUSE_LSEEK] = mfs_lseek,         [FUSE_COPY_FILE_RANGE] = mfs_copy_range,
	[FUSE_SYNCFS] = mfs_syncfs,       [FUSE_TMPFILE] = mfs_tmpfile,
};

static bool changes_names_or_attributes(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_SETATTR:
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
	case FUSE_CREATE:
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
		return true;
	}
	return false;
}

bool mfs_breaks_promises(const struct mfs_request *request)
{
	const struct fuse_open_in *asked = (const struct fuse_open_in *)request->argument;

	switch (request->in->opcode) {
	case FUSE_WRITE:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
		return true;
	case FUSE_OPEN:
		return request->size >= sizeof *asked && mfs_is_for_writing(asked->flags);
	}
	return changes_names_or_attributes(request->in->opcode);
}

long mfs_handle(struct mfs_request *request)
{
	uint32_t opcode = request->in->opcode;

	if (opcode >= sizeof handlers / sizeof *handlers || !handlers[opcode])
		return -ENOSYS;
	long result = handlers[opcode](request);

	/* Other peers have forgotten what was before when this one hears that it is done. */
	if (result >= 0 && changes_names_or_attributes(opcode))
		mfs_watch_settle(request);
	return result;
}
