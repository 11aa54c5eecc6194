/* Pages of files: a program that has mapped a file sees its node's pages, and nobody asks the server before. So who is open at a peer whose
 * kernel may have pages of it is notified when it changes: before the writer goes on, if that is another peer; as soon as fanotify has reported it,
 * if it is a program of this node.
 *
 * Two peers that write to the same file at once do not wait for one another: each kernel has locked the page that it writes, and forgets it
 * only when it has been answered. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"
#include "mfs/server/files/nodes.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct mfs_node *node_of(struct mfs_table *table, uint64_t id)
{
	return &table->nodes[(uint32_t)id];
}

void mfs_pages_given(struct mfs_session *session, const struct mfs_file *file, bool read)
{
	struct mfs_node *node = node_of(&session->table, file->node);

	/* Before it is read: a process that changes it from now on finds that the peer has pages. What is only written is watched if it lasts. */
	node->given++;
	node->paged = true;
	if (read && !node->watched)
		mfs_node_watch(&session->table, node);
}

static bool has_pages(const struct mfs_node *node)
{
	return node->given != node->dropped;
}

void mfs_pages_kept(struct mfs_session *session, uint64_t id)
{
	struct mfs_node *node = node_of(&session->table, id);

	if (has_pages(node) && !node->watched)
		mfs_node_watch(&session->table, node);
}

bool mfs_pages_opened(struct mfs_table *table, uint64_t id, int more)
{
	struct mfs_node *node = node_of(table, id);
	int before = atomic_fetch_add(&node->opened, more);

	if (before + more > 0)
		return before <= 0;
	node->paged = false;
	if (node->watched)
		mfs_node_unwatch(table, node);
	return false;
}

void mfs_pages_measured(struct mfs_session *session, uint64_t id, uint64_t size)
{
	node_of(&session->table, id)->size = size;
}

enum { HAS_PAGES = 1, HAS_GROWN = 2 };

/* In place of a size: it has been asked to look, and will find it; it was waited for until it had. */
#define TO_LOOK UINT64_MAX
#define HAS_LOOKED (UINT64_MAX - 1)

/* Under the table's lock. What has to be reported to the peer about the node, which it has open. A thread that waits until the peer has obeyed notifies it, although others
 * may have notified it already, for it need not have heard of that yet; else it is notified once of all pages that it has. */
static int what_is_old(struct mfs_node *node, bool waits)
{
	uint32_t given = node->given;
	struct stat stat;
	int old = 0;

	if (node->opened <= 0)
		return 0;
	if (has_pages(node) && (waits || node->notified != given))
		old = HAS_PAGES;
	if (!waits)
		node->notified = given;
	if (node->paged && (fstat(node->fd, &stat) || (uint64_t)stat.st_size > node->size || (waits && node->size == TO_LOOK))) {
		node->size = TO_LOOK;
		node->looks++;
		old |= HAS_GROWN;
	}
	return old;
}

static void notify(struct mfs_session *session, uint64_t id, int old, bool obeys_at_once)
{
	struct {
		struct fuse_out_header header;
		uint64_t node;
	} look = {.header = {.len = sizeof look, .error = obeys_at_once ? MFS_LOOK : MFS_LOOK_SOON}, .node = id};

	if (old & HAS_PAGES && obeys_at_once)
		mfs_forget_node(session, id);
	if (old & HAS_GROWN || !obeys_at_once)
		mfs_notify(session, &look, sizeof look);
}

static uint64_t id_of(const struct mfs_table *table, uint32_t index)
{
	return index | (uint64_t)table->records[index].sequence << 32;
}

static bool is_of(const struct mfs_table *table, uint32_t index, uint64_t device, uint64_t inode)
{
	return table->records[index].device == device && table->records[index].inode == inode;
}

#define NOTIFIED_MOST 16

struct change {
	const struct mfs_session *by;
	uint64_t device, inode;
	bool waits;
	unsigned count; /* of those that were notified */
	struct notified {
		const struct mfs_session *session;
		uint64_t id;
		uint32_t given, looks; /* of the node, then */
	} notified[NOTIFIED_MOST]; /* the first of them; the others are notified again next time */
};

/* The next node of the changed file behind `after` about which something is to be reported to the peer, 0: there is none. */
static uint64_t next_by_inode(struct mfs_session *session, struct change *change, uint32_t after, int *old)
{
	struct mfs_table *table = &session->table;
	uint32_t found = 0;

	pthread_mutex_lock(&table->lock);
	for (uint32_t index = table->buckets[mfs_inode_bucket(change->device, change->inode)]; index; index = table->nodes[index].next)
		if (index > after && (!found || index < found) && is_of(table, index, change->device, change->inode))
			found = index;
	uint64_t id = found ? id_of(table, found) : 0;
	*old = found ? what_is_old(&table->nodes[found], change->waits) : 0;
	if (*old && change->count++ < NOTIFIED_MOST)
		change->notified[change->count - 1] = (struct notified){session, id, table->nodes[found].given, table->nodes[found].looks};
	pthread_mutex_unlock(&table->lock);
	return id;
}

/* Both: the number of a node about which something is to be reported to the peer, 0: there is none any more. */
static uint64_t next_by_handle(struct mfs_table *table, const struct file_handle *handle, int *old)
{
	pthread_mutex_lock(&table->lock);
	uint32_t index = table->handle_buckets[mfs_handle_bucket(handle->handle_type, handle->f_handle, handle->handle_bytes)];
	while (index && !(mfs_has_handle(&table->records[index], handle) && (*old = what_is_old(&table->nodes[index], false))))
		index = table->nodes[index].next_by_handle;
	uint64_t id = index ? id_of(table, index) : 0;
	pthread_mutex_unlock(&table->lock);
	return id;
}

static uint64_t next_of_all(struct mfs_table *table, uint32_t *index, int *old)
{
	uint64_t id = 0;

	pthread_mutex_lock(&table->lock);
	while (!id && ++*index < table->used)
		if (table->records[*index].lookups && (*old = what_is_old(&table->nodes[*index], false)))
			id = id_of(table, *index);
	pthread_mutex_unlock(&table->lock);
	return id;
}

static void tell_of(struct mfs_session *session, void *argument)
{
	struct change *change = argument;
	int old;

	if (session == change->by)
		return;
	for (uint64_t id = 0; (id = next_by_inode(session, change, (uint32_t)id, &old));)
		notify(session, id, old, true);
}

/* Whether that peer changes the file as well, and waits. */
static bool changes_too(struct mfs_session *session, void *argument)
{
	const struct change *change = argument;
	struct mfs_table *table = &session->table;
	bool found = false;

	pthread_mutex_lock(&table->lock);
	for (uint32_t index = table->buckets[mfs_inode_bucket(change->device, change->inode)]; index; index = table->nodes[index].next)
		found |= is_of(table, index, change->device, change->inode) && table->nodes[index].changing > 0;
	pthread_mutex_unlock(&table->lock);
	return found;
}

static void settle(struct mfs_session *session, void *argument)
{
	const struct change *change = argument;

	if (session != change->by && mfs_session_is_unsettled(session))
		mfs_fence_wait(session, mfs_fence(session), changes_too, argument);
}

/* Who was waited for has dropped what it had then, or does not answer and has dropped all. */
static void note_dropped(struct mfs_session *session, void *argument)
{
	const struct change *change = argument;

	pthread_mutex_lock(&session->table.lock);
	for (unsigned i = 0; i < change->count && i < NOTIFIED_MOST; i++) {
		const struct notified *one = &change->notified[i];
		struct mfs_node *node = node_of(&session->table, one->id);
		unsigned long long to_look = TO_LOOK;
		if (one->session != session || id_of(&session->table, (uint32_t)one->id) != one->id)
			continue;
		if ((int32_t)(one->given - node->dropped) > 0)
			node->dropped = one->given;
		if (one->looks == node->looks)
			atomic_compare_exchange_strong(&node->size, &to_look, HAS_LOOKED);
	}
	pthread_mutex_unlock(&session->table.lock);
}

void mfs_pages_settle(struct mfs_request *request, uint64_t id, bool waits)
{
	struct mfs_session *session = request->session;
	const struct mfs_record *record = &session->table.records[(uint32_t)id];
	struct mfs_node *node = node_of(&session->table, id);
	struct change change = {.by = session, .waits = waits};

	pthread_mutex_lock(&session->table.lock);
	change.device = record->device;
	change.inode = record->inode;
	pthread_mutex_unlock(&session->table.lock);
	node->changing += waits;
	mfs_sessions_each(tell_of, &change);
	if (change.count && waits) {
		pthread_mutex_lock(&session->settling);
		pthread_cond_broadcast(&session->is_settled); /* who waits for this peer's word of the same file */
		pthread_mutex_unlock(&session->settling);
		mfs_step_down(request);
		mfs_sessions_each(settle, &change);
		mfs_sessions_each(note_dropped, &change);
	}
	node->changing -= waits;
}

void mfs_pages_changed(struct mfs_session *session, const struct file_handle *handle)
{
	struct mfs_table *table = &session->table;
	uint32_t index = 0;
	int old;

	/* Nobody waits for it, so the peer may be asking already: a report would not count if it were to forget first. It looks, and not
	 * at once: of two answers that come together Linux takes one, and while it takes old pages away because of that the other uses them. */
	for (uint64_t id; (id = handle ? next_by_handle(table, handle, &old) : next_of_all(table, &index, &old));)
		notify(session, id, old, false);
}

void mfs_pages_resume(struct mfs_session *session)
{
	uint32_t index = 0;

	for (uint64_t id; (id = mfs_handle_next_node(&session->handles, &index));)
		notify(session, id, HAS_GROWN, false);
}

/* What was written before it was watched may have been changed by others meanwhile. */
void mfs_pages_look(struct mfs_session *session)
{
	uint32_t index = 0;

	for (struct mfs_file *file; (file = mfs_handle_next(&session->handles, &index)); mfs_handle_put(file)) {
		struct mfs_node *node = node_of(&session->table, file->node);
		if (node->watched || !has_pages(node))
			continue;
		mfs_node_watch(&session->table, node);
		if (node->watched)
			notify(session, file->node, HAS_GROWN, false);
	}
}
