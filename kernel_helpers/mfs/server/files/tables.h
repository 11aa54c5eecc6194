/* mfs-server: what a peer's kernel knows, and what it has open, by number. */
#ifndef MFS_TABLES_H
#define MFS_TABLES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include "mfs/server/files/exports.h"
#include "mfs/server/places.h"

/* ---- nodes ---- */

#define MFS_ROOT 1

struct mfs_record;
struct mfs_lease;
struct file_handle;

struct mfs_node {
	int fd;                  /* O_PATH; -1: to be opened again by its file handle */
	uint32_t next;           /* in the chain of its bucket, or of free ones */
	uint32_t next_by_handle; /* in the chain of those whose file handle has the same hash */
	uint32_t pins;
	uint32_t marked_before, marked_after; /* in the list of those whose changes are noticed */
	atomic_bool named;       /* it had a name when it was last reported to the peer */
	bool marked;             /* changes of it are noticed; */
	atomic_bool watched;     /* and of what is in it, too */
	atomic_uint given;       /* grows when the peer comes to have pages of it; it has some unless this is */
	atomic_uint dropped;     /* what it was when the peer has last been waited for to drop them */
	atomic_uint notified;    /* what it was when the peer was last notified of a change without being waited for */
	atomic_bool paged;       /* it has had some since it has opened it */
	atomic_ullong size;      /* the peer does not know of more bytes of it */
	uint32_t looks;          /* how often it was asked to look how many there are; under the table's lock */
	atomic_int opened;       /* by how many open files of the peer */
	atomic_int changing;     /* requests that have changed what is in it, and wait until other peers have forgotten that */
	_Atomic(struct mfs_lease *) lease; /* or NULL */
	atomic_ullong writer;    /* an open file by which the peer may write to it; 0: none */
	atomic_llong changed;    /* ns: its time of change when the peer changed it last; */
	atomic_llong foreign;    /* and that of the last change before by anybody else; 0: there was none */
	atomic_llong recalled;   /* ms, monotonic: when the peer had last to be notified that it has changed, */
	atomic_int calm;         /* and for how long it is not promised anything then */
	atomic_llong until;      /* ms: until then the peer may remember something of it */
};

struct mfs_table {
	pthread_mutex_t lock;
	struct mfs_record *records;
	struct mfs_node *nodes;
	uint32_t *buckets, *handle_buckets;
	uint32_t used, free, open, hand, marked;
	struct mfs_peer *peer;
	/* Both are handed to it when it has begun, before anybody else uses it. */
	int events;              /* reports changes, and ends with it; -1: nothing does */
	void (*let_go)(struct mfs_table *table, uint32_t index); /* the peer does not know that node any more; under the lock */
};

int mfs_table_begin(struct mfs_table *table, struct mfs_peer *peer, const char *path, bool *resumed);
void mfs_table_end(struct mfs_table *table);
/* The node of that number, pinned, its fd open. NULL: errno says why. */
struct mfs_node *mfs_node_get(struct mfs_table *table, uint64_t id);
void mfs_node_put(struct mfs_table *table, struct mfs_node *node);
unsigned mfs_node_export(struct mfs_table *table, struct mfs_node *node);
enum mfs_kind mfs_node_kind(struct mfs_table *table, struct mfs_node *node);
dev_t mfs_node_device(struct mfs_table *table, struct mfs_node *node);
/* Takes fd (O_PATH), counts a lookup; the node's number, 0: errno says why. */
uint64_t mfs_node_enter(struct mfs_table *table, int fd, const struct stat *stat, unsigned export, enum mfs_kind kind);
void mfs_node_forget(struct mfs_table *table, uint64_t id, uint64_t count);
/* The number by which the peer knows that file; 0: it does not. */
uint64_t mfs_node_of(struct mfs_table *table, const struct stat *stat);
/* Descriptors that tables may keep open together. */
extern unsigned mfs_nodes_open_most;

/* ---- open files ---- */

struct mfs_file {
	int fd;                  /* -1: to be opened again */
	uint32_t pins;
	uint64_t node;
	pthread_mutex_t reading; /* of a directory, whose position is one for all */
	bool released;
};

struct mfs_handles {
	pthread_mutex_t lock;
	struct mfs_file **files;
	struct mfs_opened *records; /* mapped: what outlives the server */
	uint32_t used, free_count;
	uint32_t *free;
	struct mfs_peer *peer;
	void (*reopened)(struct mfs_table *table, uint64_t node); /* handed to it when it has begun: one more file of that node is open */
};

/* The table's nodes that are open for writing are notified of it. */
int mfs_handles_begin(struct mfs_handles *handles, struct mfs_table *table, const char *path);
void mfs_handles_end(struct mfs_handles *handles);
unsigned mfs_handles_count(struct mfs_handles *handles);
/* Takes fd; the number of an open file, 0: errno says why. flags: with which it is opened again. */
uint64_t mfs_handle_enter(struct mfs_handles *handles, int fd, uint64_t node, int flags);
/* The node of the next one that the peer has open, whether it is open here or not; `after` is its index then. 0: no more. */
uint64_t mfs_handle_next_node(struct mfs_handles *handles, uint32_t *after);
/* The next one that is open, pinned; `after` is its index then. NULL: no more. */
struct mfs_file *mfs_handle_next(struct mfs_handles *handles, uint32_t *after);
/* Pinned, its fd open. NULL: errno says why. */
struct mfs_file *mfs_handle_get(struct mfs_handles *handles, struct mfs_table *table, uint64_t number);
void mfs_handle_put(struct mfs_file *file);
/* The node whose open file it was, 0: none that this server has opened. */
uint64_t mfs_handle_release(struct mfs_handles *handles, uint64_t number);
/* Whether it has a lock (which would not survive us: it is then not opened again), or had one that it has lost: it is of no use any more. */
enum mfs_lock_state { MFS_UNLOCKED, MFS_LOCKED, MFS_LOCK_LOST };
/* The peer is lost: others may have what it has locked. */
void mfs_handles_lose_locks(struct mfs_handles *handles);
void mfs_handle_mark(struct mfs_handles *handles, uint64_t number, uint32_t state);

#endif
