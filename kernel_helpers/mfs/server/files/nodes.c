/* The files that one peer's kernel knows, by number.
 *
 * A number is an index and a sequence; what it stands for lies in a mapped file under /run, as the kernel's own file handle. So a server
 * that is started again still knows it, and descriptors can be given up when there are too many. */
#define _GNU_SOURCE
#include "mfs/server/files/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x6d66736e6f646531ull
#define FEW 64 /* descriptors of nodes that a table may have however many there are in all */

unsigned mfs_nodes_open_most = 100000;
static atomic_int open_in_all; /* nodes that have a descriptor, of all tables */

uint32_t mfs_inode_bucket(uint64_t device, uint64_t inode)
{
	return (uint32_t)((inode * 0x9e3779b97f4a7c15ull ^ device * 0xc2b2ae3d27d4eb4full) >> 40) & (MFS_BUCKETS - 1);
}

/* Under the table's lock. */
static void have_open(struct mfs_table *table, int more)
{
	table->open += (uint32_t)more;
	open_in_all += more;
}

/* Whether descriptors are to be given up that file handles can replace. */
static bool has_many_open(const struct mfs_table *table)
{
	return table->open > mfs_nodes_open_most || (table->open > FEW && (unsigned)open_in_all > 2 * mfs_nodes_open_most);
}

static uint32_t *handle_chain(struct mfs_table *table, uint32_t index)
{
	const struct mfs_record *record = &table->records[index];

	return &table->handle_buckets[mfs_handle_bucket(record->handle_type, record->handle, record->handle_size)];
}

static void link_in(struct mfs_table *table, uint32_t index)
{
	uint32_t *head = &table->buckets[mfs_inode_bucket(table->records[index].device, table->records[index].inode)];

	table->nodes[index].next = *head;
	*head = index;
	if (table->records[index].handle_size) {
		head = handle_chain(table, index);
		table->nodes[index].next_by_handle = *head;
		*head = index;
	}
}

static void unlink_from(struct mfs_table *table, uint32_t index)
{
	uint32_t *at = &table->buckets[mfs_inode_bucket(table->records[index].device, table->records[index].inode)];

	while (*at && *at != index)
		at = &table->nodes[*at].next;
	if (*at)
		*at = table->nodes[index].next;
	if (!table->records[index].handle_size)
		return;
	for (at = handle_chain(table, index); *at && *at != index;)
		at = &table->nodes[*at].next_by_handle;
	if (*at)
		*at = table->nodes[index].next_by_handle;
}

int mfs_table_begin(struct mfs_table *table, struct mfs_peer *peer, const char *path, bool *resumed)
{
	size_t size = (size_t)MFS_NODES * sizeof(struct mfs_record);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	memset(table, 0, sizeof *table);
	table->peer = peer;
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size)) {
		close(fd);
		return -errno;
	}
	table->records = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	table->nodes =
		mmap(NULL, MFS_NODES * sizeof(struct mfs_node), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	table->buckets = calloc(MFS_BUCKETS, sizeof *table->buckets);
	table->handle_buckets = calloc(MFS_BUCKETS, sizeof *table->handle_buckets);
	if (table->records == MAP_FAILED || table->nodes == MAP_FAILED || !table->buckets || !table->handle_buckets)
		return -ENOMEM;
	pthread_mutex_init(&table->lock, NULL);
	table->events = -1;
	struct mfs_record *first = &table->records[0];
	*resumed = first->inode == MAGIC && first->lookups > MFS_ROOT && first->lookups <= MFS_NODES;
	table->used = *resumed ? (uint32_t)first->lookups : MFS_ROOT + 1;
	first->inode = MAGIC;
	first->lookups = table->used;
	table->records[MFS_ROOT] = (struct mfs_record){.lookups = 1};
	table->nodes[MFS_ROOT].fd = mfs_exports.all[0].fd;
	mfs_take_handle(&table->records[MFS_ROOT], mfs_exports.all[0].fd);
	if (table->records[MFS_ROOT].handle_size) /* changes of it are reported; by its inode it is not found */
		*handle_chain(table, MFS_ROOT) = MFS_ROOT;
	for (uint32_t index = MFS_ROOT + 1; index < table->used; index++) {
		table->nodes[index].fd = -1;
		if (table->records[index].lookups) {
			link_in(table, index);
			mfs_place_count(peer, MFS_KNOWN_FILES, 1);
			mfs_place_count(peer, MFS_HELD_FILES, !table->records[index].handle_size);
		} else {
			table->nodes[index].next = table->free;
			table->free = index;
		}
	}
	return 0;
}

void mfs_table_end(struct mfs_table *table)
{
	if (table->events >= 0)
		close(table->events);
	have_open(table, -(int)table->open);
	for (uint32_t index = MFS_ROOT + 1; index < table->used; index++) {
		if (!table->records[index].lookups)
			continue;
		if (table->nodes[index].fd >= 0)
			close(table->nodes[index].fd);
		mfs_place_give(table->peer, MFS_KNOWN_FILES, 1);
		mfs_place_give(table->peer, MFS_HELD_FILES, !table->records[index].handle_size);
	}
	munmap(table->records, (size_t)MFS_NODES * sizeof(struct mfs_record));
	munmap(table->nodes, MFS_NODES * sizeof(struct mfs_node));
	free(table->buckets);
	free(table->handle_buckets);
}

static uint32_t index_of(struct mfs_table *table, uint64_t id)
{
	uint32_t index = (uint32_t)id;

	if (index < MFS_ROOT || index >= table->used || id >> 32 != table->records[index].sequence || !table->records[index].lookups)
		return 0;
	return index;
}

struct mfs_node *mfs_node_get(struct mfs_table *table, uint64_t id)
{
	struct mfs_node *node = NULL;

	pthread_mutex_lock(&table->lock);
	uint32_t index = index_of(table, id);
	if (index) {
		node = &table->nodes[index];
		node->pins++;
	}
	struct mfs_record record = index && node->fd < 0 ? table->records[index] : (struct mfs_record){0};
	pthread_mutex_unlock(&table->lock);
	if (!node)
		return errno = ESTALE, NULL;
	if (!record.lookups)
		return node;
	int fd = mfs_open_again(&record);
	int reason = errno;
	pthread_mutex_lock(&table->lock);
	if (fd >= 0 && node->fd < 0) {
		node->fd = fd;
		have_open(table, 1);
		fd = -1;
	}
	bool is_open = node->fd >= 0;
	if (!is_open)
		node->pins--;
	pthread_mutex_unlock(&table->lock);
	if (fd >= 0)
		close(fd);
	return is_open ? node : (errno = reason, NULL);
}

static void give_up(struct mfs_table *table, uint32_t index)
{
	struct mfs_record *record = &table->records[index];

	unlink_from(table, index);
	mfs_place_give(table->peer, MFS_KNOWN_FILES, 1);
	mfs_place_give(table->peer, MFS_HELD_FILES, !record->handle_size);
	table->let_go(table, index);
	table->nodes[index].until = 0;
	table->nodes[index].dropped = table->nodes[index].notified = table->nodes[index].given;
	if (table->nodes[index].fd >= 0) {
		close(table->nodes[index].fd);
		table->nodes[index].fd = -1;
		have_open(table, -1);
	}
	record->sequence++;
	table->nodes[index].next = table->free;
	table->free = index;
}

void mfs_node_put(struct mfs_table *table, struct mfs_node *node)
{
	uint32_t index = (uint32_t)(node - table->nodes);

	pthread_mutex_lock(&table->lock);
	if (!--node->pins && !table->records[index].lookups)
		give_up(table, index);
	pthread_mutex_unlock(&table->lock);
}

unsigned mfs_node_export(struct mfs_table *table, struct mfs_node *node)
{
	return table->records[node - table->nodes].export;
}

enum mfs_kind mfs_node_kind(struct mfs_table *table, struct mfs_node *node)
{
	return node == &table->nodes[MFS_ROOT] ? mfs_exports.kind : (enum mfs_kind)table->records[node - table->nodes].kind;
}

dev_t mfs_node_device(struct mfs_table *table, struct mfs_node *node)
{
	return node == &table->nodes[MFS_ROOT] ? mfs_exports.device : table->records[node - table->nodes].device;
}

/* Gives up descriptors that file handles can replace. */
static void give_up_descriptors(struct mfs_table *table)
{
	for (uint32_t tried = 0; has_many_open(table) && tried < 64; tried++) {
		uint32_t index = table->hand = table->hand + 1 < table->used ? table->hand + 1 : MFS_ROOT + 1;
		struct mfs_node *node = &table->nodes[index];
		if (!table->records[index].lookups || node->pins || node->marked || node->watched || node->lease || node->fd < 0 ||
		    !table->records[index].handle_size)
			continue;
		close(node->fd);
		node->fd = -1;
		have_open(table, -1);
	}
}

static bool is_same(const struct mfs_record *a, const struct mfs_record *b)
{
	return a->handle_size == b->handle_size && a->handle_type == b->handle_type && !memcmp(a->handle, b->handle, a->handle_size);
}

/* The entry of the file that `fd` is open for, 0 if there is none. An entry that had no descriptor has this one then, and *fd is -1. The file's
 * handle is in `fresh` if it has been asked for. */
static uint32_t find_entry(struct mfs_table *table, struct mfs_record *fresh, int *fd, bool *has_handle)
{
	uint32_t index;

	for (index = table->buckets[mfs_inode_bucket(fresh->device, fresh->inode)]; index; index = table->nodes[index].next) {
		struct mfs_record *record = &table->records[index];
		if (record->device != fresh->device || record->inode != fresh->inode || record->export != fresh->export)
			continue;
		if (table->nodes[index].fd >= 0)
			break; /* held open: its number has not gone to another file */
		if (!*has_handle) {
			mfs_take_handle(fresh, *fd);
			*has_handle = true;
		}
		if (is_same(record, fresh)) {
			table->nodes[index].fd = *fd;
			have_open(table, 1);
			*fd = -1;
			break;
		}
	}
	return index;
}

/* A free index for a file whose handle has been taken; 0: the peer has as many as it may have, or there are no more. */
static uint32_t take_index(struct mfs_table *table, const struct mfs_record *fresh)
{
	uint32_t index = 0;

	if (!mfs_place_take(table->peer, MFS_KNOWN_FILES))
		return 0;
	if (!fresh->handle_size && !mfs_place_take(table->peer, MFS_HELD_FILES)) {
		mfs_place_give(table->peer, MFS_KNOWN_FILES, 1);
		return 0;
	}
	if (table->free) {
		index = table->free;
		table->free = table->nodes[index].next;
	} else if (table->used < MFS_NODES) {
		table->records[0].lookups = (index = table->used++) + 1;
	} else {
		mfs_place_give(table->peer, MFS_KNOWN_FILES, 1);
		mfs_place_give(table->peer, MFS_HELD_FILES, !fresh->handle_size);
	}
	return index;
}

static void fill_entry(struct mfs_table *table, uint32_t index, struct mfs_record *fresh, int fd)
{
	fresh->sequence = table->records[index].sequence;
	table->records[index] = *fresh;
	table->nodes[index].fd = fd;
	table->nodes[index].pins = 0;
	table->nodes[index].changed = table->nodes[index].foreign = 0;
	table->nodes[index].recalled = 0;
	table->nodes[index].writer = 0;
	have_open(table, 1);
	link_in(table, index);
}

uint64_t mfs_node_enter(struct mfs_table *table, int fd, const struct stat *stat, unsigned export, enum mfs_kind kind)
{
	struct mfs_record fresh = {.device = stat->st_dev, .inode = stat->st_ino, .export = (uint8_t)export, .kind = (uint8_t)kind};
	bool has_handle = false;

	pthread_mutex_lock(&table->lock);
	uint32_t index = find_entry(table, &fresh, &fd, &has_handle);
	if (!index) {
		if (!has_handle)
			mfs_take_handle(&fresh, fd);
		index = take_index(table, &fresh);
		if (!index) {
			pthread_mutex_unlock(&table->lock);
			close(fd);
			return errno = ENFILE, 0;
		}
		fill_entry(table, index, &fresh, fd);
		fd = -1;
	}
	table->records[index].lookups++;
	table->nodes[index].named = stat->st_nlink && export != MFS_DIRECT;
	uint64_t id = index | (uint64_t)table->records[index].sequence << 32;
	if (has_many_open(table))
		give_up_descriptors(table);
	pthread_mutex_unlock(&table->lock);
	if (fd >= 0)
		close(fd);
	return id;
}

uint64_t mfs_node_of(struct mfs_table *table, const struct stat *stat)
{
	uint64_t id = 0;

	pthread_mutex_lock(&table->lock);
	for (uint32_t index = table->buckets[mfs_inode_bucket(stat->st_dev, stat->st_ino)]; index && !id; index = table->nodes[index].next)
		if (table->records[index].device == stat->st_dev && table->records[index].inode == stat->st_ino)
			id = index | (uint64_t)table->records[index].sequence << 32;
	pthread_mutex_unlock(&table->lock);
	return id;
}

void mfs_node_forget(struct mfs_table *table, uint64_t id, uint64_t count)
{
	pthread_mutex_lock(&table->lock);
	uint32_t index = index_of(table, id);
	if (index > MFS_ROOT) {
		struct mfs_record *record = &table->records[index];
		record->lookups -= count < record->lookups ? count : record->lookups;
		if (!record->lookups && !table->nodes[index].pins)
			give_up(table, index);
	}
	pthread_mutex_unlock(&table->lock);
}
