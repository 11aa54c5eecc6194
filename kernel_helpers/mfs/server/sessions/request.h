/* mfs-server: one mount of a peer, and what it asks. */
#ifndef MFS_REQUESTS_H
#define MFS_REQUESTS_H

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "mfs/server/files/exports.h"
#include "mfs/server/files/tables.h"
#include "mfs/wire.h"

struct mfs_counters { /* read by mosd: 64-bit words in this order */
	atomic_ullong requests, bytes_read, bytes_written, nodes, files, leases, recalls, invalidations, connected;
	char peer[MFS_NAME_MOST];
};

struct mfs_locks;
struct mfs_ledger;

struct mfs_turn {
	pthread_mutex_t lock;
	pthread_cond_t is_free;
	bool taken;
	atomic_int waiting;
	atomic_ullong at; /* the number of the request that whoever leads is at, 0: it waits for one. Whoever makes it 0 has the turn, or */
	unsigned long long last; /* gives it away */
	atomic_llong since; /* ms, monotonic */
};

struct mfs_session {
	char peer[MFS_NAME_MOST];
	struct mfs_peer *owner; /* the same, and what it has of us */
	uint8_t id[MFS_SESSION];
	struct mfs_stream in, out;
	struct mfs_turn turn; /* to read from `in` */
	pthread_mutex_t writing;
	atomic_int threads; /* that serve it; */
	atomic_int busy; /* of these, who is at a request: not in the connections, but to answer it */
	atomic_uint connections; /* that it has had before */
	bool held; /* it is nobody's turn, for it is not connected yet; of who holds sessions_lock */
	atomic_bool broken, ended;
	atomic_int kept; /* by whom it is used besides its threads */
	atomic_ullong notified; /* notifications that are to be sent; */
	atomic_ullong sent; /* so many of them have been, or never will be */
	atomic_ullong dropped; /* what was promised to it, and taken back without a notification */
	atomic_ullong settled; /* of the notifications, how many the peer's kernel is known to have obeyed */
	atomic_llong told; /* ms, monotonic: when the last was sent */
	pthread_mutex_t settling, watching;
	pthread_cond_t is_settled;
	atomic_llong heard; /* ms, monotonic */
	bool hurries; /* the last request came soon after the one before; of whoever leads */
	bool root_counts; /* its root is root here, too */
	pthread_mutex_t ends; /* of `in` and `out` themselves: who shuts them must not find others in their places */
	bool has_in, has_out, serving;
	atomic_bool epochs, takes_beside;
	struct mfs_table table;
	struct mfs_handles handles;
	struct mfs_locks *locks;
	struct mfs_ledger *ledger;
	struct mfs_counters *counters;
	struct mfs_session *next;
};

struct mfs_request {
	struct mfs_session *session;
	struct fuse_in_header *in;
	char *argument; /* what follows the header, ended by a NUL of ours */
	size_t size; /* of the argument */
	char *buffer; /* of the reply, with room for its header */
	char *reply; /* within it, after the header */
	size_t room; /* for the reply */
	bool leads; /* nobody else takes requests until we step down, or have been at this one for long */
	unsigned long long number; /* by which it leads */
	bool alone; /* in a thread of its own: may wait for others */
	struct mfs_node *told_of; /* a directory that is looked into, and whether its names may be remembered */
	bool tells_names;
	bool makes; /* what it tells of is new, and the peer's own */
	bool promises; /* the reply says that something may be remembered */
	bool has_beside;
	struct mfs_beside beside;
	unsigned long long news; /* of the session, when it was begun */
	unsigned connection; /* by which it came */
	atomic_bool interrupted;
	bool squashed; /* the peer's root asks, who is nobody here */
};

#define MFS_AGAIN (1ull << 63) /* of a request's number: the kernel asks again (FUSE_UNIQUE_RESEND) */
#define MFS_ALONE (-ERESTART) /* a handler's result: others have to be waited for; to be done again in a thread of its own */
/* Whether this thread may wait for others. */
extern _Thread_local bool mfs_may_wait;
/* open(2); if it had to wait for somebody's lease to be given up, and this thread may not, errno is ERESTART. */
int mfs_open_patiently(int node, int flags);

#define MFS_LARGE (64u << 10) /* bytes of a read or write: it is worth another thread's taking the next request meanwhile */
/* This thread serves that session until it ends. */
void mfs_thread_begin(struct mfs_session *session);
void mfs_thread_end(void);
struct mfs_session *mfs_thread_serves(int thread); /* NULL: it is none of ours */
/* Lets another thread take the next request: this one may last. */
void mfs_step_down(struct mfs_request *request);
int mfs_turns_begin(void); /* 0 or -errno; from then on whoever lasts loses the turn */
void mfs_turn_begin(struct mfs_turn *turn);
/* Waits until it is this thread's turn; false: the connection is broken. Ends it for good. */
bool mfs_turn_take(struct mfs_session *session);
void mfs_turn_end(struct mfs_session *session);
/* It is nobody's turn until it is ended; false: it is somebody's. */
bool mfs_turn_hold(struct mfs_session *session);
void mfs_turn_break(struct mfs_session *session); /* the connection is broken: nobody waits for his turn */
/* Whoever leads has a request, under that number; is done with it: whether it leads still; or lets another lead, unless one does already. */
unsigned long long mfs_turn_work(struct mfs_session *session);
bool mfs_turn_goes_on(struct mfs_session *session, unsigned long long number);
void mfs_turn_give(struct mfs_session *session, unsigned long long number);
/* The argument as a structure; NULL if it is too short. */
void *mfs_argument(struct mfs_request *request, size_t size);
/* The string after `skip` bytes of the argument; NULL if there is none. A name: if it is one of a file. The second: what follows it. */
const char *mfs_word(struct mfs_request *request, size_t skip);
const char *mfs_name(struct mfs_request *request, size_t skip);
const char *mfs_second_name(struct mfs_request *request, const char *first);
int mfs_send(struct mfs_session *session, const void *frame, size_t size);

void mfs_reply(struct mfs_request *request, long result);
/* Carries it out; the result. */
long mfs_handle(struct mfs_request *request);
/* In a thread of its own, begun before anything else of its session is read: an interruption that follows finds it. 0 or -errno. */
int mfs_alone_begin(struct mfs_request *request);
void mfs_alone_interrupt(struct mfs_request *request);
/* Wakes those that are to give up; again and again, since one may not have begun to wait yet. */
void mfs_alone_look(void);
/* Ends its connections; its threads end then. */
void mfs_session_break(struct mfs_session *session);
/* One more thread that takes requests, for which there is a place (MFS_THREADS). */
void mfs_session_add_thread(struct mfs_session *session);
/* The peer has obeyed all notifications up to that number. */
void mfs_session_settle(struct mfs_session *session, uint64_t number);

typedef long (*mfs_handler)(struct mfs_request *request);

long mfs_lookup(struct mfs_request *request);
long mfs_mknod(struct mfs_request *request);
long mfs_mkdir(struct mfs_request *request);
long mfs_unlink(struct mfs_request *request);
long mfs_rmdir(struct mfs_request *request);
long mfs_rename(struct mfs_request *request);
long mfs_rename2(struct mfs_request *request);
long mfs_link(struct mfs_request *request);
long mfs_symlink(struct mfs_request *request);
long mfs_readlink(struct mfs_request *request);
long mfs_getattr(struct mfs_request *request);
long mfs_setattr(struct mfs_request *request);
long mfs_statfs(struct mfs_request *request);
long mfs_access(struct mfs_request *request);
long mfs_setxattr(struct mfs_request *request);
long mfs_getxattr(struct mfs_request *request);
long mfs_listxattr(struct mfs_request *request);
long mfs_removexattr(struct mfs_request *request);
long mfs_opendir(struct mfs_request *request);
long mfs_readdir(struct mfs_request *request);
long mfs_readdirplus(struct mfs_request *request);
long mfs_fsyncdir(struct mfs_request *request);
long mfs_open(struct mfs_request *request);
long mfs_create(struct mfs_request *request);
long mfs_tmpfile(struct mfs_request *request);
long mfs_read(struct mfs_request *request);
long mfs_write(struct mfs_request *request);
long mfs_flush(struct mfs_request *request);
long mfs_release(struct mfs_request *request);
long mfs_fsync(struct mfs_request *request);
long mfs_fallocate(struct mfs_request *request);
long mfs_lseek(struct mfs_request *request);
long mfs_copy_range(struct mfs_request *request);
long mfs_syncfs(struct mfs_request *request);
long mfs_getlk(struct mfs_request *request);
long mfs_setlk(struct mfs_request *request);
long mfs_setlkw(struct mfs_request *request);

/* What handlers share. */
struct mfs_found {
	int fd; /* O_PATH */
	bool names; /* the peer may remember this name, or that there is none */
	bool below; /* asked: what is mounted there is not to be found (EXDEV) */
	struct stat stat;
	unsigned export;
	enum mfs_kind kind;
};

/* What has that name in the directory, sought as the user that this thread is; 0 or -errno. */
int mfs_find(struct mfs_request *request, struct mfs_node *parent, const char *name, struct mfs_found *found);
/* Makes it known to the peer (takes its fd) and tells it: 0 or -errno. */
int mfs_tell(struct mfs_request *request, struct mfs_found *found, struct fuse_entry_out *entry);
void mfs_fill_attributes(struct fuse_attr *attributes, const struct stat *stat);
/* The node, pinned, found to be where it was exported, and this thread acting as who asks; NULL: errno tells. writable: it is to be changed.
 * A directory is to be one whose contents peers may see. */
struct mfs_node *mfs_object(struct mfs_request *request, uint64_t id, bool writable);
struct mfs_node *mfs_directory(struct mfs_request *request, uint64_t id, bool writable);
/* "/proc/self/fd/N": the file behind an O_PATH descriptor, for calls that know paths alone. */
struct mfs_path {
	char text[32];
};
struct mfs_path mfs_path_of(int fd);
/* The same in the directory mfs_own_files, which is a shorter way. */
struct mfs_path mfs_number_of(int fd);
extern int mfs_own_files;

#endif
