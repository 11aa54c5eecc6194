/* Where the server keeps what outlives it, and its figures. */
#define _GNU_SOURCE
#include "mfs/server/server.h"
#include "mfs/server/places.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *mfs_run_directory;
static struct mfs_counters *counters;

struct mfs_counters *mfs_counters_take(const char *peer)
{
	struct mfs_counters *found = NULL;

	for (int i = 0; i < MFS_SESSIONS_MOST && !found; i++)
		if (!counters[i].peer[0])
			found = &counters[i];
	if (found) {
		memset(found, 0, sizeof *found);
		snprintf(found->peer, sizeof found->peer, "%s", peer);
	}
	return found;
}

int mfs_counters_begin(void)
{
	char path[4096];
	const size_t size = MFS_SESSIONS_MOST * sizeof *counters;

	snprintf(path, sizeof path, "%s/server.figures", mfs_run_directory);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		return -errno;
	counters = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return counters == MAP_FAILED ? -ENOMEM : 0;
}
