/* What peers see of this node, and where it begins. */
#define _GNU_SOURCE
#include "mfs/server/files/exports.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

struct mfs_exports mfs_exports;

static int make_way(const char *skeleton, const char *path, char *made, size_t size)
{
	size_t length = (size_t)snprintf(made, size, "%s%s", skeleton, path);

	if (length >= size)
		return -ENAMETOOLONG;
	for (size_t end = strlen(skeleton) + 1; end <= length; end++) {
		char kept = made[end];
		if (kept && kept != '/')
			continue;
		made[end] = 0;
		if (mkdir(made, 0555) && errno != EEXIST)
			return -errno;
		made[end] = kept;
	}
	return 0;
}

static int add(const char *path, bool read_only, const char *from, bool is_shown)
{
	struct mfs_export *export = &mfs_exports.all[mfs_exports.count];
	struct stat stat;

	if (mfs_exports.count > MFS_EXPORTS)
		return -E2BIG;
	if (!realpath(path, export->path))
		return -errno;
	export->fd = open(export->path, O_PATH | O_CLOEXEC | O_DIRECTORY);
	if (export->fd < 0 || lstat(from, &stat))
		return -errno;
	if (is_shown && mfs_is_within_hidden(export->fd, export->path))
		return -EXDEV;
	export->from_device = stat.st_dev;
	export->from_inode = stat.st_ino;
	export->read_only = read_only;
	export->hides = is_shown;
	export->whole = !strcmp(export->path, "/");
	mfs_exports.count++;
	return 0;
}

static bool is_below(const char *path, const char *above)
{
	size_t length = strlen(above);

	return !strcmp(above, "/") || (!strncmp(path, above, length) && (!path[length] || path[length] == '/'));
}

int mfs_exports_begin(const char *skeleton, char **paths, const bool *read_only, unsigned count, const char **what)
{
	int result = 0;
	unsigned whole = count;
	struct stat stat;

	for (unsigned i = 0; i < count; i++)
		if (!strcmp(paths[i], "/"))
			whole = i;
	*what = skeleton;
	if (mkdir(skeleton, 0555) && errno != EEXIST)
		return -errno;
	result = whole < count ? add("/", read_only[whole], "/", true) : add(skeleton, true, skeleton, false);
	for (unsigned i = 0; i < count && !result; i++) {
		char from[2 * PATH_MAX];
		bool nested = false;
		*what = paths[i];
		if (i == whole)
			continue;
		for (unsigned j = 0; j < count; j++)
			nested |= j != i && strcmp(paths[i], paths[j]) && is_below(paths[i], paths[j]);
		if (nested)
			snprintf(from, sizeof from, "%s", paths[i]);
		else
			result = make_way(skeleton, paths[i], from, sizeof from);
		if (!result)
			result = add(paths[i], read_only[i], from, true);
	}
	if (!result && fstatat(mfs_exports.all[0].fd, "", &stat, AT_EMPTY_PATH))
		result = -errno;
	mfs_exports.device = stat.st_dev;
	mfs_exports.kind = mfs_kind_of(mfs_exports.all[0].fd, &stat, stat.st_dev + 1, MFS_OWN);
	return result;
}

uint64_t mfs_inode(dev_t device, ino_t inode)
{
	/* Several file systems under one device number: programs that know files by their inode must not take two for one. */
	if (device == mfs_exports.device)
		return inode;
	uint64_t mixed = (uint64_t)device * 0x9e3779b97f4a7c15ull;
	return inode ^ ((mixed >> 44 | 1) << 44);
}

static bool is_among(unsigned long magic, const unsigned long *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (list[i] == magic)
			return true;
	return false;
}

enum mfs_kind mfs_kind_of(int fd, const struct stat *stat, dev_t parent_device, enum mfs_kind parent_kind)
{
	static const unsigned long kernels_own[] = {
		PROC_SUPER_MAGIC,
		SYSFS_MAGIC,
		DEVPTS_SUPER_MAGIC,
		DEBUGFS_MAGIC,
		TRACEFS_MAGIC,
		SECURITYFS_MAGIC,
		CGROUP_SUPER_MAGIC,
		CGROUP2_SUPER_MAGIC,
		BPF_FS_MAGIC,
		EFIVARFS_MAGIC,
		BINFMTFS_MAGIC,
		0x19800202 /* mqueue */,
		0x62656570 /* configfs */,
		0x65735543 /* fusectl */,
		PSTOREFS_MAGIC,
		SELINUX_MAGIC,
		NSFS_MAGIC,
	};
	static const unsigned long elsewhere[] = {
		FUSE_SUPER_MAGIC,        NFS_SUPER_MAGIC,
		SMB_SUPER_MAGIC,         CIFS_SUPER_MAGIC,
		SMB2_SUPER_MAGIC,        CEPH_SUPER_MAGIC,
		AFS_SUPER_MAGIC,         AFS_FS_MAGIC,
		CODA_SUPER_MAGIC,        V9FS_MAGIC,
		OCFS2_SUPER_MAGIC,       0x01161970 /* gfs2 */,
		0x0bd00bd0 /* lustre */, 0x47504653 /* gpfs */,
		0x19830326 /* beegfs */, 0x20030528 /* orangefs */,
		0x786f4256 /* vboxsf */, 0xbacbacbc /* vmhgfs */,
	};
	struct statfs about;

	if (stat->st_dev == parent_device)
		return parent_kind;
	if (fstatfs(fd, &about) || is_among((unsigned long)about.f_type, kernels_own, sizeof kernels_own / sizeof *kernels_own))
		return MFS_CLOSED;
	return is_among((unsigned long)about.f_type, elsewhere, sizeof elsewhere / sizeof *elsewhere) ? MFS_ELSEWHERE : MFS_OWN;
}
