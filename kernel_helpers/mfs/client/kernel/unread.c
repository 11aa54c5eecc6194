/* Answers that the kernel has been given, and may not have got to yet: the program that has asked takes what they report when it runs again, which
 * may be after something has changed that it is notified of. As a rule Linux sees that, and remembers nothing then; but
 *
 * - of a node that it does not know yet it forgets nothing, and takes what an answer reports of it for new whenever it is read. The notification
 *   is repeated until the kernel knows the node, as long as an answer may make it known, and who waits (a fence) waits for that, at most TERM;
 * - names of listings it takes to be as new as that moment: a word that they have changed, which comes before, would be lost. They are forgotten
 *   once more when the listing has been read, and a fence waits until then;
 * - of what its own requests have changed it forgets a part by itself, without marking that as a moment before which nothing may be remembered. So
 *   it is asked to forget, if there is such an answer.
 *
 * A thread has read its answer when it asks something else; and the kernel has, when it forgets the node. Of some it is never heard again: when
 * what was promised holds no longer, the kernel is asked to forget it, again and again until it knows it. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MOST 512 /* requests and answers; of more it is said that there is one, and nothing is promised */
#define TERM 1000 /* ms: what was promised holds no longer, and nobody is waited for longer */
#define AGAIN 20 /* ms between two times that the kernel is asked to forget what it does not know */
#define LOST 60000 /* ms after which an answer is taken for read */
#define RESENT (1ull << 63)
#define NOTIFY_INC_EPOCH 8

static struct answer {
	uint64_t unique; /* of the request */
	uint64_t handle; /* of a listing */
	uint64_t node; /* that it concerns; 0: that is not known yet, or of many: */
	uint64_t *listed; /* those of which something may be remembered, or NULL */
	unsigned count; /* so many may be remembered, the one or these */
	uint32_t thread;
	bool names; /* it is a listing that has come, with names that may be remembered */
	bool late; /* these have been forgotten since */
	long long since; /* ms */
	long long due; /* ms: when the kernel is asked to forget what may be remembered */
} answers[MOST];
static unsigned count;
static bool full; /* there was no place for one, */
static long long full_since; /* ms: the last time */
static bool again; /* a listing has been read whose names have been forgotten meanwhile */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_read = PTHREAD_COND_INITIALIZER;
static pthread_cond_t is_due = PTHREAD_COND_INITIALIZER; /* there is something that will be; */
static bool is_idle = true; /* who waits for it waits without a limit */

static bool tells_of_nodes(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_SETATTR:
	case FUSE_READDIRPLUS:
	case FUSE_CREATE:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		return true;
	}
	return false;
}

/* Nobody waits for it any longer. */
static bool is_over(const struct answer *one, long long now)
{
	return now - one->since > TERM;
}

/* Whether something may be remembered of that node. */
static bool names_node(const struct answer *one, uint64_t node)
{
	for (unsigned i = 0; i < one->count; i++)
		if ((one->listed ? one->listed[i] : one->node) == node)
			return true;
	return false;
}

static bool has_been_read(const struct answer *one, const struct fuse_in_header *in)
{
	if (in->opcode == FUSE_RELEASEDIR)
		return one->handle && one->handle == ((const struct fuse_release_in *)(in + 1))->fh;
	return in->pid == one->thread; /* which may ask the same again */
}

/* Under `lock`. */
static void end(struct answer *one)
{
	again |= one->late;
	pthread_cond_broadcast(&is_read);
	free(one->listed);
	*one = answers[--count];
}

/* Under `lock`: nothing of that node may be remembered by it any more. Whether it has ended by that. */
static bool strike_out(struct answer *one, uint64_t node)
{
	uint64_t *listed = one->listed;

	for (unsigned i = 0; i < one->count;) {
		if ((listed ? listed[i] : one->node) != node)
			i++;
		else if (--one->count && listed)
			listed[i] = listed[one->count];
	}
	if (one->count)
		return false;
	end(one);
	return true;
}

/* Under `lock`: the kernel forgets a node, so it has known it. */
static void is_forgotten(uint64_t node)
{
	for (unsigned i = 0; i < count;)
		if (!names_node(&answers[i], node) || !strike_out(&answers[i], node))
			i++;
}

/* Names are about to be forgotten. */
static void names_go(void)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < count; i++)
		answers[i].late |= answers[i].names;
	pthread_mutex_unlock(&lock);
}

void mfs_fuse_forget_names(void)
{
	struct fuse_out_header header = {.len = sizeof header, .error = NOTIFY_INC_EPOCH};

	if (!mfs_fuse_has_epochs())
		return;
	names_go();
	mfs_fuse_tell(&header, sizeof header);
}

/* Gives `lock` up. */
static void unlock(void)
{
	bool late = again;

	again = false;
	pthread_mutex_unlock(&lock);
	if (late)
		mfs_fuse_forget_names();
}

/* Under `lock`. */
static void note(const struct fuse_in_header *in, long long now)
{
	bool of_one = in->opcode == FUSE_GETATTR || in->opcode == FUSE_SETATTR;

	if (count == MOST) {
		full = true;
		full_since = now;
		return;
	}
	answers[count++] = (struct answer){
		.unique = in->unique & ~RESENT,
		.thread = in->pid,
		.since = now,
		.node = of_one ? in->nodeid : 0,
		.handle = in->opcode == FUSE_READDIRPLUS ? ((const struct fuse_read_in *)(in + 1))->fh : 0,
	};
}

void mfs_unread_asked(const void *frame)
{
	const struct fuse_in_header *in = frame;
	const struct fuse_batch_forget_in *batch = (const struct fuse_batch_forget_in *)(in + 1);
	const char *last = (const char *)frame + in->len;
	long long now = mfs_now();
	bool forgets = in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET;

	pthread_mutex_lock(&lock);
	if (in->opcode == FUSE_FORGET)
		is_forgotten(in->nodeid);
	if (in->opcode == FUSE_BATCH_FORGET)
		for (const struct fuse_forget_one *one = (const struct fuse_forget_one *)(batch + 1);
		     count && (const char *)(one + 1) <= last; one++)
			is_forgotten(one->nodeid);
	for (unsigned i = 0; i < count && !forgets;) {
		if (has_been_read(&answers[i], in) || (is_over(&answers[i], now) && !answers[i].count))
			end(&answers[i]);
		else
			i++;
	}
	if (tells_of_nodes(in->opcode))
		note(in, now);
	unlock();
}

/* Under `lock`. */
static struct answer *of_request(uint64_t unique)
{
	for (unsigned i = 0; i < count; i++)
		if (answers[i].unique == unique)
			return &answers[i];
	return NULL;
}

/* Under `lock`: something may be remembered by it. */
static void promise(struct answer *one, unsigned of)
{
	one->count = of;
	one->due = one->since + TERM;
	if (of && is_idle)
		pthread_cond_signal(&is_due);
}

bool mfs_unread_tells_of(uint64_t unique, uint64_t node, bool remembered)
{
	pthread_mutex_lock(&lock);
	struct answer *one = of_request(unique);
	if (one && node) {
		one->node = node;
		promise(one, remembered);
	} else if (one) {
		end(one);
	}
	pthread_mutex_unlock(&lock);
	return one;
}

bool mfs_unread_lists(uint64_t unique, const uint64_t *nodes, unsigned listed, bool names)
{
	uint64_t *copy = malloc(listed * sizeof *nodes);

	if (copy)
		memcpy(copy, nodes, listed * sizeof *nodes);
	pthread_mutex_lock(&lock);
	struct answer *one = copy ? of_request(unique) : NULL;
	bool known = one && one->thread;
	if (known) {
		one->names = names;
		one->listed = copy;
		promise(one, listed);
	}
	pthread_mutex_unlock(&lock);
	if (!known)
		free(copy);
	return known;
}

bool mfs_unread_is_about(uint64_t node, uint64_t except)
{
	long long now = mfs_now();
	bool found = false;

	pthread_mutex_lock(&lock);
	if (full && now - full_since > TERM)
		full = false;
	for (unsigned i = 0; i < count && !found; i++)
		found = answers[i].unique != except && (!answers[i].node || answers[i].node == node) && !is_over(&answers[i], now);
	found |= full;
	pthread_mutex_unlock(&lock);
	return found;
}

static bool is_any_late(void)
{
	for (unsigned i = 0; i < count; i++)
		if (answers[i].late)
			return true;
	return false;
}

void mfs_unread_settle(void)
{
	long long until = mfs_now() + TERM;

	pthread_mutex_lock(&lock);
	bool late = is_any_late();
	while (is_any_late() && mfs_wait_until(&is_read, &lock, until))
		;
	pthread_mutex_unlock(&lock);
	if (late)
		mfs_fuse_forget_names();
}

static bool may_become_known(uint64_t node)
{
	bool found = false;

	for (unsigned i = 0; i < count && !found; i++)
		found = names_node(&answers[i], node);
	return found;
}

void mfs_unread_repeat(const void *notification, size_t size, uint64_t node)
{
	long long until = mfs_now() + TERM;
	int result = -ENOENT;

	pthread_mutex_lock(&lock);
	while (result == -ENOENT && may_become_known(node) && mfs_now() < until) {
		mfs_wait_until(&is_read, &lock, mfs_now() + AGAIN);
		pthread_mutex_unlock(&lock);
		result = mfs_fuse_tell(notification, size);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
}

/* Under `lock`, which is given up meanwhile: the kernel is asked to forget what may be remembered by it; what it knows is done with. */
static void forget(struct answer *one)
{
	uint64_t unique = one->unique, *nodes = malloc(one->count * sizeof *nodes);
	unsigned of = nodes ? one->count : 0, known = 0;

	if (of)
		memcpy(nodes, one->listed ? one->listed : &one->node, of * sizeof *nodes);
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0; i < of; i++)
		if (mfs_fuse_forget_attributes(nodes[i]) != -ENOENT)
			nodes[known++] = nodes[i];
	pthread_mutex_lock(&lock);
	one = of_request(unique);
	for (unsigned i = 0; i < known && one; i++)
		if (strike_out(one, nodes[i]))
			one = NULL;
	free(nodes);
	if (one && mfs_now() - one->since > LOST)
		end(one);
	else if (one)
		one->due = mfs_now() + AGAIN;
}

/* Of which something may be remembered, the one that is due first; NULL: none. */
static struct answer *first_due(void)
{
	struct answer *first = NULL;

	for (unsigned i = 0; i < count; i++)
		if (answers[i].count && (!first || answers[i].due < first->due))
			first = &answers[i];
	return first;
}

static void *forget_what_is_due(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct answer *first = first_due();
		is_idle = !first;
		if (!first) {
			pthread_cond_wait(&is_due, &lock);
		} else if (first->due > mfs_now()) {
			mfs_wait_until(&is_due, &lock, first->due);
		} else {
			forget(first);
			unlock();
			pthread_mutex_lock(&lock);
		}
	}
	return NULL;
}

int mfs_unread_begin(void)
{
	pthread_t thread;
	int result = -pthread_create(&thread, NULL, forget_what_is_due, NULL);

	if (!result)
		pthread_detach(thread);
	return result;
}
