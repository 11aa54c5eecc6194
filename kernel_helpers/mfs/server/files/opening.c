/* Opening files that others may have a lease on. */
#define _GNU_SOURCE
#include "mfs/server/files/paths.h"

#include <errno.h>
#include <fcntl.h>

_Thread_local bool mfs_may_wait;

int mfs_open_patiently(int node, int flags)
{
	int fd = openat(mfs_own_files, mfs_number_of(node).text, flags | O_CLOEXEC | (mfs_may_wait ? 0 : O_NONBLOCK));

	if (fd < 0 && errno == EWOULDBLOCK && !mfs_may_wait)
		errno = ERESTART;
	return fd;
}
