/* Answers that the kernel has been given, and may not have got to yet: the program that has asked takes what they report when it runs again, which
 * may be after something has changed that it is notified of. As a rule Linux sees that, and remembers nothing then; but
 *
 * - names of listings it takes to be as new as that moment: a word that they have changed, which comes before, would be lost. They are forgotten
 *   once more when the listing has been read, and who waits until they are forgotten (a fence) waits until then;
 * - of what its own requests have changed it forgets a part by itself, without marking that as a moment before which nothing may be remembered. So
 *   it is asked to forget, if there is such an answer.
 *
 * A thread has read its answer when it asks something else. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <linux/fuse.h>
#include <pthread.h>

#define MOST 512 /* requests and answers; of more it is said that there is one */
#define TERM 1000 /* ms: what was promised holds no longer, so nobody waits longer for who has asked either */
#define RESENT (1ull << 63)
#define NOTHING (~0ull)
#define NOTIFY_INC_EPOCH 8

static struct answer {
	uint64_t unique; /* of the request */
	uint64_t handle; /* of a listing */
	uint64_t node; /* that it concerns; 0: that is not known yet, or of many */
	uint32_t thread;
	bool names; /* it is a listing that has come, with names that may be remembered */
	bool late; /* these have been forgotten since */
	long long since; /* ms */
} answers[MOST];
static unsigned count;
static bool full; /* there was no place for one, */
static long long full_since; /* ms: the last time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_read = PTHREAD_COND_INITIALIZER;

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

static bool is_over(const struct answer *one, long long now)
{
	return now - one->since > TERM;
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
	if (one->late)
		pthread_cond_broadcast(&is_read);
	*one = answers[--count];
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

void mfs_unread_asked(const void *frame)
{
	const struct fuse_in_header *in = frame;
	long long now = mfs_now();
	bool late = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < count;) {
		if (has_been_read(&answers[i], in) || is_over(&answers[i], now)) {
			late |= answers[i].late;
			end(&answers[i]);
		} else {
			i++;
		}
	}
	if (tells_of_nodes(in->opcode) && count < MOST)
		answers[count++] = (struct answer){
			.unique = in->unique & ~RESENT,
			.thread = in->pid,
			.since = now,
			.node = in->opcode == FUSE_GETATTR ? in->nodeid : 0,
			.handle = in->opcode == FUSE_READDIRPLUS ? ((const struct fuse_read_in *)(in + 1))->fh : 0,
		};
	else if (tells_of_nodes(in->opcode)) {
		full = true;
		full_since = now;
	}
	pthread_mutex_unlock(&lock);
	if (late)
		mfs_fuse_forget_names();
}

/* Under `lock`. */
static struct answer *of_request(uint64_t unique)
{
	for (unsigned i = 0; i < count; i++)
		if (answers[i].unique == unique)
			return &answers[i];
	return NULL;
}

void mfs_unread_tells_of(uint64_t unique, uint64_t node)
{
	pthread_mutex_lock(&lock);
	struct answer *one = of_request(unique);
	if (one)
		one->node = node ? node : NOTHING;
	pthread_mutex_unlock(&lock);
}

bool mfs_unread_tells_names(uint64_t unique)
{
	pthread_mutex_lock(&lock);
	struct answer *one = of_request(unique);
	bool known = one && one->thread;
	if (known)
		one->names = true;
	pthread_mutex_unlock(&lock);
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
	long long now = mfs_now();

	for (unsigned i = 0; i < count; i++)
		if (answers[i].late && !is_over(&answers[i], now))
			return true;
	return false;
}

void mfs_unread_settle(void)
{
	long long end = mfs_now() + TERM;

	pthread_mutex_lock(&lock);
	bool late = is_any_late();
	while (is_any_late() && mfs_wait_until(&is_read, &lock, end))
		;
	pthread_mutex_unlock(&lock);
	if (late)
		mfs_fuse_forget_names();
}
