/* What the kernel asks although it has just learned it, or although there is nothing to be done: answered here, with what the peer would say.
 *
 * A thread that has made a file asks for its attributes before its open() returns, in any case (may_open); they are those that came with the
 * file, and nobody else can have sent that thread anything since. Such a file has no capabilities, which the kernel asks for at the first
 * write. Closing a file that nobody here has ever locked gives up no lock. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <string.h>

#define THREADS 256 /* whose files are known at a time */
#define GOOD_FOR 500 /* ms */
#define NODES (1u << 21) /* the server's numbers end below */

static struct {
	uint32_t thread;
	uint64_t unique; /* of the request, until it is answered */
	uint64_t node; /* then */
	struct fuse_attr attributes;
} made[THREADS];
static struct {
	uint64_t node;
	long long until; /* ms */
} fresh[THREADS]; /* files that have been made just now, and have no extended attributes, as nobody has said that they have been changed */
static uint32_t making[THREADS]; /* threads, by the number of their request */
static uint8_t locked[NODES]; /* by the lower half of the node's number: whether it has had a lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned place(uint64_t unique)
{
	return (unsigned)(unique / 2 % THREADS); /* the kernel counts in steps of two */
}

static void answer(uint64_t unique, const struct fuse_attr *attributes, int error)
{
	struct {
		struct fuse_out_header header;
		struct fuse_attr_out body;
	} reply = {.header = {.len = sizeof reply.header, .error = error, .unique = unique}};

	if (attributes) {
		reply.header.len = sizeof reply;
		reply.body.attr = *attributes;
	}
	mfs_fuse_answer(&reply, reply.header.len);
}

/* Whether this thread asks for what it has just made: the attributes of that. */
static bool has_just_made(const struct fuse_in_header *in, struct fuse_attr *attributes)
{
	unsigned at = in->pid % THREADS;
	bool is = false;

	pthread_mutex_lock(&lock);
	if (in->pid && made[at].thread == in->pid) {
		is = in->opcode == FUSE_GETATTR && !made[at].unique && made[at].node == in->nodeid;
		*attributes = made[at].attributes;
		made[at].thread = 0;
	}
	if (in->opcode == FUSE_CREATE && in->pid) {
		made[at].thread = making[place(in->unique)] = in->pid;
		made[at].unique = in->unique;
	}
	pthread_mutex_unlock(&lock);
	return is;
}

static bool asks_for_nothing(const struct fuse_in_header *in)
{
	const char *name = (const char *)(in + 1) + sizeof(struct fuse_getxattr_in);
	unsigned at = in->nodeid % THREADS;

	pthread_mutex_lock(&lock);
	bool is = fresh[at].node == in->nodeid && fresh[at].until > mfs_now();
	if (in->opcode == FUSE_SETXATTR)
		fresh[at].node = 0;
	pthread_mutex_unlock(&lock);
	return is && in->opcode == FUSE_GETXATTR && !strcmp(name, "security.capability");
}

void mfs_known_forget(uint64_t node)
{
	pthread_mutex_lock(&lock);
	if (fresh[node % THREADS].node == node)
		fresh[node % THREADS].node = 0;
	pthread_mutex_unlock(&lock);
}

bool mfs_known_answers(const void *frame)
{
	const struct fuse_in_header *in = frame;
	struct fuse_attr attributes;
	uint32_t index = (uint32_t)in->nodeid % NODES;

	if ((in->opcode == FUSE_SETLK || in->opcode == FUSE_SETLKW) && !locked[index])
		locked[index] = 1;
	bool is_made = has_just_made(in, &attributes);
	if (is_made)
		answer(in->unique, &attributes, 0);
	else if ((in->opcode == FUSE_GETXATTR || in->opcode == FUSE_SETXATTR) && asks_for_nothing(in))
		answer(in->unique, NULL, -ENODATA);
	else if (in->opcode == FUSE_FLUSH && !locked[index] && !mfs_options.keep) /* the one before may know of a lock */
		answer(in->unique, NULL, 0);
	else
		return false;
	return true;
}

void mfs_known_learns(void *frame, size_t size, const struct mfs_beside *beside)
{
	const struct fuse_out_header *header = frame;
	const struct fuse_entry_out *entry = (const struct fuse_entry_out *)(header + 1);

	(void)beside;
	if (header->error || size != sizeof *header + sizeof *entry + sizeof(struct fuse_open_out))
		return;
	pthread_mutex_lock(&lock);
	unsigned at = making[place(header->unique)] % THREADS;
	if (made[at].thread && made[at].unique == header->unique) {
		made[at].unique = 0;
		made[at].node = entry->nodeid;
		made[at].attributes = entry->attr;
	}
	if (entry->attr_valid) { /* promised with a file that is new */
		fresh[entry->nodeid % THREADS].node = entry->nodeid;
		fresh[entry->nodeid % THREADS].until = mfs_now() + GOOD_FOR;
	}
	pthread_mutex_unlock(&lock);
}
