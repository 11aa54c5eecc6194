/* Calls that name paths: see paths.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include "link/paths.h"

static int names(struct named_path *named, int argument, int is_relative, int follows)
{
	*named = (struct named_path){argument, is_relative, follows};
	return 1;
}

int call_names_path(long number, const uint64_t a[6], struct named_path *named)
{
	switch (number) {
	case SYS_stat:
	case SYS_access:
		return names(named, 0, 0, 1);
	case SYS_lstat:
	case SYS_readlink:
		return names(named, 0, 0, 0);
	case SYS_open:
		return names(named, 0, 0, !(a[1] & O_NOFOLLOW));
	case SYS_openat:
		return names(named, 1, 1, !(a[2] & O_NOFOLLOW));
	case SYS_newfstatat:
	case SYS_faccessat2:
		return names(named, 1, 1, !(a[3] & AT_SYMLINK_NOFOLLOW));
	case SYS_statx:
		return names(named, 1, 1, !(a[2] & AT_SYMLINK_NOFOLLOW));
	case SYS_faccessat:
		return names(named, 1, 1, 1);
	case SYS_readlinkat:
		return names(named, 1, 1, 0);
	}
	return 0;
}

int call_opens_to_write(long number, const uint64_t a[6])
{
	if (number == SYS_creat)
		return 1;
	if (number != SYS_openat && number != SYS_open)
		return 0;
	uint64_t flags = a[number == SYS_openat ? 2 : 1];
	return (flags & O_ACCMODE) != O_RDONLY && !(flags & (O_PATH | O_DIRECT | O_DSYNC));
}

int call_only_reads(long number, const uint64_t a[6])
{
	if (number != SYS_openat && number != SYS_open)
		return 0;
	uint64_t flags = a[number == SYS_openat ? 2 : 1];
	return (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_PATH | O_TRUNC | O_DIRECT | O_CREAT | O_ASYNC));
}
