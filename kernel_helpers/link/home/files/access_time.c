/* Times of access: see access_time.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/statvfs.h>
#include <time.h>
#include "link/home/files/access_time.h"

#define FRESH (23 * 3600)       /* seconds */

static int is_before(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec <= b->tv_nsec);
}

int access_time_stays(const struct stat *file, const struct statfs *system, int flags)
{
	struct timespec now;
	if (flags & O_NOATIME || system->f_flags & ST_NOATIME || (S_ISDIR(file->st_mode) && system->f_flags & ST_NODIRATIME))
		return 1;
	if (!(system->f_flags & ST_RELATIME) || is_before(&file->st_atim, &file->st_mtim) || is_before(&file->st_atim, &file->st_ctim))
		return 0;
	clock_gettime(CLOCK_REALTIME_COARSE, &now); /* the kernel takes times of files from it */
	return now.tv_sec - file->st_atim.tv_sec < FRESH;
}
