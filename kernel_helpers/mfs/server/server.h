/* mfs-server: the parts of it, and what they share.
 *
 *   main.c       options, keys, accepting connections; lobby.c whose they are; places.c what a peer may have of all this
 *   sessions/    one mount of a peer: its threads, whose turn it is to take requests, what it is sent, what is remembered as done
 *   files/       what peers see, and what they never see; files that a peer's kernel knows, and has open; acting as the caller
 *   coherence/   what peers may remember, and that they forget it when it changes
 *   operations/  what is asked */
#ifndef MFS_SERVER_H
#define MFS_SERVER_H

#include "mfs/server/files/exports.h"
#include "mfs/log.h"
#include "mfs/server/coherence/promises.h"
#include "mfs/server/sessions/request.h"
#include "mfs/server/files/tables.h"
#include "mfs/wire.h"

/* ---- direct files ---- */

int mfs_direct_begin(void);
/* Takes what was deposited, forgets what nobody came for. */
void mfs_direct_look(void);
/* Whether that name, which the request looks up, is a token. */
bool mfs_direct_is(const struct mfs_request *request, const char *name);
long mfs_direct_lookup(struct mfs_request *request, const char *name);

/* ---- what was done ---- */

struct mfs_ledger *mfs_ledger_begin(const char *path); /* NULL: errno tells */
void mfs_ledger_end(struct mfs_ledger *ledger);
/* Whether the request has been answered from what is remembered; else it is being done from now on. */
bool mfs_ledger_settles(struct mfs_ledger *ledger, struct mfs_request *request);
/* Its reply is complete. */
void mfs_ledger_note(struct mfs_ledger *ledger, const struct mfs_request *request);

/* ---- locks ---- */

struct mfs_locks *mfs_locks_new(struct mfs_peer *peer);
void mfs_locks_drop_owner(struct mfs_locks *locks, uint64_t node, uint64_t owner);
void mfs_locks_drop_handle(struct mfs_locks *locks, uint64_t handle);
void mfs_locks_drop_all(struct mfs_locks *locks);

/* ---- identity ---- */

/* Once for each thread, as root; whether it serves a peer whose root is root here. */
int mfs_identity_begin(bool root_counts);
/* The peer whose root is root here, too; NULL: each. Without any of them: none. */
void mfs_root_count(const char *peer);
bool mfs_root_counts(const char *peer);
/* Makes ids that count for nothing here those of nobody; whether it was root's. */
bool mfs_squash(bool root_counts, uint32_t *uid, uint32_t *gid);
/* The permission bits that the request may give a file. */
uint32_t mfs_mode(const struct mfs_request *request, uint32_t mode);
int mfs_assume(uint32_t uid, uint32_t gid); /* 0 or -errno: from now on this thread acts as that user */
void mfs_be_self(void);
/* The lease on that descriptor, whoever this thread acts as. */
void mfs_give_up_lease(int fd);
/* Until mfs_be_self: setuid bits go when files are changed, even if root does it. */
void mfs_without_fsetid(void);

/* ---- server ---- */

extern const char *mfs_run_directory;
struct mfs_counters *mfs_counters_take(const char *peer); /* NULL: there are too many */
void mfs_serve(struct mfs_stream *stream, const struct mfs_hello *hello);
void mfs_sessions_drop_removed(void); /* ends those of nodes that were taken out of the cluster */
void mfs_sessions_look(void); /* four times a second: what is silent, what has ended */

#endif
