/* mfs-server: the parts of it, and what they share.
 *
 *   mfs_server.c       options, keys, accepting connections
 *   mfs_sessions.c     one mount of a peer; mfs_requests.c its threads (and mfs_threads.c), mfs_alone.c those that wait; mfs_replies.c what
 *                      it is sent
 *   mfs_exports.c      what peers see, and where it begins
 *   mfs_nodes.c        files that a peer's kernel knows, by number (with mfs_reopen.c, mfs_memory.c); mfs_handles.c those that it has open
 *   mfs_promises.c     what peers may remember
 *   mfs_watch.c        peers forget what has changed; mfs_leases.c: before it changes; mfs_pages.c: what they have mapped of it
 *   mfs_passing.c      large data, from where the kernel has it
 *   mfs_ledger.c       what was done already, when it is asked again
 *   mfs_direct.c       files that processes of ours have open, read where those are
 *   mfs_identity.c     acting as the caller
 *   mfs_names.c, mfs_attributes.c, mfs_xattrs.c, mfs_directories.c, mfs_data.c, mfs_locks.c   what is asked */
#ifndef MFS_SERVER_H
#define MFS_SERVER_H

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "mfs_log.h"
#include "mfs_wire.h"

/* ---- exports ---- */

#define MFS_EXPORTS 64
#define MFS_DIRECT (MFS_EXPORTS + 1) /* none that is shown: direct files */

struct mfs_export {
	char path[4096];
	int fd;                  /* O_PATH */
	dev_t from_device;       /* whoever looks up this directory gets to the export */
	ino_t from_inode;
	bool read_only, whole;   /* whole: it is the root; nothing can be moved out of it */
};

struct mfs_exports {
	struct mfs_export all[MFS_EXPORTS + 2]; /* 0: the directory that leads to the others, read-only; or the root itself */
	unsigned count;
	dev_t hidden_device;     /* what is in this directory under that name is not there */
	ino_t hidden_inode;
	char hidden_name[256];
	dev_t device;            /* whose inode numbers are shown as they are */
};

extern struct mfs_exports mfs_exports;

/* skeleton: a directory of ours, in which the way to exports is made. 0 or -errno, `what` is then the path it is about. */
int mfs_exports_begin(const char *skeleton, char **paths, const bool *read_only, unsigned count, const char *hidden, const char **what);
/* The inode number that peers see. */
uint64_t mfs_inode(dev_t device, ino_t inode);
bool mfs_is_hidden(int parent, const char *name);
/* Whether what is below that directory is not for peers: the kernel's own file systems. */
bool mfs_is_closed(int fd, const struct stat *stat, dev_t parent_device);

/* ---- nodes ---- */

#define MFS_NODES (1u << 21)
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
	bool named;              /* it had a name when the peer was told of it last */
	bool marked, watched;    /* watched: changes of what is in it are noticed, too */
	atomic_uint given;       /* grows when the peer comes to have pages of it; it has some unless this is */
	atomic_uint dropped;     /* what it was when the peer has last been waited for to drop them */
	atomic_uint told;        /* what it was when the peer was last told of a change without being waited for */
	atomic_bool paged;       /* it has had some since it has opened it */
	atomic_ullong size;      /* the peer does not know of more bytes of it */
	uint32_t looks;          /* how often it was told to look how many there are; of whoever has the table's lock */
	atomic_int opened;       /* by how many open files of the peer */
	atomic_int changing;     /* requests that have changed what is in it, and wait until other peers have forgotten that */
	struct mfs_lease *lease; /* or NULL */
	atomic_ullong writer;    /* an open file by which the peer may write to it; 0: none */
	int64_t changed;         /* ns: its time of change when the peer changed it last; */
	int64_t foreign;         /* and that of the last change before by anybody else; 0: there was none */
	long long recalled;      /* ms, monotonic: when the peer had to be told last that it has changed, */
	int calm;                /* and for how long it is not promised anything then */
	atomic_llong until;      /* ms: until then the peer may remember something of it */
};

struct mfs_table {
	pthread_mutex_t lock;
	struct mfs_record *records;
	struct mfs_node *nodes;
	uint32_t *buckets, *handle_buckets;
	uint32_t used, free, open, hand, marked;
	int events;              /* mfs_watch_open() */
	char path[4096];
};

int mfs_table_begin(struct mfs_table *table, const char *path, bool *resumed);
void mfs_table_end(struct mfs_table *table, bool forget);
/* The node of that number, pinned, its fd open. NULL: errno tells. */
struct mfs_node *mfs_node_get(struct mfs_table *table, uint64_t id);
void mfs_node_put(struct mfs_table *table, struct mfs_node *node);
unsigned mfs_node_export(struct mfs_table *table, struct mfs_node *node);
bool mfs_node_is_closed(struct mfs_table *table, struct mfs_node *node);
dev_t mfs_node_device(struct mfs_table *table, struct mfs_node *node);
/* Takes fd (O_PATH), counts a lookup; the node's number, 0: errno tells. */
uint64_t mfs_node_enter(struct mfs_table *table, int fd, const struct stat *stat, unsigned export, bool closed);
void mfs_node_forget(struct mfs_table *table, uint64_t id, uint64_t count);
/* The number by which the peer knows that file; 0: it does not. */
uint64_t mfs_node_of(struct mfs_table *table, const struct stat *stat);
/* The peer may remember something of it for MFS_TERM: whether changes of it are noticed. */
bool mfs_node_remember(struct mfs_table *table, struct mfs_node *node);
/* What nobody remembers any more is not watched either. */
void mfs_table_look(struct mfs_table *table);
/* Changes of what is in it are noticed, or not any more. */
void mfs_node_watch(struct mfs_table *table, struct mfs_node *node);
void mfs_node_unwatch(struct mfs_table *table, struct mfs_node *node);
/* The number of the node with that file handle, if the peer may remember something of it; it is then taken not to. 0: none. */
uint64_t mfs_node_remembered(struct mfs_table *table, const struct file_handle *handle);
/* The peer has to be told that it has changed. */
void mfs_node_recalled(struct mfs_node *node);
/* The next such node after that index, and its index there; 0: no more. */
uint64_t mfs_node_next_remembered(struct mfs_table *table, uint32_t *index);
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
};

/* The table's nodes that are open for writing are told so. */
int mfs_handles_begin(struct mfs_handles *handles, struct mfs_table *table, const char *path);
void mfs_handles_end(struct mfs_handles *handles, const char *path, bool forget);
/* Takes fd; the number of an open file, 0: errno tells. flags: with which it is opened again. */
uint64_t mfs_handle_enter(struct mfs_handles *handles, int fd, uint64_t node, int flags);
/* The node of the next one that the peer has open, whether it is open here or not; `after` is its index then. 0: no more. */
uint64_t mfs_handle_next_node(struct mfs_handles *handles, uint32_t *after);
/* The next one that is open, pinned; `after` is its index then. NULL: no more. */
struct mfs_file *mfs_handle_next(struct mfs_handles *handles, uint32_t *after);
/* Pinned, its fd open. NULL: errno tells. */
struct mfs_file *mfs_handle_get(struct mfs_handles *handles, struct mfs_table *table, uint64_t number);
void mfs_handle_put(struct mfs_file *file);
/* The node whose open file it was, 0: none that this server has opened. */
uint64_t mfs_handle_release(struct mfs_handles *handles, uint64_t number);
/* Whether it has a lock (which would not survive us: it is then not opened again), or had one that it has lost: it is of no use any more. */
enum mfs_lock_state { MFS_UNLOCKED, MFS_LOCKED, MFS_LOCK_LOST };
/* The peer is lost: others may have what it has locked. */
void mfs_handles_lose_locks(struct mfs_handles *handles);
void mfs_handle_mark(struct mfs_handles *handles, uint64_t number, uint32_t state);

/* ---- sessions and requests ---- */

struct mfs_counters { /* read by mosd: 64-bit words in this order */
	atomic_ullong requests, bytes_read, bytes_written, nodes, files, leases, recalls, invalidations, connected;
	char peer[MFS_NAME_MOST];
};

struct mfs_locks;
struct mfs_ledger;

struct mfs_session {
	char peer[MFS_NAME_MOST];
	uint8_t id[MFS_SESSION];
	struct mfs_stream in, out;
	pthread_mutex_t reading, writing;
	atomic_int threads;      /* that serve it */
	atomic_int followers;    /* of these, that wait for their turn */
	atomic_bool broken, ended;
	atomic_int kept;         /* by whom it is used besides its threads */
	atomic_ullong notified;  /* notifications that are to be sent; */
	atomic_ullong sent;      /* so many of them have been, or never will be */
	atomic_ullong dropped;   /* what was promised to it, and taken back without a notification */
	atomic_ullong settled;   /* of the notifications, how many the peer's kernel is known to have obeyed */
	atomic_llong told;       /* ms, monotonic: when the last was sent */
	pthread_mutex_t settling, watching;
	pthread_cond_t is_settled;
	atomic_llong heard;      /* ms, monotonic */
	bool hurries;            /* the last request came soon after the one before; of whoever holds `reading` */
	bool has_in, has_out, serving, epochs, takes_beside, takes_data;
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
	char *argument;          /* what follows the header, ended by a NUL of ours */
	size_t size;             /* of the argument */
	char *buffer;            /* of the reply, with room for its header */
	char *reply;             /* within it, after the header */
	size_t room;             /* for the reply */
	bool leads;              /* nobody else takes requests until we step down */
	bool lends;              /* the reply's data is not in `reply`, but in what this thread has been lent (mfs_lend) */
	bool alone;              /* in a thread of its own: may wait for others */
	struct mfs_node *told_of; /* a directory that is looked into, and whether its names may be remembered */
	bool tells_names;
	bool makes;              /* what it tells of is new, and the peer's own */
	bool promises;           /* the reply says that something may be remembered */
	bool has_beside;
	struct mfs_beside beside;
	unsigned long long news; /* of the session, when it was begun */
	atomic_bool interrupted;
};

#define MFS_ALONE (-ERESTART) /* a handler's result: others have to be waited for; to be done again in a thread of its own */
/* Whether this thread may wait for others. */
extern _Thread_local bool mfs_may_wait;
/* open(2); if it had to wait for somebody's lease to be given up, and this thread may not, errno is ERESTART. */
int mfs_open_patiently(int node, int flags);

#define MFS_LARGE (64u << 10) /* bytes of a read or write: it is worth another thread's taking the next request meanwhile, and passing on by reference */
/* Large data of a file for the reply, without a copy; how much, -EINVAL or another error: it has to be copied. */
long mfs_lend(struct mfs_request *request, int file, off_t offset, size_t size);
/* Sends it; 0 or -errno. */
int mfs_lent_send(struct mfs_stream *stream);
/* The next request, whose size it returns, or -errno. It is at `frame`, but for the data of a large write, perhaps, which is to be written by */
long mfs_take(struct mfs_stream *stream, char *frame);
/* the same thread; as pwrite(2). */
ssize_t mfs_taken_write(int file, const struct fuse_write_in *asked);
/* This thread has nothing of that any more. */
void mfs_passing_end(void);
/* This thread serves that session until it ends. */
void mfs_thread_begin(struct mfs_session *session);
void mfs_thread_end(void);
struct mfs_session *mfs_thread_serves(int thread); /* NULL: it is none of ours */
/* Lets another thread take the next request: this one may last. */
void mfs_step_down(struct mfs_request *request);
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
/* One more thread that takes requests. */
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
	int fd;     /* O_PATH */
	bool names; /* the peer may remember this name, or that there is none */
	struct stat stat;
	unsigned export;
	bool closed;
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

/* ---- what peers may remember: mfs_watch.c, mfs_leases.c ---- */

#define MFS_TERM 1000  /* ms for which a peer's kernel may use what it was told, without asking */
#define MFS_MARGIN 300 /* ms more, for which a peer that does not answer is waited for */
#define MFS_LATE 3000  /* ms more, for which it is told nevertheless: what it was told may have reached a busy program late */
#define MFS_QUIET 50   /* ms for which nobody else has changed what a peer may remember (mfs_quiet), and as long nobody had to be told that it */
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

/* ---- pages of files that peers have: mfs_pages.c ---- */

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

extern unsigned mfs_leases_most;
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

/* ---- direct files ---- */

int mfs_direct_begin(void);
/* Takes what was deposited, forgets what nobody came for. */
void mfs_direct_look(void);
/* Whether that name, which the request looks up, is a token. */
bool mfs_direct_is(const struct mfs_request *request, const char *name);
long mfs_direct_lookup(struct mfs_request *request, const char *name);

/* ---- what was done ---- */

struct mfs_ledger *mfs_ledger_begin(const char *path); /* NULL: errno tells */
void mfs_ledger_end(struct mfs_ledger *ledger, const char *path);
/* Whether the request has been answered from what is remembered; else it is being done from now on. */
bool mfs_ledger_settles(struct mfs_ledger *ledger, struct mfs_request *request);
/* Its reply is complete. */
void mfs_ledger_note(struct mfs_ledger *ledger, const struct mfs_request *request);

/* ---- locks ---- */

struct mfs_locks *mfs_locks_new(void);
void mfs_locks_drop_owner(struct mfs_locks *locks, uint64_t node, uint64_t owner);
void mfs_locks_drop_handle(struct mfs_locks *locks, uint64_t handle);
void mfs_locks_drop_all(struct mfs_locks *locks);

/* ---- identity ---- */

int mfs_identity_begin(void);           /* once for each thread, as root */
int mfs_assume(uint32_t uid, uint32_t gid); /* 0 or -errno: from now on this thread acts as that user */
void mfs_be_self(void);
/* The lease on that descriptor, whoever this thread acts as. */
void mfs_give_up_lease(int fd);
/* Until mfs_be_self: setuid bits go when files are changed, even if root does it. */
void mfs_without_fsetid(void);

/* ---- server ---- */

extern const char *mfs_run_directory;
extern bool mfs_encrypts;
struct mfs_counters *mfs_counters_take(const char *peer); /* NULL: there are too many */
void mfs_serve(struct mfs_stream *stream, const struct mfs_hello *hello);
void mfs_sessions_look(void); /* four times a second: what is silent, what has ended */

#endif
