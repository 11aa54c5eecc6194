/* mfs-server: what peers may remember, and that they forget it in time. */
#ifndef MFS_PROMISES_H
#define MFS_PROMISES_H

#include "mfs/server/sessions/request.h"

/* ---- what peers may remember: watch.c, leases.c ---- */

#define MFS_TERM 1000  /* ms for which a peer's kernel may use what it was told, without asking */
#define MFS_MARGIN 300 /* ms more, for which a peer that does not answer is waited for */
#define MFS_LATE 3000  /* ms more, for which it is told nevertheless: what it was told may have reached a busy program late */
#define MFS_QUIET \
	50   /* ms for which nobody else has changed what a peer may remember (mfs_quiet), and as long nobody had to be told that it */
#define MFS_CALM 1000  /* has changed; twice as long with each time that follows the one before within this time, and this is the most */
#define MFS_OLD 50     /* ms after which the next change has another time, however coarse clocks are */
#define MFS_BREAK (SIGRTMIN + 1)
#define MFS_SETTLES_WITHIN (MFS_TERM + MFS_MARGIN)

extern int mfs_quiet;
int mfs_watch_begin(void);
/* Whether nobody has changed it just now: its next time of change is another one. */
bool mfs_is_old(const struct stat *stat);
/* The request's peer is about to change it, and has changed it. */
void mfs_peer_may_change(struct mfs_node *node);
void mfs_changed_by_peer(struct mfs_node *node);
/* mfs_lease_drop, before the request promises anything: what it promises afterwards holds. */
void mfs_drop_own_lease(struct mfs_request *request, struct mfs_node *node, bool if_whole);
/* The request has changed that node, opened or closed it: the peer may remember what it is now, and is told with the reply. */
void mfs_tell_beside(struct mfs_request *request, struct mfs_node *node, uint64_t id);
/* The request has taken a name away from what was found under it before, or given it another one. */
void mfs_tell_gone(struct mfs_request *request, const struct stat *found);
/* Begins, and ends, to notice changes of what is behind an O_PATH descriptor; 0 or -errno. */
int mfs_watch_mark(int events, int fd);
void mfs_watch_unmark(int events, int fd);
int mfs_watch_mark_data(int events, int fd);
void mfs_watch_unmark_data(int events, int fd);
/* The descriptor through which a session is told of changes; -1: there is none, and nothing may be remembered. */
int mfs_watch_open(void);
/* After a change that the request has made: returns when no other peer remembers what was before. */
void mfs_watch_settle(struct mfs_request *request);
/* The peer is told to forget attributes and data of a node. */
void mfs_forget_node(struct mfs_session *session, uint64_t id);
/* Whether the peer may remember names of that directory, or the attributes of that node, which are then those that stat has become. */
bool mfs_promise_names(struct mfs_request *request, struct mfs_node *directory);
bool mfs_promise_attributes(struct mfs_request *request, struct mfs_node *node, uint64_t id, struct stat *stat);

/* ---- pages of files that peers have: pages.c ---- */

/* Before a request is answered by which the peer's kernel comes to have pages; read: it has asked for them. */
void mfs_pages_given(struct mfs_session *session, const struct mfs_file *file, bool read);
/* It has been opened, and pages that the peer has of it may stay. */
void mfs_pages_kept(struct mfs_session *session, uint64_t id);
/* Before it is looked at how large it is, and when the peer is told. */
void mfs_pages_measured(struct mfs_session *session, uint64_t id, uint64_t size);
/* One more file of that node is open, or one less. Whether it is the only one now. */
bool mfs_pages_opened(struct mfs_table *table, uint64_t id, int more);
/* The request has changed what is in the node's file; waits: returns when no other peer shows what was before. */
void mfs_pages_settle(struct mfs_request *request, uint64_t id, bool waits);
/* A program of this node has changed what is in the file with that handle; NULL: in any. */
void mfs_pages_changed(struct mfs_session *session, const struct file_handle *handle);
/* The peer is back: what it has open may have grown meanwhile. */
void mfs_pages_resume(struct mfs_session *session);
/* Now and then: what is open for a while is watched, whoever has filled its pages. */
void mfs_pages_look(struct mfs_session *session);

int mfs_leases_begin(void);
/* Whether there is a lease on the file, for as long as a promise that is made now. */
bool mfs_lease_hold(struct mfs_session *session, struct mfs_node *node, uint64_t id);
/* The peer has forgotten by itself what it remembered; if_whole: only if that relied on nobody else's having it open. */
void mfs_lease_drop(struct mfs_node *node, bool if_whole);
void mfs_leases_drop_all(struct mfs_session *session);
/* The peer has obeyed more notifications. */
void mfs_leases_settled(struct mfs_session *session);

/* ---- notifications ---- */

void mfs_notify(struct mfs_session *session, const void *frame, size_t size);
/* Asks the peer to say when it has obeyed all so far; the number of the last, 0: it has. */
uint64_t mfs_fence(struct mfs_session *session);
/* Until it has obeyed those up to that number, but no longer than it remembers anything; or until gives_up(argument). */
void mfs_fence_wait(struct mfs_session *session, uint64_t number, bool (*gives_up)(struct mfs_session *, void *), void *argument);
void mfs_sessions_each(void (*visit)(struct mfs_session *, void *), void *argument);
bool mfs_sessions_unsettled(const struct mfs_session *except);
/* Whether it may still remember what it was told to forget. */
bool mfs_session_is_unsettled(struct mfs_session *session);
/* Grows whenever a reply that is being made must not promise anything any more. */
unsigned long long mfs_session_news(const struct mfs_session *session);
/* What the program before this one has promised runs out before anything is changed: waits for that, once after the start. */
void mfs_sessions_begin(void);
void mfs_wait_for_predecessor(struct mfs_request *request);
void mfs_session_keep(struct mfs_session *session);
void mfs_session_let_go(struct mfs_session *session);

#endif
