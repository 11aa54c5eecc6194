/* What peers may have of us at a time. Each count that a peer's requests make grow has a bound for all peers, so that we never come to an
 * end, and one for each peer; and the last quarter is for peers that have little: a peer that takes all it can get leaves the others enough. */
#define _GNU_SOURCE
#include "mfs/log.h"
#include "mfs/members.h"
#include "mfs/server/places.h"

#include <stdatomic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PEERS 1024
#define NODE_SIZE 300 /* bytes of memory for a file that is known, about */
#define MEMORY 4      /* of this node's memory such a part is for those */
#define RANGES 1024   /* locks of one process on one file */

struct mfs_peer {
	char name[MFS_NAME_MOST];
	unsigned users;
	atomic_uint taken[MFS_PLACES];
	atomic_uint complained; /* seconds: when it was last said that it has too much */
};

struct bound {
	const char *name;
	unsigned all, each, least; /* least: a peer that has less gets one of the last quarter, too */
	atomic_uint taken;
};

static struct bound bounds[MFS_PLACES] = {
	[MFS_SESSIONS] = {"sessions", MFS_SESSIONS_MOST, MFS_SESSIONS_MOST / 2, 4, 0},
	[MFS_OPEN_FILES] = {"files", 1u << 18, 1u << 17, 64, 0},
	[MFS_KNOWN_FILES] = {"known", 0, 0, 1024, 0},
	[MFS_HELD_FILES] = {"held", 1u << 18, 1u << 17, 1024, 0},
	[MFS_LOCKERS] = {"lockers", 1u << 16, 1u << 15, 64, 0},
	[MFS_WAITERS] = {"waiters", 512, 128, 8, 0},
	[MFS_THREADS] = {"threads", 2048, 512, 16, 0},
	[MFS_LEASES] = {"leases", 16384, 8192, 64, 0},
};
unsigned mfs_ranges_most = RANGES;
static struct mfs_peer peers[PEERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void have_at_most(enum mfs_place what, unsigned most)
{
	if (bounds[what].all > most) {
		bounds[what].all = most;
		bounds[what].each = most / 2;
	}
}

void mfs_places_begin(unsigned descriptors)
{
	unsigned long long memory = (unsigned long long)sysconf(_SC_PHYS_PAGES) * (unsigned long long)sysconf(_SC_PAGESIZE);
	unsigned long long known = memory / MEMORY / NODE_SIZE;

	if (!bounds[MFS_KNOWN_FILES].all) {
		bounds[MFS_KNOWN_FILES].all = known < 1u << 16 ? 1u << 16 : known > 1u << 24 ? 1u << 24 : (unsigned)known;
		unsigned each = bounds[MFS_KNOWN_FILES].all / 4 * 3;
		bounds[MFS_KNOWN_FILES].each = each < MFS_NODES ? each : MFS_NODES;
	}
	have_at_most(MFS_OPEN_FILES, descriptors / 4);
	have_at_most(MFS_HELD_FILES, descriptors / 4);
	have_at_most(MFS_LOCKERS, descriptors / 16);
	have_at_most(MFS_LEASES, descriptors / 16);
}

bool mfs_places_bound(const char *text)
{
	char name[32];
	unsigned all, each;

	if (sscanf(text, "ranges=%u", &mfs_ranges_most) == 1)
		return mfs_ranges_most > 0;
	if (sscanf(text, "%31[a-z]=%u/%u", name, &all, &each) != 3 || !each || each > all)
		return false;
	for (unsigned i = 0; i < MFS_PLACES; i++)
		if (!strcmp(bounds[i].name, name)) {
			bounds[i].all = all;
			bounds[i].each = each;
			bounds[i].least = bounds[i].least < each ? bounds[i].least : each;
			return true;
		}
	return false;
}

struct mfs_peer *mfs_peer_keep(const char *name)
{
	struct mfs_peer *found = NULL;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PEERS && !found; i++)
		if (!strcmp(peers[i].name, name))
			found = &peers[i];
	for (unsigned i = 0; i < PEERS && !found; i++)
		if (!peers[i].users)
			found = &peers[i];
	if (found) {
		snprintf(found->name, sizeof found->name, "%s", name);
		found->users++;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void mfs_peer_let_go(struct mfs_peer *peer)
{
	pthread_mutex_lock(&lock);
	peer->users--;
	pthread_mutex_unlock(&lock);
}

void mfs_place_count(struct mfs_peer *peer, enum mfs_place what, unsigned count)
{
	peer->taken[what] += count;
	bounds[what].taken += count;
}

bool mfs_place_take(struct mfs_peer *peer, enum mfs_place what)
{
	struct bound *bound = &bounds[what];
	unsigned own = atomic_fetch_add(&peer->taken[what], 1), all = atomic_fetch_add(&bound->taken, 1);

	if (own < bound->each && all < (own < bound->least ? bound->all : bound->all - bound->all / 4))
		return true;
	mfs_place_give(peer, what, 1);
	unsigned now = (unsigned)(mfs_now() / 1000) + 1, before = peer->complained;
	if (what != MFS_LEASES && what != MFS_THREADS && now - before > 60 &&
	    atomic_compare_exchange_strong(&peer->complained, &before, now))
		mfs_log("%s has as many %s as it may: %u of its own, %u of all nodes", peer->name, bound->name, own, all);
	return false;
}

void mfs_place_give(struct mfs_peer *peer, enum mfs_place what, unsigned count)
{
	peer->taken[what] -= count;
	bounds[what].taken -= count;
}
