/* mfs-server: sessions at work: requests taken, done and answered; connections made, kept and ended. */
#ifndef MFS_SERVING_H
#define MFS_SERVING_H

#include "mfs/server/operations/operations.h"

/* ---- what was done ---- */

struct mfs_ledger *mfs_ledger_begin(const char *path); /* NULL: errno says why */
void mfs_ledger_end(struct mfs_ledger *ledger);
/* Whether the request has been answered from what is remembered; else it is being done from now on. */
bool mfs_ledger_settles(struct mfs_ledger *ledger, struct mfs_request *request);
/* Its reply is complete. */
void mfs_ledger_note(struct mfs_ledger *ledger, const struct mfs_request *request);

/* ---- replies ---- */

void mfs_reply(struct mfs_request *request, long result);
/* The peer has obeyed all notifications up to that number. */
void mfs_session_settle(struct mfs_session *session, uint64_t number);

/* ---- in threads of their own ---- */

/* In a thread of its own, begun before anything else of its session is read: an interruption that follows finds it. 0 or -errno. */
int mfs_alone_begin(struct mfs_request *request);
void mfs_alone_interrupt(struct mfs_request *request);
/* Wakes those that are to give up; again and again, since one may not have begun to wait yet. */
void mfs_alone_look(void);

/* ---- sessions ---- */

/* One more thread that takes requests, for which there is a place (MFS_THREADS). */
void mfs_session_add_thread(struct mfs_session *session);
void mfs_serve(struct mfs_stream *stream, const struct mfs_hello *hello);
void mfs_sessions_drop_removed(void); /* ends those of nodes that were taken out of the cluster */
void mfs_sessions_look(void); /* four times a second: what is silent, what has ended */

#endif
