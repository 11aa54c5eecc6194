/* File handles of the kernel: what they are taken of can be opened again. */
#define _GNU_SOURCE
#include "mfs/server/files/identity.h"
#include "mfs/server/files/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MOUNTS 128

static struct {
	uint32_t id;
	int fd;
} mounts[MOUNTS];
static pthread_mutex_t mounts_lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t mfs_handle_bucket(int32_t type, const unsigned char *handle, size_t size)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ (uint64_t)type;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ handle[i]) * 0x100000001b3ull;
	return (uint32_t)(hash >> 40) & (MFS_BUCKETS - 1);
}

bool mfs_has_handle(const struct mfs_record *record, const struct file_handle *handle)
{
	return record->handle_type == handle->handle_type && record->handle_size == handle->handle_bytes &&
	       !memcmp(record->handle, handle->f_handle, record->handle_size);
}

void mfs_take_handle(struct mfs_record *record, int fd)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + HANDLE_MOST];
	} got = {.handle = {.handle_bytes = HANDLE_MOST}};
	int mount;

	record->handle_size = 0;
	if (name_to_handle_at(fd, "", &got.handle, &mount, AT_EMPTY_PATH))
		return;
	record->mount = (uint32_t)mount;
	record->handle_type = got.handle.handle_type;
	record->handle_size = (uint16_t)got.handle.handle_bytes;
	memcpy(record->handle, got.handle.f_handle, got.handle.handle_bytes);
}

/* Some descriptor of the mount with that number; -1: there is none any more. */
static int find_mount(uint32_t id)
{
	char line[8192], path[4096];
	unsigned found;
	int fd = -1;
	FILE *list = fopen("/proc/self/mountinfo", "re");

	while (list && fd < 0 && fgets(line, sizeof line, list)) {
		if (sscanf(line, "%u %*u %*s %*s %4095s", &found, path) != 2 || found != id)
			continue;
		char *to = path;
		for (char *from = path; *from; to++) {
			if (from[0] == '\\' && from[1] && from[2] && from[3]) {
				*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
				from += 4;
			} else {
				*to = *from++;
			}
		}
		*to = 0;
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
		break;
	}
	if (list)
		fclose(list);
	return fd;
}

static int mount_of(uint32_t id)
{
	int fd = -1;

	pthread_mutex_lock(&mounts_lock);
	for (unsigned i = 0; i < MOUNTS && fd < 0; i++) {
		if (mounts[i].id == id) {
			fd = mounts[i].fd;
		} else if (!mounts[i].id) {
			fd = find_mount(id);
			if (fd >= 0) {
				mounts[i].id = id;
				mounts[i].fd = fd;
			}
			break;
		}
	}
	pthread_mutex_unlock(&mounts_lock);
	return fd;
}

int mfs_open_again(const struct mfs_record *record)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + HANDLE_MOST];
	} wanted = {.handle = {.handle_bytes = record->handle_size, .handle_type = record->handle_type}};
	struct stat stat;
	int mount, fd;

	if (!record->handle_size || (mount = mount_of(record->mount)) < 0)
		return errno = ESTALE, -1;
	memcpy(wanted.handle.f_handle, record->handle, record->handle_size);
	mfs_be_self();
	fd = open_by_handle_at(mount, &wanted.handle, O_PATH | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && (fstat(fd, &stat) || stat.st_dev != record->device || stat.st_ino != record->inode)) {
		close(fd);
		errno = ESTALE;
		fd = -1;
	}
	return fd;
}
