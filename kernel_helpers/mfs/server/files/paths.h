/* mfs-server: a file behind a descriptor: its path, how it is opened, what it is. */
#ifndef MFS_PATHS_H
#define MFS_PATHS_H

#include <linux/fuse.h>
#include <stdbool.h>
#include <sys/stat.h>

/* "/proc/self/fd/N": the file behind an O_PATH descriptor, for calls that know paths alone. */
struct mfs_path {
	char text[32];
};
struct mfs_path mfs_path_of(int fd);
/* The same in the directory mfs_own_files, which is a shorter way. */
struct mfs_path mfs_number_of(int fd);
extern int mfs_own_files;

/* ---- opening.c ---- */

/* Whether this thread may wait for others. */
extern _Thread_local bool mfs_may_wait;
/* open(2); if it had to wait for somebody's lease to be given up, and this thread may not, errno is ERESTART. */
int mfs_open_patiently(int node, int flags);

/* ---- stat.c ---- */

void mfs_fill_attributes(struct fuse_attr *attributes, const struct stat *stat);

#endif
