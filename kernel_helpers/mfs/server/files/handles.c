/* The files that one peer's kernel has open, by number. How they were opened lies in a mapped file, so that a server that is started again
 * can open them again: what was permitted once is not asked again, as it is with any open file. */
#define _GNU_SOURCE
#include "mfs/server/files/identity.h"
#include "mfs/server/files/paths.h"
#include "mfs/server/files/tables.h"
#include "mfs/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST (1u << 18)

struct mfs_opened { /* 24 bytes; node 0: unused */
	uint64_t node;
	int32_t flags;
	uint32_t sequence;
	uint32_t locked, used; /* used: of record 0, how many records there ever were */
};

int mfs_handles_begin(struct mfs_handles *handles, struct mfs_table *table, const char *path)
{
	size_t size = MOST * sizeof(struct mfs_opened);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	memset(handles, 0, sizeof *handles);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size)) {
		close(fd);
		return -errno;
	}
	handles->records = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	handles->files =
		mmap(NULL, MOST * sizeof *handles->files, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	handles->free =
		mmap(NULL, MOST * sizeof *handles->free, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (handles->records == MAP_FAILED || handles->files == MAP_FAILED || handles->free == MAP_FAILED)
		return -ENOMEM;
	pthread_mutex_init(&handles->lock, NULL);
	handles->used = handles->records[0].used && handles->records[0].used <= MOST ? handles->records[0].used : 1;
	handles->peer = table->peer;
	for (uint32_t index = 1; index < handles->used; index++) {
		const struct mfs_opened *record = &handles->records[index];
		if (record->node)
			mfs_place_count(handles->peer, MFS_OPEN_FILES, 1);
		if (!record->node)
			handles->free[handles->free_count++] = index;
		else if ((uint32_t)record->node < MFS_NODES && mfs_is_for_writing((uint32_t)record->flags))
			table->nodes[(uint32_t)record->node].writer = index | (uint64_t)record->sequence
			                                                              << 32; /* it will be opened again */
	}
	return 0;
}

static void drop(struct mfs_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	pthread_mutex_destroy(&file->reading);
	free(file);
}

void mfs_handles_end(struct mfs_handles *handles)
{
	for (uint32_t index = 1; index < handles->used; index++) {
		if (handles->files[index])
			drop(handles->files[index]);
		if (handles->records[index].node)
			mfs_place_give(handles->peer, MFS_OPEN_FILES, 1);
	}
	munmap(handles->records, MOST * sizeof(struct mfs_opened));
	munmap(handles->files, MOST * sizeof *handles->files);
	munmap(handles->free, MOST * sizeof *handles->free);
}

unsigned mfs_handles_count(struct mfs_handles *handles)
{
	pthread_mutex_lock(&handles->lock);
	unsigned count = handles->used - 1 - handles->free_count;
	pthread_mutex_unlock(&handles->lock);
	return count;
}

static struct mfs_file *new_file(int fd, uint64_t node)
{
	struct mfs_file *file = calloc(1, sizeof *file);

	if (!file)
		return NULL;
	file->fd = fd;
	file->node = node;
	file->pins = 1; /* of the table */
	pthread_mutex_init(&file->reading, NULL);
	return file;
}

uint64_t mfs_handle_enter(struct mfs_handles *handles, int fd, uint64_t node, int flags)
{
	struct mfs_file *file = new_file(fd, node);
	uint32_t index = 0;
	bool may = file && mfs_place_take(handles->peer, MFS_OPEN_FILES);

	pthread_mutex_lock(&handles->lock);
	if (may && handles->free_count)
		index = handles->free[--handles->free_count];
	else if (may && handles->used < MOST)
		handles->records[0].used = (index = handles->used++) + 1;
	if (index) {
		handles->files[index] = file;
		handles->records[index].node = node;
		handles->records[index].flags = flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY);
		handles->records[index].locked = 0;
	}
	uint64_t number = index | (uint64_t)handles->records[index].sequence << 32;
	pthread_mutex_unlock(&handles->lock);
	if (index)
		return number;
	if (may)
		mfs_place_give(handles->peer, MFS_OPEN_FILES, 1);
	close(fd);
	if (file) {
		file->fd = -1;
		drop(file);
	}
	return errno = ENFILE, 0;
}

static uint32_t index_of(struct mfs_handles *handles, uint64_t number)
{
	uint32_t index = (uint32_t)number;

	if (!index || index >= handles->used || !handles->records[index].node || handles->records[index].sequence != number >> 32)
		return 0;
	return index;
}

/* As it was opened by the server before this one. */
static int reopen(struct mfs_table *table, uint64_t id, int flags)
{
	struct mfs_node *node = mfs_node_get(table, id);
	int fd;

	if (!node)
		return -1;
	mfs_be_self();
	fd = mfs_open_patiently(node->fd, flags & ~O_NOFOLLOW);
	int reason = errno;
	mfs_node_put(table, node);
	errno = reason;
	return fd;
}

struct mfs_file *mfs_handle_get(struct mfs_handles *handles, struct mfs_table *table, uint64_t number)
{
	pthread_mutex_lock(&handles->lock);
	uint32_t index = index_of(handles, number);
	struct mfs_file *file = index ? handles->files[index] : NULL;
	struct mfs_opened record = index ? handles->records[index] : (struct mfs_opened){0};
	if (file)
		__atomic_add_fetch(&file->pins, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&handles->lock);
	if (!index)
		return errno = ESTALE, NULL;
	if (record.locked == MFS_LOCK_LOST) {
		if (file)
			mfs_handle_put(file);
		return errno = EIO, NULL;
	}
	if (file)
		return file;
	if (record.locked)
		return errno = EIO, NULL; /* its lock went with the server that held it */
	int fd = reopen(table, record.node, record.flags);
	if (fd < 0)
		return NULL;
	struct mfs_file *opened = new_file(fd, record.node);
	pthread_mutex_lock(&handles->lock);
	if (opened && !handles->files[index]) {
		handles->files[index] = opened;
		opened = NULL;
		fd = -1;
		handles->reopened(table, record.node);
	}
	file = handles->files[index];
	if (file)
		__atomic_add_fetch(&file->pins, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&handles->lock);
	if (opened)
		drop(opened);
	else if (fd >= 0)
		close(fd);
	return file ? file : (errno = ENOMEM, NULL);
}

uint64_t mfs_handle_next_node(struct mfs_handles *handles, uint32_t *after)
{
	uint64_t node = 0;

	pthread_mutex_lock(&handles->lock);
	while (!node && ++*after < handles->used)
		node = handles->records[*after].flags & O_DIRECTORY ? 0 : handles->records[*after].node;
	pthread_mutex_unlock(&handles->lock);
	return node;
}

struct mfs_file *mfs_handle_next(struct mfs_handles *handles, uint32_t *after)
{
	struct mfs_file *file = NULL;

	pthread_mutex_lock(&handles->lock);
	while (!file && ++*after < handles->used)
		if ((file = handles->files[*after]))
			__atomic_add_fetch(&file->pins, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&handles->lock);
	return file;
}

void mfs_handle_put(struct mfs_file *file)
{
	if (!__atomic_sub_fetch(&file->pins, 1, __ATOMIC_ACQ_REL))
		drop(file);
}

uint64_t mfs_handle_release(struct mfs_handles *handles, uint64_t number)
{
	uint64_t node = 0;

	pthread_mutex_lock(&handles->lock);
	uint32_t index = index_of(handles, number);
	struct mfs_file *file = index ? handles->files[index] : NULL;
	if (index) {
		handles->files[index] = NULL;
		handles->records[index].node = 0;
		handles->records[index].sequence++;
		mfs_place_give(handles->peer, MFS_OPEN_FILES, 1);
		handles->free[handles->free_count++] = index;
	}
	pthread_mutex_unlock(&handles->lock);
	if (file) {
		node = file->node;
		mfs_handle_put(file);
	}
	return node;
}

void mfs_handles_lose_locks(struct mfs_handles *handles)
{
	pthread_mutex_lock(&handles->lock);
	for (uint32_t index = 1; index < handles->used; index++) {
		if (!handles->records[index].node || handles->records[index].locked != MFS_LOCKED)
			continue;
		handles->records[index].locked = MFS_LOCK_LOST;
		if (handles->files[index])
			flock(handles->files[index]->fd, LOCK_UN);
	}
	pthread_mutex_unlock(&handles->lock);
}

void mfs_handle_mark(struct mfs_handles *handles, uint64_t number, uint32_t state)
{
	pthread_mutex_lock(&handles->lock);
	uint32_t index = index_of(handles, number);
	if (index)
		handles->records[index].locked = state;
	pthread_mutex_unlock(&handles->lock);
}
