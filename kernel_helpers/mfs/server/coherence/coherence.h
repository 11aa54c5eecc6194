/* mfs-server: what peers may remember, and that they forget it in time. */
#ifndef MFS_COHERENCE_H
#define MFS_COHERENCE_H

#include "mfs/server/files/identity.h"
#include "mfs/server/files/paths.h"
#include "mfs/server/sessions/request.h"

/* ---- what peers may remember: watch.c, leases.c ---- */

#define MFS_LATE 3000  /* ms more, for which it is notified nevertheless: a notification may have reached a busy program late */
#define MFS_QUIET \
	50 /* ms for which nobody else has changed what a peer may remember (mfs_quiet), and as long nobody had to be notified that it */
#define MFS_CALM 1000 /* has changed; twice as long with each time that follows the one before within this time, and this is the most */
#define MFS_OLD 50 /* ms after which the next change has another time, however coarse clocks are */
#define MFS_BREAK (SIGRTMIN + 1)

extern int mfs_quiet;
int mfs_watch_begin(void);
/* What the tables of a session that has begun are handed: changes are noticed, and what was remembered is forgotten, from now on. */
void mfs_watch_session(struct mfs_session *session);
/* Whether nobody has changed it just now: its next time of change is another one. */
bool mfs_is_old(const struct stat *stat);
/* The request's peer is about to change it, and has changed it. */
void mfs_peer_may_change(struct mfs_node *node);
void mfs_changed_by_peer(struct mfs_node *node);
/* mfs_lease_drop, before the request promises anything: what it promises afterwards holds. */
void mfs_drop_own_lease(struct mfs_request *request, struct mfs_node *node, bool if_whole);
/* The request has changed that node, opened or closed it: the peer may remember what it is now, and gets it with the reply. */
void mfs_tell_beside(struct mfs_request *request, struct mfs_node *node, uint64_t id);
/* The request has taken a name away from what was found under it before, or given it another one. */
void mfs_tell_gone(struct mfs_request *request, const struct stat *found);
/* After a change that the request has made: returns when no other peer remembers what was before. */
void mfs_watch_settle(struct mfs_request *request);
/* Whether the peer may remember names of that directory, or the attributes of that node, which are then those that stat has become. */
bool mfs_promise_names(struct mfs_request *request, struct mfs_node *directory);
bool mfs_promise_attributes(struct mfs_request *request, struct mfs_node *node, uint64_t id, struct stat *stat);

/* ---- pages of files that peers have: pages.c ---- */

/* Before a request is answered by which the peer's kernel comes to have pages; read: it has asked for them. */
void mfs_pages_given(struct mfs_session *session, const struct mfs_file *file, bool read);
/* It has been opened, and pages that the peer has of it may stay. */
void mfs_pages_kept(struct mfs_session *session, uint64_t id);
/* Before it is looked at how large it is, and when the peer is notified. */
void mfs_pages_measured(struct mfs_session *session, uint64_t id, uint64_t size);
/* One more file of that node is open, or one less. Whether it is the only one now. */
bool mfs_pages_opened(struct mfs_table *table, uint64_t id, int more);
/* The request has changed what is in the node's file; waits: returns when no other peer shows what was before. */
void mfs_pages_settle(struct mfs_request *request, uint64_t id, bool waits);
/* A program of this node has changed what is in the file with that handle; NULL: in any. */
void mfs_pages_changed(struct mfs_session *session, const struct file_handle *handle);
/* The peer is back: what it has open may have grown meanwhile. */
void mfs_pages_resume(struct mfs_session *session);
/* Now and then: what is open for a while is watched, no matter which process has filled its pages. */
void mfs_pages_look(struct mfs_session *session);

int mfs_leases_begin(void);
/* Whether there is a lease on the file, for as long as a promise that is made now. */
bool mfs_lease_hold(struct mfs_session *session, struct mfs_node *node, uint64_t id);
/* The peer has forgotten by itself what it remembered; if_whole: only if that relied on nobody else's having it open. */
void mfs_lease_drop(struct mfs_node *node, bool if_whole);
void mfs_leases_drop_all(struct mfs_session *session);
/* The peer has obeyed more notifications. */
void mfs_leases_settled(struct mfs_session *session);

/* ---- which nodes a peer may remember something of: remembered.c ---- */

/* The peer may remember something of it for MFS_TERM: whether changes of it are noticed. */
bool mfs_node_remember(struct mfs_table *table, struct mfs_node *node);
/* What nobody remembers any more is not watched either. Returns how many have a descriptor. */
unsigned mfs_table_look(struct mfs_table *table);
/* Changes of what is in it are noticed, or not any more. */
void mfs_node_watch(struct mfs_table *table, struct mfs_node *node);
void mfs_node_unwatch(struct mfs_table *table, struct mfs_node *node);
/* The number of the node with that file handle, if the peer may remember something of it; it is then taken not to. 0: none. */
uint64_t mfs_node_remembered(struct mfs_table *table, const struct file_handle *handle);
/* The peer has to be notified that it has changed. */
void mfs_node_recalled(struct mfs_node *node);
/* The next such node after that index, and its index there; 0: no more. */
uint64_t mfs_node_next_remembered(struct mfs_table *table, uint32_t *index);
/* Under the table's lock. */
void mfs_stop_watching(struct mfs_table *table, uint32_t index);

/* ---- of which the kernel reports when they change: marks.c ---- */

#define MFS_NAMES_CHANGE (FAN_CREATE | FAN_DELETE | FAN_MOVED_FROM | FAN_MOVED_TO)

extern int mfs_arrivals; /* an epoll of the notifications of all sessions; -1: not yet */
/* Begins, and ends, to notice changes of what is behind an O_PATH descriptor; 0 or -errno. */
int mfs_watch_mark(int events, int fd);
void mfs_watch_unmark(int events, int fd);
int mfs_watch_mark_data(int events, int fd);
void mfs_watch_unmark_data(int events, int fd);
/* The descriptor through which a session is notified of changes; -1: there is none, and nothing may be remembered. */
int mfs_watch_open(void);

#endif
