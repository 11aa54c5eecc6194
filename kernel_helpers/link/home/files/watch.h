/* What was sent to guests about home's directories, and that it has changed: one watch for all processes of this program.
 *
 * The kernel notes a change within the call that makes it. The watch is drained before any frame goes to a guest, and what has changed is
 * recalled by a frame before that one: so a guest that hears of a change, by whatever comes from home, has the recall first. What
 * changes while no frame goes out is recalled a few milliseconds later.
 *
 * A position counts what was recalled since this program began. */
#ifndef FARHOME_WATCH_H
#define FARHOME_WATCH_H
#include "link/link.h"

/* One guest to which something was sent. Its owner sets the session. */
struct hearer {
	struct session *session;
	uint64_t since, sent;       /* positions: when something was sent first; all up to here was recalled */
	int hears;
	struct hearer *next;
};

#pragma GCC visibility push(hidden)
void watch_lock(void);
void watch_unlock(void);
/* ---- with the lock held ---- */

/* Drains the watch; the position then. */
uint64_t watch_position(void);
/* Watches a directory (O_PATH) of a local file system (mounts.h). Its number, or 0. Everything may have been recalled, as by
 * watch_name(). */
uint32_t watch_directory(int descriptor);
/* Changes of this name are recalled from now on; or everything was recalled: the position is another then. */
void watch_name(const struct dependency *name);
/* A number for this program, never 0. */
uint64_t watch_program(void);
/* Recalls everything when a mount in the namespace of that process changes. 0, or -1: there is another namespace. */
int watch_mounts(int pid);
/* Something is sent to the guest for the first time. */
void watch_hear(struct hearer *h, uint64_t position);

/* ---- without it ---- */

/* What has changed is queued for the guest, before any other frame is. */
void watch_recall(struct hearer *h);
/* Another session, to which nothing was sent. NULL: none. */
void watch_renew(struct hearer *h, struct session *session);
#pragma GCC visibility pop
#endif
