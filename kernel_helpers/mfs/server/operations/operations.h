/* mfs-server: what peers ask, and what the handlers share. */
#ifndef MFS_OPERATIONS_H
#define MFS_OPERATIONS_H

#include "mfs/server/coherence/coherence.h"

/* ---- table.c ---- */

/* Carries it out; the result. */
long mfs_handle(struct mfs_request *request);
/* Whether others may have been promised that it does not happen without their knowing. */
bool mfs_breaks_promises(const struct mfs_request *request);

typedef long (*mfs_handler)(struct mfs_request *request);

long mfs_lookup(struct mfs_request *request);
long mfs_mknod(struct mfs_request *request);
long mfs_mkdir(struct mfs_request *request);
long mfs_unlink(struct mfs_request *request);
long mfs_rmdir(struct mfs_request *request);
long mfs_rename(struct mfs_request *request);
long mfs_rename2(struct mfs_request *request);
long mfs_link(struct mfs_request *request);
long mfs_symlink(struct mfs_request *request);
long mfs_readlink(struct mfs_request *request);
long mfs_getattr(struct mfs_request *request);
long mfs_setattr(struct mfs_request *request);
long mfs_statfs(struct mfs_request *request);
long mfs_access(struct mfs_request *request);
long mfs_setxattr(struct mfs_request *request);
long mfs_getxattr(struct mfs_request *request);
long mfs_listxattr(struct mfs_request *request);
long mfs_removexattr(struct mfs_request *request);
long mfs_opendir(struct mfs_request *request);
long mfs_readdir(struct mfs_request *request);
long mfs_readdirplus(struct mfs_request *request);
long mfs_fsyncdir(struct mfs_request *request);
long mfs_open(struct mfs_request *request);
long mfs_create(struct mfs_request *request);
long mfs_tmpfile(struct mfs_request *request);
long mfs_read(struct mfs_request *request);
long mfs_write(struct mfs_request *request);
long mfs_flush(struct mfs_request *request);
long mfs_release(struct mfs_request *request);
long mfs_fsync(struct mfs_request *request);
long mfs_fallocate(struct mfs_request *request);
long mfs_lseek(struct mfs_request *request);
long mfs_copy_range(struct mfs_request *request);
long mfs_syncfs(struct mfs_request *request);
long mfs_getlk(struct mfs_request *request);
long mfs_setlk(struct mfs_request *request);
long mfs_setlkw(struct mfs_request *request);

/* What handlers share. */
struct mfs_found {
	int fd; /* O_PATH */
	bool names; /* the peer may remember this name, or that there is none */
	bool below; /* asked: what is mounted there is not to be found (EXDEV) */
	struct stat stat;
	unsigned export;
	enum mfs_kind kind;
};

/* What has that name in the directory, sought as the user that this thread is; 0 or -errno. */
int mfs_find(struct mfs_request *request, struct mfs_node *parent, const char *name, struct mfs_found *found);
/* Makes it known to the peer (takes its fd) and reports it: 0 or -errno. */
int mfs_tell(struct mfs_request *request, struct mfs_found *found, struct fuse_entry_out *entry);
/* The node, pinned, found to be where it was exported, and this thread acting as the caller; NULL: errno says why. writable: it is to be changed.
 * A directory is to be one whose contents peers may see. */
struct mfs_node *mfs_object(struct mfs_request *request, uint64_t id, bool writable);
struct mfs_node *mfs_directory(struct mfs_request *request, uint64_t id, bool writable);
/* The permission bits that the request may give a file. */
uint32_t mfs_mode(const struct mfs_request *request, uint32_t mode);

/* ---- direct files ---- */

int mfs_direct_begin(void);
/* Readable when something has been deposited; -1 before mfs_direct_begin(). */
int mfs_direct_mailbox(void);
/* Takes what was deposited. */
void mfs_direct_take(void);
/* Takes what was deposited, forgets what nobody came for. */
void mfs_direct_look(void);
/* Whether that name, which the request looks up, is a token. */
bool mfs_direct_is(const struct mfs_request *request, const char *name);
long mfs_direct_lookup(struct mfs_request *request, const char *name);

/* ---- locks ---- */

struct mfs_locks *mfs_locks_new(struct mfs_peer *peer);
void mfs_locks_drop_owner(struct mfs_locks *locks, uint64_t node, uint64_t owner);
void mfs_locks_drop_handle(struct mfs_locks *locks, uint64_t handle);
void mfs_locks_drop_all(struct mfs_locks *locks);

#endif
