/* Mounts by their numbers, as /proc/PID/mountinfo lists them: see mounts.h. statfs(2) would ask the server of a FUSE file system. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "link/home/files/mounts.h"

#define KNOWN 64u

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000u
#endif

struct mount {
	uint64_t number;        /* 0: none */
	int is_local;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mount known[KNOWN];
static unsigned next_known;

static int is_local_kind(const char *kind)
{
	static const char *const local[] = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay"};
	for (unsigned i = 0; i < sizeof local / sizeof *local; i++)
		if (!strcmp(kind, local[i]))
			return 1;
	return 0;
}

/* 1, 0; -1: it is not listed. */
static int look_up(int pid, uint64_t number)
{
	char path[64], line[8192], kind[64];
	int found = -1;
	snprintf(path, sizeof path, "/proc/%d/mountinfo", pid);
	FILE *file = fopen(path, "re");
	while (file && found < 0 && fgets(line, sizeof line, file)) {
		unsigned long long listed;
		const char *behind = strstr(line, " - ");
		if (behind && sscanf(line, "%llu", &listed) == 1 && listed == number && sscanf(behind + 3, "%63s", kind) == 1)
			found = is_local_kind(kind);
	}
	if (file)
		fclose(file);
	return found;
}

static int is_local(int pid, uint64_t number)
{
	int found = -1;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < KNOWN && found < 0; i++)
		if (known[i].number == number)
			found = known[i].is_local;
	if (found < 0 && (found = look_up(pid, number)) >= 0)
		known[next_known++ % KNOWN] = (struct mount){number, found};
	pthread_mutex_unlock(&lock);
	return found > 0;
}

int mounts_are_local(int pid, int file, uint32_t *mode)
{
	struct statx found;
	if (statx(file, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_MODE | STATX_MNT_ID, &found) ||
	    !(found.stx_mask & STATX_MNT_ID) || !found.stx_mnt_id)
		return 0;
	*mode = found.stx_mode;
	return is_local(pid, found.stx_mnt_id);
}

void mounts_forget(void)
{
	pthread_mutex_lock(&lock);
	memset(known, 0, sizeof known);
	pthread_mutex_unlock(&lock);
}
