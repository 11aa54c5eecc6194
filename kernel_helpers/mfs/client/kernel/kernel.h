/* mfs-client: what the kernel gets, and what it remembers. Each file calls what stands before it here:
 *
 *   device.c         replies and notifications to the kernel
 *   own_changes.c    attributes of what our own requests have changed
 *   known.c          what can be answered here
 *   unread.c         answers that the kernel may not have got to yet
 *   promises.c       what the kernel may remember, for how long, and that it forgets it
 *   memory.c         a row for each of those that remember requests and replies
 *   pages.c          pages of files that the kernel has, and must not show when the peer is lost
 *   notifications.c  changes that the peer has reported, in a queue */
#ifndef MFS_CLIENT_KERNEL_H
#define MFS_CLIENT_KERNEL_H

#include "mfs/client/common/client.h"

/* ---- the kernel's device ---- */

#define MFS_READ_AHEAD 2048 /* KiB that are read ahead: further than the kernel does by itself */

extern int mfs_fuse_device; /* -1: not yet */
void mfs_fuse_answer(const void *frame, size_t size);
void mfs_fuse_fail(uint64_t unique, int error);
/* 0 or -errno, whatever the kernel says to a notification. */
int mfs_fuse_tell(const void *frame, size_t size);
/* It forgets attributes of that node; it is not waited for anything. As above. */
int mfs_fuse_forget_attributes(uint64_t node);
/* Whether the kernel can be asked to look all names up anew. */
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
void mfs_known_learns(void *frame, size_t size, const struct mfs_beside *beside);

/* Word has come that it has changed. */
void mfs_known_forget(uint64_t node);

/* ---- answers that may not have been read yet ---- */

/* Each request of the kernel's, before it is forwarded. */
void mfs_unread_asked(const void *frame);
/* The answer to the request of that number concerns that node alone; 0: of none; remembered: its attributes may be. False: it is not known when
 * it will have been read, so they may not. */
bool mfs_unread_tells_of(uint64_t unique, uint64_t node, bool remembered);
/* It is a listing by which something may be remembered of these nodes; names: so may their names. False: as above. */
bool mfs_unread_lists(uint64_t unique, const uint64_t *nodes, unsigned count, bool names);
/* Whether one may concern that node, but for the answer to that request. */
bool mfs_unread_is_about(uint64_t node, uint64_t except);
/* Has the kernel look all names up anew, if it can (mfs_fuse_has_epochs). */
void mfs_fuse_forget_names(void);
/* Returns when what has been forgotten of names is forgotten in listings, too. */
void mfs_unread_settle(void);
/* The kernel did not know the node of that notification: it is notified again, as long as an answer may make it known; waits for that. */
void mfs_unread_repeat(const void *notification, size_t size, uint64_t node);
int mfs_unread_begin(void); /* before there are answers; 0 or -errno */

/* ---- what may be remembered ---- */

/* A request of the kernel's is about to be forwarded. Returns false: it has not been answered. */
bool mfs_promises_asked(const void *frame);
/* An answer of the peer's, before the kernel has it: what it promises is made no longer than it holds. */
void mfs_promises_come(void *frame, size_t size, const struct mfs_beside *beside);
/* The peer is lost: all of it is forgotten. By the thread to which answers come. */
void mfs_promises_forget(void);

/* ---- each of them, in this order ---- */

#define MFS_MEMORIES 3

struct mfs_memory {
	/* Of a request of the kernel's, before it is forwarded: whether it has been answered here. */
	bool (*asked)(const void *frame);
	/* Of an answer of the peer's, before the kernel has it; NULL: nothing. */
	void (*answered)(void *frame, size_t size, const struct mfs_beside *beside);
};

extern const struct mfs_memory mfs_memories[MFS_MEMORIES];

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

#endif
