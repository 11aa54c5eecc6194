/* Whether reads of a file leave its time of access alone (relatime_need_update of the kernel's fs/inode.c). */
#ifndef FARHOME_ACCESS_TIME_H
#define FARHOME_ACCESS_TIME_H
#include <sys/stat.h>
#include <sys/vfs.h>

#pragma GCC visibility push(hidden)
/* `flags`: of the open file. Here relatime's day is an hour shorter. */
int access_time_stays(const struct stat *file, const struct statfs *system, int flags);
#pragma GCC visibility pop
#endif
