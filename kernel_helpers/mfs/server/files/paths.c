/* Paths of what is behind a descriptor. */
#include "mfs/server/files/paths.h"

#include <stdio.h>

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
