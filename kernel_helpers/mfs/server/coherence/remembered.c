/* Which nodes a peer may remember something of, and until when. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"
#include "mfs/server/files/nodes.h"

#include <fcntl.h>
int mfs_quiet = MFS_QUIET;

/* Under the table's lock. */
static void unwatch(struct mfs_table *table, struct mfs_node *node)
{
	if (node->watched)
		mfs_watch_unmark_data(table->events, node->fd);
	node->watched = false;
}

void mfs_node_watch(struct mfs_table *table, struct mfs_node *node)
{
	if (mfs_node_kind(table, node) != MFS_OWN)
		return;
	pthread_mutex_lock(&table->lock);
	if (!node->watched && node->fd >= 0)
		node->watched = !mfs_watch_mark_data(table->events, node->fd);
	pthread_mutex_unlock(&table->lock);
}

void mfs_node_unwatch(struct mfs_table *table, struct mfs_node *node)
{
	pthread_mutex_lock(&table->lock);
	unwatch(table, node);
	pthread_mutex_unlock(&table->lock);
}

void mfs_stop_watching(struct mfs_table *table, uint32_t index)
{
	struct mfs_node *node = &table->nodes[index];

	unwatch(table, node);
	if (!node->marked)
		return;
	mfs_watch_unmark(table->events, node->fd);
	*(node->marked_before ? &table->nodes[node->marked_before].marked_after : &table->marked) = node->marked_after;
	if (node->marked_after)
		table->nodes[node->marked_after].marked_before = node->marked_before;
	node->marked = false;
}

bool mfs_node_remember(struct mfs_table *table, struct mfs_node *node)
{
	if (mfs_node_kind(table, node) != MFS_OWN)
		return false; /* nor may the kernel be asked to report changes, under the lock: it asks that server first */
	pthread_mutex_lock(&table->lock);
	node->until = mfs_now() + MFS_TERM + MFS_LATE;
	/* What is marked stays open. */
	if (!node->marked && table->open <= mfs_nodes_open_most && !mfs_watch_mark(table->events, node->fd)) {
		uint32_t index = (uint32_t)(node - table->nodes);
		node->marked = true;
		node->marked_before = 0;
		node->marked_after = table->marked;
		if (table->marked)
			table->nodes[table->marked].marked_before = index;
		table->marked = index;
	}
	bool marked = node->marked;
	pthread_mutex_unlock(&table->lock);
	return marked;
}

unsigned mfs_table_look(struct mfs_table *table)
{
	long long now = mfs_now();

	pthread_mutex_lock(&table->lock);
	for (uint32_t index = table->marked, after; index; index = after) {
		after = table->nodes[index].marked_after;
		if (table->nodes[index].until < now)
			mfs_stop_watching(table, index);
	}
	unsigned open = table->open;
	pthread_mutex_unlock(&table->lock);
	return open;
}

void mfs_node_recalled(struct mfs_node *node)
{
	long long now = mfs_now();
	int calm = node->calm;

	if (now - node->recalled > MFS_CALM)
		node->calm = mfs_quiet;
	else
		node->calm = calm * 2 < MFS_CALM ? calm * 2 : MFS_CALM;
	node->recalled = now;
}

uint64_t mfs_node_remembered(struct mfs_table *table, const struct file_handle *handle)
{
	uint64_t id = 0;

	pthread_mutex_lock(&table->lock);
	uint32_t index = table->handle_buckets[mfs_handle_bucket(handle->handle_type, handle->f_handle, handle->handle_bytes)];
	for (; index && !id; index = table->nodes[index].next_by_handle) {
		const struct mfs_record *record = &table->records[index];
		if (!mfs_has_handle(record, handle) || table->nodes[index].until < mfs_now())
			continue;
		table->nodes[index].until = 0;
		mfs_node_recalled(&table->nodes[index]);
		id = index | (uint64_t)record->sequence << 32;
	}
	pthread_mutex_unlock(&table->lock);
	return id;
}

uint64_t mfs_node_next_remembered(struct mfs_table *table, uint32_t *index)
{
	uint64_t id = 0;

	pthread_mutex_lock(&table->lock);
	while (!id && ++*index < table->used)
		if (table->records[*index].lookups && table->nodes[*index].until >= mfs_now()) {
			table->nodes[*index].until = 0;
			id = *index | (uint64_t)table->records[*index].sequence << 32;
		}
	pthread_mutex_unlock(&table->lock);
	return id;
}
