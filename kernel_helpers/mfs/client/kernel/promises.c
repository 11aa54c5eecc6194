/* What the peer promises: for how long the kernel may remember an answer, unless it is asked to forget it. That time is counted from when the
 * peer was asked, and not from when its answer is read, which on a busy node may be late; and when the peer is lost, all of it is forgotten.
 *
 * What a process here changes is known to its kernel: the peer does not report it. Another request may be under way then whose answer reports what was
 * before, and is read by the kernel later. It remembers only what it has asked for after it was asked to forget: so it learns that, of whatever a
 * request has changed beside what its answer describes. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ASKED 4096 /* places of requests, by their number, */
#define PLACES 16 /* and so many that one may have; what is promised to who finds none is not looked at */
#define RESENT (1ull << 63) /* in the number of a request that the kernel asks again */
#define TERM 1000 /* ms: the most that is promised */

struct asked {
	uint64_t unique; /* 0: this place is free */
	uint64_t node, other; /* what else it changes, or 0 */
	long long since; /* ms */
	uint32_t opcode;
	uint32_t age; /* of what is known of changed nodes, then */
	bool changes; /* the node, without telling of it */
	bool alters; /* the node's attributes, or names in it */
};

static struct asked asked[ASKED];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those */

/* What may be remembered, in the order in which it came: used by the thread that reads answers alone. */
static struct promise {
	uint64_t node;
	long long until; /* ms */
} *promised;
static size_t room, oldest, count;

static struct asked *place(uint64_t unique, uint64_t wanted)
{
	for (unsigned i = 0; i < PLACES; i++) {
		struct asked *one = &asked[(unique / 2 + i) % ASKED]; /* the kernel counts in steps of two */
		if (one->unique == wanted)
			return one;
	}
	return NULL;
}

/* What a request changes, by its kind. False: nothing of its answer is to be remembered.
 *
 * Before a file is opened for writing, or its length changed, what we remember of it is forgotten: the peer would wait until we had done so. What
 * was asked before, and is answered later, is not remembered: the kernel sees to that. */
static bool classify(const struct fuse_in_header *in, struct asked *one)
{
	switch (in->opcode) {
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_READDIRPLUS:
		break;
	case FUSE_WRITE:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
		mfs_beside_forget(in->opcode == FUSE_COPY_FILE_RANGE ? ((const struct fuse_copy_file_range_in *)(in + 1))->nodeid_out
		                                                     : in->nodeid);
		return false;
	case FUSE_SETATTR:
		one->alters = true;
		if (((const struct fuse_setattr_in *)(in + 1))->valid & FATTR_SIZE)
			mfs_fuse_forget_attributes(in->nodeid);
		break;
	case FUSE_RENAME:
	case FUSE_RENAME2:
		one->other = ((const struct fuse_rename_in *)(in + 1))->newdir;
		one->changes = true;
		break;
	case FUSE_LINK:
		one->other = ((const struct fuse_link_in *)(in + 1))->oldnodeid;
		one->changes = true;
		break;
	case FUSE_RELEASE: /* what was promised since nobody else has it open is not promised any more */
		if (!mfs_is_for_writing(((const struct fuse_release_in *)(in + 1))->flags))
			return false;
		mfs_fuse_forget_attributes(in->nodeid);
		one->alters = true;
		break;
	case FUSE_OPEN:
		if (!mfs_is_for_writing(((const struct fuse_open_in *)(in + 1))->flags))
			return false;
		mfs_fuse_forget_attributes(in->nodeid);
		/* fall through */
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
		one->changes = true;
		break;
	default:
		return false;
	}
	return true;
}

bool mfs_promises_asked(const void *frame)
{
	const struct fuse_in_header *in = frame;
	struct asked one = {.unique = in->unique & ~RESENT, .node = in->nodeid, .since = mfs_now(), .opcode = in->opcode};

	if (!classify(in, &one))
		return false;
	pthread_mutex_lock(&lock);
	struct asked *at = place(one.unique, one.unique); /* asked again */
	if (!at)
		at = place(one.unique, 0);
	one.alters |= one.changes;
	if (one.alters)
		one.age = mfs_beside_change(one.opcode, one.node, one.other);
	if (at)
		*at = one;
	pthread_mutex_unlock(&lock);
	return false;
}

static bool take(uint64_t unique, struct asked *one)
{
	pthread_mutex_lock(&lock);
	struct asked *at = place(unique, unique);
	if (at) {
		*one = *at;
		at->unique = 0;
	}
	pthread_mutex_unlock(&lock);
	return at;
}

/* False: there is no memory for it. */
static bool note(uint64_t node, long long until)
{
	long long now = mfs_now();

	while (count && promised[oldest].until < now) {
		oldest = (oldest + 1) % room;
		count--;
	}
	if (count == room) {
		size_t more = room ? room * 2 : 1024;
		struct promise *larger = malloc(more * sizeof *larger);
		if (!larger)
			return false;
		for (size_t i = 0; i < count; i++)
			larger[i] = promised[(oldest + i) % room];
		free(promised);
		promised = larger;
		room = more;
		oldest = 0;
	}
	promised[(oldest + count++) % room] = (struct promise){node, until};
	return true;
}

/* A time in an answer, less what has gone by since it was asked for. */
static void shorten(const struct asked *one, uint64_t *seconds, uint32_t *nanoseconds)
{
	if (!*seconds && !*nanoseconds)
		return;
	/* Whatever it says, it is no more than the peer may promise. */
	long long given = *seconds >= TERM / 1000 ? TERM : (long long)*seconds * 1000 + *nanoseconds / 1000000;
	long long left = (given < TERM ? given : TERM) - (mfs_now() - one->since);
	if (left < 0)
		left = 0;
	*seconds = (uint64_t)left / 1000;
	*nanoseconds = (uint32_t)(left % 1000) * 1000000;
}

static void limit(const struct asked *one, uint64_t node, uint64_t *seconds, uint32_t *nanoseconds)
{
	shorten(one, seconds, nanoseconds);
	if ((*seconds || *nanoseconds) && !note(node, one->since + TERM))
		*seconds = *nanoseconds = 0;
}

static void limit_entry(const struct asked *one, struct fuse_entry_out *entry)
{
	shorten(one, &entry->entry_valid, &entry->entry_valid_nsec);
	limit(one, entry->nodeid, &entry->attr_valid, &entry->attr_valid_nsec);
}

/* Whether it changes nothing of the directory but its names, times and size: those the kernel asks for again by itself. */
static bool sees_to_parent(uint32_t opcode)
{
	return opcode == FUSE_CREATE || opcode == FUSE_MKNOD || opcode == FUSE_SYMLINK || opcode == FUSE_UNLINK;
}

static bool is_remembered(const struct fuse_entry_out *entry)
{
	return entry->entry_valid || entry->entry_valid_nsec || entry->attr_valid || entry->attr_valid_nsec;
}

static void limit_listing(const struct asked *one, char *at, const char *end)
{
	static uint64_t nodes[MFS_DATA_MOST / sizeof(struct fuse_direntplus)];
	bool names = false;
	unsigned found = 0;

	for (char *next = at; next + sizeof(struct fuse_direntplus) <= end; next += FUSE_DIRENTPLUS_SIZE((struct fuse_direntplus *)next)) {
		struct fuse_entry_out *entry = &((struct fuse_direntplus *)next)->entry_out;
		limit_entry(one, entry);
		names |= entry->entry_valid || entry->entry_valid_nsec;
		if (is_remembered(entry) && found < sizeof nodes / sizeof *nodes)
			nodes[found++] = entry->nodeid;
	}
	if (!found || mfs_unread_lists(one->unique, nodes, found, names))
		return;
	for (; at + sizeof(struct fuse_direntplus) <= end; at += FUSE_DIRENTPLUS_SIZE((struct fuse_direntplus *)at)) {
		struct fuse_entry_out *entry = &((struct fuse_direntplus *)at)->entry_out;
		entry->entry_valid = entry->attr_valid = 0;
		entry->entry_valid_nsec = entry->attr_valid_nsec = 0;
	}
}

static void limit_one(const struct asked *one, struct fuse_entry_out *entry)
{
	limit_entry(one, entry);
	if (!mfs_unread_tells_of(one->unique, entry->nodeid, entry->attr_valid || entry->attr_valid_nsec)) {
		entry->attr_valid = 0;
		entry->attr_valid_nsec = 0;
	}
}

void mfs_promises_come(void *frame, size_t size, const struct mfs_beside *beside)
{
	const struct fuse_out_header *header = frame;
	char *at = (char *)frame + sizeof *header, *end = (char *)frame + size;
	struct asked one;

	if (!take(header->unique & ~RESENT, &one))
		return;
	if (one.changes && !header->error) {
		if (!sees_to_parent(one.opcode) || mfs_unread_is_about(one.node, one.unique))
			mfs_fuse_forget_attributes(one.node);
		if (one.other && one.other != one.node)
			mfs_fuse_forget_attributes(one.other);
		if (one.opcode == FUSE_RENAME || one.opcode == FUSE_RENAME2)
			mfs_fuse_forget_names(); /* what was promised of the old one the kernel goes on remembering of the new one */
	}
	for (int i = 0; beside && i < 2; i++)
		mfs_beside_forget(beside->gone[i]);
	if (beside && !beside->attributes.attr_valid)
		beside = NULL;
	if (beside && !note(beside->node, one.since + TERM))
		beside = NULL;
	if (one.alters)
		mfs_beside_changed(one.opcode, one.node, one.other, one.age, header->error ? NULL : beside, header->error,
		                   one.since + TERM);
	if (header->error)
		mfs_unread_tells_of(one.unique, 0, false);
	switch (one.opcode) {
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		if (at + sizeof(struct fuse_attr_out) <= end)
			limit(&one, one.node, &((struct fuse_attr_out *)at)->attr_valid, &((struct fuse_attr_out *)at)->attr_valid_nsec);
		break;
	case FUSE_LOOKUP:
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		if (at + sizeof(struct fuse_entry_out) > end)
			break;
		limit_one(&one, (struct fuse_entry_out *)at);
		break;
	case FUSE_READDIRPLUS:
		limit_listing(&one, at, end);
	}
}

void mfs_promises_forget(void)
{
	long long now = mfs_now();

	mfs_fuse_forget_names();
	mfs_beside_forget_all();
	for (; count; count--, oldest = (oldest + 1) % room)
		if (promised[oldest].until >= now)
			mfs_fuse_forget_attributes(promised[oldest].node);
}
