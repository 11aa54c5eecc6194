/* mfs-client: the connection to the peer. */
#ifndef MFS_CLIENT_LINK_H
#define MFS_CLIENT_LINK_H

#include <stddef.h>

int mfs_link_begin(void); /* 0 or -errno, with a sentence on standard error */
/* Sends the request, now or when the link is there; if it is not there in time, the kernel gets an error. */
void mfs_link_forward(const void *frame, size_t size);
/* Sends a frame of our own, if the link is there. */
void mfs_link_send(const void *frame, size_t size);
void mfs_link_look(void); /* run four times a second: finds a peer that is silent, and requests that have waited too long */
void mfs_link_end(void);  /* says goodbye */

#endif
