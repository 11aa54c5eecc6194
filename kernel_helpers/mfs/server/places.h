/* mfs-server: what peers may have of us at a time. */
#ifndef MFS_PLACES_H
#define MFS_PLACES_H

#include <stdbool.h>

#define MFS_SESSIONS_MOST 1024
#define MFS_NODES (1u << 21) /* numbers of files that a mount may have */

enum mfs_place {
	MFS_SESSIONS,    /* mounts that it has of this node, or had not long ago */
	MFS_OPEN_FILES,
	MFS_KNOWN_FILES, /* that its kernel has a number for; */
	MFS_HELD_FILES,  /* of these, those whose descriptor cannot be given up */
	MFS_LOCKERS,     /* processes with locks on a file */
	MFS_WAITERS,     /* requests that wait for others */
	MFS_THREADS,
	MFS_LEASES,
	MFS_PLACES,
};

struct mfs_peer;

/* By how many descriptors this process may have, unless a bound was given before: "NAME=ALL/EACH", "ranges=EACH". Whether that is one. */
void mfs_places_begin(unsigned descriptors);
bool mfs_places_bound(const char *text);
/* The peer of that name, until it is let go as often; NULL: there are too many. */
struct mfs_peer *mfs_peer_keep(const char *name);
void mfs_peer_let_go(struct mfs_peer *peer);
/* One more, if it may have one; some more, that it has anyway; some less. */
bool mfs_place_take(struct mfs_peer *peer, enum mfs_place what);
void mfs_place_count(struct mfs_peer *peer, enum mfs_place what, unsigned count);
void mfs_place_give(struct mfs_peer *peer, enum mfs_place what, unsigned count);
extern unsigned mfs_ranges_most; /* locks that a process may have on a file */

#endif
