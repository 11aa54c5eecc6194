/* mfs-client: what the files of the link share. Each calls what stands before it here:
 *
 *   connection.c  the two streams, connected
 *   requests.c    what leaves, or waits until the peer is there
 *   replies.c     what comes
 *   life.c        when it is connected, and when it is lost */
#ifndef MFS_CLIENT_CONNECTION_H
#define MFS_CLIENT_CONNECTION_H

#include <pthread.h>

#include "mfs/client/kernel/kernel.h"
#include "mfs/client/link/link.h"

#define PINGS 64 /* of which it is known when they were sent */
#define SILENCE 10000 /* ms after which a peer that says nothing is lost, if there is no time-out */

struct mfs_connection {
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t needed; /* somebody asks for the peer */
	pthread_mutex_t sending; /* of the stream to the peer; taken before `lock` */
	struct mfs_stream to, from;
	bool connected, wanted;
	long long lost_at, heard_at, pinged_at;
	atomic_llong pings[PINGS]; /* when they were sent */
	atomic_uint ping_count, pong_count;
};

extern struct mfs_connection mfs_connection;

struct mfs_held {
	struct mfs_held *next;
	long long since;
	size_t size;
	char frame[];
};

/* Connects both streams; 0 or -errno. */
int mfs_connect(void);

/* Under both locks: sends what has waited, in its order. */
void mfs_held_send(void);
/* Under `lock`: how many wait; and those that have waited too long, to be failed without it. */
unsigned mfs_held_count(void);
struct mfs_held *mfs_held_late(long long now);
void mfs_held_fail(struct mfs_held *late);

/* Takes what comes until the connection breaks, into a buffer of MFS_FRAME_MOST bytes. */
void mfs_link_receive(char *buffer);

#endif
