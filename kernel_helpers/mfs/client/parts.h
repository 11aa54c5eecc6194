/* mfs-client: what its parts have for one another. Each calls what stands before it here:
 *
 *   common/            what all of them know
 *   kernel/            what the kernel gets, and what it remembers
 *   link/              the connection to the peer: made, kept, lost, made again
 *   kernel_requests.c  what the kernel asks: taken from it, forwarded; and what notifications ask of it
 *   supervisor.c       a mount that outlives its server
 *   main.c             options, the mount and its end */
#ifndef MFS_CLIENT_PARTS_H
#define MFS_CLIENT_PARTS_H

#include "mfs/client/kernel/kernel.h"
#include "mfs/client/link/link.h"

/* ---- the kernel's requests ---- */

int mfs_fuse_begin(int device); /* 0 or -errno; from then on requests are taken */

/* ---- the supervisor ---- */

/* 0 in a process that is to serve, with the open /dev/fuse, one after the other; else -errno. */
int mfs_keep(int *device);

#endif
