/* Connections of which it is not known yet whose they are: so many of one address, so many in all. Who comes when there is no place takes that
 * of the connection that has said nothing for longest, else of one whose handshake lasts; only those that have said something cost a thread. */
#ifndef MFS_PENDING_H
#define MFS_PENDING_H

#include <poll.h>

#define MFS_PENDING_PLACES 1024
#define MFS_PENDING_OF_SOURCE 256
#define MFS_PENDING_HANDSHAKES 128 /* those that have said something, and have a thread */
#define MFS_PENDING_HANDSHAKES_OF_SOURCE 32
#define MFS_PENDING_SLOW 1000 /* ms after which a handshake lasts too long, if there is no other place */
#define MFS_PENDING_PATIENCE 5000 /* ms in which a connection must say something, and then whose it is */

/* A connection that has come; from now on it is one of the pending ones. */
void mfs_pending_add(int fd);
/* Those that are waited for, at most MFS_PENDING_PLACES; how many. */
unsigned mfs_pending_watched(struct pollfd *watched);
/* Calls `meet` for each of them that has said something, closes those that have not in time. */
void mfs_pending_handle(const struct pollfd *watched, unsigned count, void (*meet)(int fd));
/* A connection that `meet` was called for is no stranger any more, or has ended. */
void mfs_pending_remove(int fd);

/* Complains of a stranger, once a minute for each kind and address, however often it happens. */
void mfs_pending_complain(const char *kind, int fd, const char *what);

#endif
