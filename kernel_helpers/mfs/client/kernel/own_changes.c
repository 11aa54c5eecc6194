/* Attributes of what our own requests have changed or opened: the kernel forgets them then, and asks for them at the next step on the way through
 * that directory, or when the program looks at the file that it has opened. They come with the answer (struct mfs_beside), and are reported from
 * here, as long as they hold: no word has come that somebody else has changed it, and nothing is under way that changes it. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <string.h>

#define PLACES 1024 /* by the node's number; of two that have the same the later is known */

static struct place {
	uint64_t node, order;
	long long until; /* ms; 0: nothing is known */
	unsigned changing; /* requests under way that change it, or another that has this place */
	bool blocked; /* nothing is learned as long as there are any */
	struct fuse_attr attributes;
} places[PLACES];
static unsigned taking; /* requests under way that take names away; until they are answered nothing is reported that may be concerned */
static uint32_t age; /* grows when all is forgotten */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct place *place_of(uint64_t node)
{
	return &places[(node ^ node >> 32) % PLACES];
}

/* Under `lock`. */
static void change(uint64_t node)
{
	struct place *place = place_of(node);

	place->changing++;
	if (place->node == node)
		place->until = 0;
}

/* Whether it changes something that only the peer knows the number of. */
static bool takes_names(uint32_t opcode)
{
	return opcode == FUSE_UNLINK || opcode == FUSE_RMDIR || opcode == FUSE_RENAME || opcode == FUSE_RENAME2;
}

uint32_t mfs_beside_change(uint32_t opcode, uint64_t node, uint64_t other)
{
	pthread_mutex_lock(&lock);
	taking += takes_names(opcode);
	change(node);
	if (other)
		change(other);
	uint32_t now = age;
	pthread_mutex_unlock(&lock);
	return now;
}

/* Under `lock`. known: so is what has become of it; counted: by change(). */
static void changed(uint64_t node, bool counted, bool known)
{
	struct place *place = place_of(node);

	if (counted && place->changing)
		place->changing--;
	if (!known) {
		if (place->node == node)
			place->until = 0;
		place->blocked = place->changing; /* what comes with their answers may be from before */
	}
	if (!place->changing)
		place->blocked = false;
}

void mfs_beside_changed(uint32_t opcode, uint64_t node, uint64_t other, uint32_t then, const struct mfs_beside *beside, bool failed,
                        long long until)
{
	struct place *place = place_of(node);

	if (beside && beside->node != node)
		beside = NULL;
	pthread_mutex_lock(&lock);
	bool blocked = place->blocked, counted = then == age;
	taking -= counted && takes_names(opcode);
	changed(node, counted, failed || beside);
	if (other)
		changed(other, counted, failed);
	if (beside && !blocked && (place->node != node || beside->order > place->order)) {
		place->node = node;
		place->order = beside->order;
		place->attributes = beside->attributes.attr;
		place->until = counted ? until : 0;
	}
	pthread_mutex_unlock(&lock);
}

void mfs_beside_forget(uint64_t node)
{
	pthread_mutex_lock(&lock);
	if (place_of(node)->node == node)
		place_of(node)->until = 0;
	pthread_mutex_unlock(&lock);
}

void mfs_beside_forget_all(void)
{
	pthread_mutex_lock(&lock);
	memset(places, 0, sizeof places);
	taking = 0;
	age++;
	pthread_mutex_unlock(&lock);
}

bool mfs_beside_answers(const void *frame)
{
	const struct fuse_in_header *in = frame;
	struct {
		struct fuse_out_header header;
		struct fuse_attr_out body;
	} reply = {.header = {.len = sizeof reply, .unique = in->unique}};

	if (in->opcode != FUSE_GETATTR)
		return false;
	pthread_mutex_lock(&lock);
	const struct place *place = place_of(in->nodeid);
	long long left = place->until - mfs_now();
	bool known = place->node == in->nodeid && !place->changing && !taking && left > 0;
	if (known) {
		reply.body.attr = place->attributes;
		reply.body.attr_valid_nsec = (uint32_t)(left < 1000 ? left : 999) * 1000000;
	}
	pthread_mutex_unlock(&lock);
	if (known)
		mfs_fuse_answer(&reply, sizeof reply);
	return known;
}
