/* What a reply to an open, or to a write, brings: see carry.h.
 *
 * The open file is the process's own, taken by pidfd_getfd(2), so nothing is opened, and no permission asked, a second time. Contents and
 * entries go along only where a read leaves the time of access alone (relatime, and it is new enough): the process may never read. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "link/home/files/access_time.h"
#include "link/home/files/carry.h"
#include "link/home/files/mounts.h"
#include "link/paths.h"

#define PLENTY (64ull << 20)    /* bytes that are free on the file system */
#define FAR (1ll << 33)         /* bytes: from a position up to here any room is within what file systems can have */
#define BEGINNING 4096u         /* bytes of a file that is too long to go whole: what shows its kind */

_Static_assert(sizeof(struct stat) == ATTRIBUTES_SIZE, "struct stat is on the wire");

int carry_is_for(const struct call *call)
{
	return call->flags & CALL_CARRIES && call_only_reads(call->number, call->arguments);
}

/* Contents as far as they lie in memory. Bytes, or a negative errno. */
static ssize_t read_beginning(int file, void *to, size_t length)
{
	struct iovec part = {to, length};
	ssize_t got = preadv2(file, &part, 1, 0, RWF_NOWAIT);
	if (got < 0 && errno == EOPNOTSUPP)
		got = pread(file, to, length, 0);
	return got < 0 ? -errno : got;
}

static void add_contents(int file, const struct stat *status, struct carried_answer *answer)
{
	size_t wanted = (uint64_t)status->st_size < CARRIED_LIMIT ? (size_t)status->st_size + 1 : BEGINNING;
	ssize_t got = read_beginning(file, answer + 1, wanted);
	answer->has_contents = got >= 0 && (got == status->st_size || (got == BEGINNING && status->st_size > BEGINNING));
	if (!answer->has_contents)
		return;
	answer->length = got;
	answer->is_whole = got == status->st_size;
}

/* All entries, or none. The position, which nobody has used, is the beginning again. */
static void add_entries(int file, struct carried_answer *answer)
{
	unsigned char *to = (unsigned char *)(answer + 1);
	uint32_t length = 0;
	long got;
	while ((got = syscall(SYS_getdents64, file, to + length, CARRIED_LIMIT - length)) > 0)
		length += got;
	lseek(file, 0, SEEK_SET);
	if (got)
		return;
	answer->has_contents = answer->is_whole = 1;
	answer->length = length;
}

static struct carried_answer *answers(int pid, int file, struct asides *asides, struct slot *slot)
{
	struct stat status;
	struct statfs system;
	uint32_t mode;
	int flags = fcntl(file, F_GETFL);
	if (flags < 0 || !mounts_are_local(pid, file, &mode) || !(S_ISREG(mode) || S_ISDIR(mode)) || fstat(file, &status) ||
	    fstatfs(file, &system))
		return NULL;
	int contents = access_time_stays(&status, &system, flags);
	struct carried_answer *answer = malloc(sizeof *answer + (contents ? CARRIED_LIMIT : 0));
	if (!answer)
		return NULL;
	*answer = (struct carried_answer){.status_flags = flags};
	memcpy(answer->attributes, &status, sizeof status);
	answer->file = aside_key(asides, slot, file, &status);
	if (contents && S_ISDIR(status.st_mode))
		add_entries(file, answer);
	else if (contents)
		add_contents(file, &status, answer);
	return answer;
}

/* The same open file, for us. -1: there is none. */
static int file_of(int *pidfd, int pid, int descriptor)
{
	if (*pidfd < 0)
		*pidfd = syscall(SYS_pidfd_open, pid, 0);
	return *pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, *pidfd, descriptor, 0);
}

struct carried_answer *carry_take(int *pidfd, int pid, int descriptor, struct asides *asides, struct slot *slot)
{
	int file = file_of(pidfd, pid, descriptor);
	if (file < 0)
		return NULL;
	struct carried_answer *answer = answers(pid, file, asides, slot);
	close(file);
	return answer;
}

/* ---- writes that run ahead ---- */

/* Files of a tmpfs, too, have seals: that there can be no others. */
static int is_sealed(int file)
{
	int seals = fcntl(file, F_GET_SEALS);
	return seals > 0 && seals != F_SEAL_SEAL;
}

/* Where the next write may begin, at the most. */
static int is_near(int file, const struct stat *status)
{
	return status->st_size <= FAR && lseek(file, 0, SEEK_CUR) <= FAR;
}

static int is_plenty(int pid, int file, struct room_answer *answer)
{
	struct stat status;
	struct statvfs system;
	struct rlimit limit;
	uint32_t mode;
	int flags = fcntl(file, F_GETFL);
	if (flags < 0 || flags & (O_DIRECT | O_SYNC | O_DSYNC | O_PATH) || !mounts_are_local(pid, file, &mode) || !S_ISREG(mode) ||
	    is_sealed(file) || fstat(file, &status) || !is_near(file, &status) || fstatvfs(file, &system) ||
	    system.f_flag & (ST_SYNCHRONOUS | ST_RDONLY) || (uint64_t)system.f_bavail * system.f_frsize < PLENTY ||
	    prlimit(pid, RLIMIT_FSIZE, NULL, &limit) || limit.rlim_cur != RLIM_INFINITY)
		return 0;
	*answer = (struct room_answer){status.st_dev, status.st_ino};
	return 1;
}

int carry_room(int *pidfd, int pid, int descriptor, struct room_answer *answer)
{
	int file = file_of(pidfd, pid, descriptor);
	if (file < 0)
		return 0;
	int is = is_plenty(pid, file, answer);
	close(file);
	return is;
}
