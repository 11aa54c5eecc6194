/* The attributes of a file, as peers get them. */
#define _GNU_SOURCE
#include "mfs/server/files/exports.h"
#include "mfs/server/files/paths.h"

#include <sys/sysmacros.h>

#define PIECE (64 << 10) /* bytes that programs are advised to read and write at once: each call is a way to this node and back */

void mfs_fill_attributes(struct fuse_attr *attributes, const struct stat *stat)
{
	unsigned large = major(stat->st_rdev), small = minor(stat->st_rdev);

	*attributes = (struct fuse_attr){
		.ino = mfs_inode(stat->st_dev, stat->st_ino),
		.size = (uint64_t)stat->st_size,
		.blocks = (uint64_t)stat->st_blocks,
		.atime = (uint64_t)stat->st_atim.tv_sec,
		.mtime = (uint64_t)stat->st_mtim.tv_sec,
		.ctime = (uint64_t)stat->st_ctim.tv_sec,
		.atimensec = (uint32_t)stat->st_atim.tv_nsec,
		.mtimensec = (uint32_t)stat->st_mtim.tv_nsec,
		.ctimensec = (uint32_t)stat->st_ctim.tv_nsec,
		.mode = stat->st_mode,
		.nlink = (uint32_t)stat->st_nlink,
		.uid = stat->st_uid,
		.gid = stat->st_gid,
		.rdev = (small & 0xff) | large << 8 | (small & ~0xffu) << 12, /* as the kernel packs it */
		.blksize = (uint32_t)(S_ISREG(stat->st_mode) && stat->st_blksize < PIECE ? PIECE : stat->st_blksize),
	};
}
