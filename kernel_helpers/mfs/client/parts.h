/* mfs-client: what its parts have for one another. Each calls what stands before it here:
 *
 *   client.c           what all of them know
 *   device.c           what the kernel is told
 *   own_changes.c      attributes of what our own requests have changed
 *   known.c            what can be answered here
 *   unread.c           answers that the kernel may not have got to yet
 *   promises.c         what the kernel may remember, for how long, and that it forgets it
 *   pages.c            pages of files that the kernel has, and must not show when the peer is lost
 *   notifications.c    what the peer has told of changes, in a queue
 *   link.c             the connection to the peer: made, kept, lost, made again
 *   kernel_requests.c  what the kernel asks: taken from it, forwarded; and what notifications ask of it
 *   keeper.c           a mount that outlives whoever serves it
 *   main.c             options, the mount and its end */
#ifndef MFS_CLIENT_PARTS_H
#define MFS_CLIENT_PARTS_H

#include "mfs/client/client.h"

/* ---- the kernel's device ---- */

#define MFS_READ_AHEAD 2048 /* KiB that are read ahead: further than the kernel does by itself */

extern int mfs_fuse_device; /* -1: not yet */
void mfs_fuse_answer(const void *frame, size_t size);
void mfs_fuse_fail(uint64_t unique, int error);
/* 0 or -errno, whatever the kernel says to a notification. */
int mfs_fuse_tell(const void *frame, size_t size);
/* Whether the kernel can be told to look all names up anew. */
bool mfs_fuse_has_epochs(void);
/* What was given to the peer that is lost, and has not been answered, is asked again. */
int mfs_fuse_ask_again(void);

/* ---- attributes of what our own requests have changed ---- */

/* A request that changes that node, and another one (or 0), is about to be forwarded; returns a number for: */
uint32_t mfs_beside_change(uint32_t opcode, uint64_t node, uint64_t other);
/* It has been answered; beside: what came with it and holds until then (ms), or NULL; failed: it has changed nothing. */
void mfs_beside_changed(uint32_t opcode, uint64_t node, uint64_t other, uint32_t then, const struct mfs_beside *beside, bool failed,
                        long long until);
void mfs_beside_forget(uint64_t node);
void mfs_beside_forget_all(void);
/* Whether the kernel's request has been answered. */
bool mfs_beside_answers(const void *frame);

/* ---- what can be answered here ---- */

/* Whether the kernel's request has been answered. */
bool mfs_known_answers(const void *frame);
/* Of each answer of the peer's, before the kernel has it. */
void mfs_known_learns(const void *frame, size_t size);

/* Word has come that it has changed. */
void mfs_known_forget(uint64_t node);

/* ---- answers that may not have been read yet ---- */

/* Each request of the kernel's, before it is forwarded. */
void mfs_unread_asked(const void *frame);
/* The answer to the request of that number tells of that node alone; 0: of none. */
void mfs_unread_tells_of(uint64_t unique, uint64_t node);
/* It is a listing, with names that may be remembered; false: it is not known when it will have been read, so they may not. */
bool mfs_unread_tells_names(uint64_t unique);
/* Whether one may tell of that node, but for the answer to that request. */
bool mfs_unread_is_about(uint64_t node, uint64_t except);
/* Tells the kernel to look all names up anew, if it can be told (mfs_fuse_has_epochs). */
void mfs_fuse_forget_names(void);
/* Returns when what has been forgotten of names is forgotten in listings, too. */
void mfs_unread_settle(void);

/* ---- what may be remembered ---- */

/* A request of the kernel's is about to be forwarded. */
void mfs_promises_asked(const void *frame);
/* An answer of the peer's, before the kernel has it: what it promises is made no longer than it holds. */
void mfs_promises_come(void *frame, size_t size, const struct mfs_beside *beside);
/* The kernel forgets attributes of that node; it is not waited for anything. */
void mfs_promises_forget_node(uint64_t node);
/* The peer is lost: all of it is forgotten. By the thread to which answers come. */
void mfs_promises_forget(void);

/* ---- pages ---- */

/* The kernel has asked for pages of that node, or has written to it. */
void mfs_pages_seen(uint64_t node);
/* All are taken away, also from those who have them mapped; returns soon, in any case. */
void mfs_pages_drop(void);
/* The kernel asks for its attributes, and finds that its pages are old, or where the file ends now. */
int mfs_pages_begin(void); /* before there are threads; 0 or -errno */
void mfs_pages_look_at(uint64_t node);
void mfs_pages_look_soon(uint64_t node); /* in SOON ms, unless somebody has looked by then; returns at once */
void mfs_pages_asked(uint64_t node);     /* somebody looks */

/* ---- notifications ---- */

struct mfs_notification {
	struct mfs_notification *next;
	size_t size;
	char frame[];
};

/* A notification of the peer's; nobody may have to wait for who gives it to us. */
void mfs_fuse_notify(const void *frame, size_t size);
/* The next one, to be freed; waits for it. */
struct mfs_notification *mfs_next_notification(void);

/* ---- the link ---- */

int mfs_link_begin(void); /* 0 or -errno, with a sentence on standard error */
/* Sends the request, now or when the link is there; if it is not there in time, the kernel is told an error. */
void mfs_link_forward(const void *frame, size_t size);
/* Sends a frame of our own, if the link is there. */
void mfs_link_send(const void *frame, size_t size);
void mfs_link_look(void); /* four times a second: who is silent, what has waited too long */
void mfs_link_end(void);  /* says goodbye */

/* ---- the kernel's requests ---- */

int mfs_fuse_begin(int device); /* 0 or -errno; from then on requests are taken */

/* ---- the keeper ---- */

/* 0 in a process that is to serve, with the open /dev/fuse, one after the other; else -errno. */
int mfs_keep(int *device);

#endif
