/* What a peer may remember of its answers: whether nobody else changes it, and whether its changes will be noticed (watch.c,
 * leases.c); and what is reported to it beside the answer to its question, since it changes that itself. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"

#include <sys/stat.h>
#include <time.h>

static int64_t time_of_change(const struct stat *stat)
{
	return stat->st_ctim.tv_sec * 1000000000ll + stat->st_ctim.tv_nsec;
}

static bool is_past(int64_t moment, long long ms)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec - moment > ms * 1000000;
}

bool mfs_is_old(const struct stat *stat)
{
	return is_past(time_of_change(stat), MFS_OLD);
}

/* What others are working on is not remembered. The peer's own kernel knows what it has changed itself. */
static bool is_quiet(const struct mfs_node *node, const struct stat *stat)
{
	int64_t change = time_of_change(stat);

	if (node->recalled && mfs_now() - node->recalled < node->calm)
		return false;
	return is_past(change == node->changed ? node->foreign : change, mfs_quiet);
}

void mfs_peer_may_change(struct mfs_node *node)
{
	struct stat stat;

	if (!fstat(node->fd, &stat) && time_of_change(&stat) != node->changed)
		node->foreign = time_of_change(&stat);
}

void mfs_changed_by_peer(struct mfs_node *node)
{
	struct stat stat;

	if (!fstat(node->fd, &stat))
		node->changed = time_of_change(&stat);
}

/* Before the node is read: a process that changes it from now on finds that a peer may remember it. */
static bool remember(struct mfs_request *request, struct mfs_node *node)
{
	mfs_be_self();
	bool marked = mfs_node_remember(&request->session->table, node);
	request->promises |= marked;
	return marked;
}

bool mfs_promise_names(struct mfs_request *request, struct mfs_node *directory)
{
	struct stat stat;

	return request->session->epochs && !fstat(directory->fd, &stat) && is_quiet(directory, &stat) && remember(request, directory);
}

bool mfs_promise_attributes(struct mfs_request *request, struct mfs_node *node, uint64_t id, struct stat *stat)
{
	if (request->makes) {
		node->foreign = 0;
		node->changed = time_of_change(stat);
	}
	if (request->in->opcode == FUSE_CREATE && S_ISREG(stat->st_mode) &&
	    !node->writer) /* it is open for writing: there is no lease to be had, yet */
		return false;
	if (!is_quiet(node, stat) || !remember(request, node))
		return false;
	if (S_ISREG(stat->st_mode) && !mfs_lease_hold(request->session, node, id))
		return false;
	return !fstat(node->fd, stat);
}

void mfs_drop_own_lease(struct mfs_request *request, struct mfs_node *node, bool if_whole)
{
	mfs_lease_drop(node, if_whole);
	request->news = mfs_session_news(request->session);
}

void mfs_tell_beside(struct mfs_request *request, struct mfs_node *node, uint64_t id)
{
	static atomic_ullong last;
	struct mfs_beside *beside = &request->beside;
	bool makes = request->makes;
	struct stat stat;

	if (!request->session->takes_beside)
		return;
	*beside = (struct mfs_beside){.node = id, .order = ++last};
	mfs_pages_measured(request->session, id, 0);
	if (fstat(node->fd, &stat))
		return;
	request->makes = false;
	request->has_beside = mfs_promise_attributes(request, node, id, &stat);
	request->makes = makes;
	beside->attributes.attr_valid = request->has_beside;
	mfs_pages_measured(request->session, id, (uint64_t)stat.st_size);
	mfs_fill_attributes(&beside->attributes.attr, &stat);
}

void mfs_tell_gone(struct mfs_request *request, const struct stat *found)
{
	struct mfs_beside *beside = &request->beside;

	if (!request->session->takes_beside || !found->st_ino)
		return;
	beside->gone[beside->gone[0] != 0] = mfs_node_of(&request->session->table, found);
	request->has_beside |= beside->gone[0] != 0;
}
