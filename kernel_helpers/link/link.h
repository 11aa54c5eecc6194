/* What the parts of the link layer share: the wire, the slots of the resident loop, the table's types. */
#ifndef FARHOME_LINK_H
#define FARHOME_LINK_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "inspection/guest_room.h"
#include "link/slot.h"
#include "stream/stream.h"

/* ---- the wire: little-endian, both ends are x86-64 ---- */

#define FRAME_LIMIT (128u << 20)  /* bytes; a longer frame is nonsense and breaks the session */
#define CONTROL_LIMIT (1u << 20)

enum frame_kind {
	FRAME_RESUME = 1,
	FRAME_HEARTBEAT = 2,
	FRAME_CALL = 3,
	FRAME_REPLY = 4,
	FRAME_ABANDON = 5,
	FRAME_EFFECT = 6, /* a struct effect, of a thread that makes no call */
	FRAME_BRANCH = 7,
	FRAME_RECALL = 8, /* a struct recall */
	FRAME_AHEAD = 9, /* struct ahead, one after the other, of a thread that makes no call */
	FRAME_CONTROL = 16
};
enum frame_flag { FRAME_BARRIER = 1 };

struct frame {
	uint32_t length;        /* bytes that follow */
	uint16_t kind, flags;
	uint32_t tid, zero;
	uint64_t number;        /* 1, 2, ... in each direction; 0: not numbered (RESUME, HEARTBEAT) */
	uint64_t acknowledged;  /* all the other side's frames up to this one have arrived */
};

enum out_rule { OUT_FULL = 0, OUT_ALWAYS = 1, OUT_RETURNED = 2, OUT_MESSAGE = 3 };

struct out {                /* a range of the data area that the call writes */
	uint32_t offset, length;
	uint16_t rule, scale;
	uint32_t add; /* OUT_RETURNED: scale * ret + add bytes; OUT_MESSAGE: if scale < ret, the u32 at this offset of the area says */
};

/* Of a call that was answered where the guest is: what home has to do before the guest's next call. */
enum effect_kind { EFFECT_NONE, EFFECT_POSITION, EFFECT_CLOSE };
struct effect {
	uint32_t kind;
	int32_t descriptor;
	int64_t position; /* bytes, EFFECT_POSITION */
};

/* What was done where the guest is, and home does now, in order: WRITE_ON: at the position; WRITE_AT: at `position`; SEEK: to it. */
enum ahead_kind { AHEAD_WRITE_ON, AHEAD_WRITE_AT, AHEAD_SEEK, AHEAD_CLOSE, AHEAD_SKIP };
struct ahead { /* followed by `length` bytes, and as many zeros as fill up eight */
	int32_t descriptor;
	uint32_t kind, length, zero;
	int64_t position;
};
#define AHEAD_LIMIT 65536u /* bytes of a list */
#define AHEAD_WRITE 32768u /* of one write, at most */
#define AHEAD_ROOM (1u << 20) /* of all writes to a descriptor, until home has been asked again */

static inline uint32_t ahead_padded(uint32_t length)
{
	return (length + 7) & ~7u;
}

/* CARRIES: the reply to an open may carry the answers to what is asked next. NAMES: the reply may say what there is to know of the path.
 * WRITES: the reply may say that there is room for more. */
enum call_flag { CALL_CARRIES = 1, CALL_NAMES = 2, CALL_WRITES = 4 };

struct call { /* followed by relocations[], outs[], the image */
	uint64_t sequence; /* per thread */
	int32_t number;
	uint32_t offsets; /* bit i: argument i is an offset into the data area; BLOCKS_* */
	uint64_t arguments[6];
	uint32_t image, area; /* bytes sent; bytes of the data area in use */
	uint64_t place; /* an argument that the stub shall have at this address too, see home/launch.c */
	uint32_t place_argument, place_length; /* NO_PLACE: there is none */
	uint32_t relocations, outs;
	uint32_t flags, zero;
	struct effect effect;
};

#define NO_PLACE 6
/* What a caller blocks of the signals of its terminal, which decides by that: sent when home has asked (REPLY_ASKS). */
#define BLOCKS_KNOWN (1u << 29)
#define BLOCKS_TTIN (1u << 30)
#define BLOCKS_TTOU (1u << 31)
#define BLOCKS_ALL (BLOCKS_KNOWN | BLOCKS_TTIN | BLOCKS_TTOU)

/* ASKS: suspended for want of BLOCKS_*. PART: suspended in the middle (ERESTARTNOINTR); home makes the rest when the call is made again. */
enum reply_flag { REPLY_SUSPENDED = 1, REPLY_ASKS = 2, REPLY_PART = 4, REPLY_CARRIES = 8, REPLY_NAMES = 16, REPLY_ROOM = 32 };

/* What a reply ends with that says that there is room: which file it is. */
struct room_answer {
	uint64_t device, inode; /* st_dev, st_ino */
};

/* What a reply that carries ends with, as of the open: followed by `length` bytes of the file's contents, or of a directory's entries as
 * getdents64(2) has them. */
#define CARRIED_LIMIT 65536u
#define ATTRIBUTES_SIZE 144 /* struct stat */
struct carried_answer {
	unsigned char attributes[ATTRIBUTES_SIZE];
	int32_t status_flags; /* F_GETFL */
	uint32_t is_whole; /* nothing follows behind the bytes */
	uint32_t has_contents, length;
	uint64_t file; /* by which home has agreed to any private mapping of it; 0: none */
};

/* A name in a directory of home's. */
struct dependency {
	uint32_t directory, name; /* numbers of home's choice; name_hash(), or: */
};
#define EVERY_DIRECTORY 0u
#define EVERY_NAME 0u
#define OWN_ATTRIBUTES 1u /* of the directory itself */
#define DEPENDENCIES_LIMIT 24u
#define RECALLED_LIMIT 1024u

static inline uint32_t name_hash(const char *name, size_t length)
{
	uint32_t hash = 2166136261u; /* FNV-1a */
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)name[i]) * 16777619u;
	return hash <= OWN_ATTRIBUTES ? hash + 2 : hash;
}

/* Whether an answer that depends on all of these is wrong once that has changed. */
static inline int dependencies_have(const struct dependency *all, uint32_t count, const struct dependency *changed)
{
	if (changed->directory == EVERY_DIRECTORY)
		return 1;
	for (uint32_t i = 0; i < count; i++)
		if (all[i].directory == changed->directory && (all[i].name == changed->name || changed->name == EVERY_NAME))
			return 1;
	return 0;
}

/* What home knows of the path of a call: ABSENT: nothing has that name. STATUS: it is a directory, with its struct stat behind. LINK: it is a
 * symbolic link, with its text behind. NO_LINK: it is there, and no link. */
enum name_kind { NAME_ABSENT = 1, NAME_STATUS, NAME_LINK, NAME_NO_LINK };

/* What a reply that says something about a name ends with, followed by dependencies[count] and `length` bytes: right until one of them is recalled. */
struct name_answer {
	uint64_t program, scope; /* whose numbers they are; for whom it is so: equal credentials, root and mounts */
	uint64_t since, as_of; /* positions: of the first that was sent in the session; of this */
	uint32_t kind, follows; /* bit 0: where a link at the end is not followed; bit 1: where it is */
	uint32_t count, length;
};

struct recall { /* followed by struct dependency[count] */
	uint64_t program, from, position; /* whose numbers they are; all that was recalled from here up to there */
	uint32_t count, zero;
};

struct reply { /* followed by lengths[outs] and as many bytes; CARRIES: by a struct carried_answer; NAMES: by a
                * struct name_answer; ROOM: by a struct room_answer */
	uint64_t sequence;
	int64_t value; /* as in rax; REPLY_SUSPENDED: the restart code; REPLY_PART: bytes that are done */
	uint32_t flags, outs;
};

#define OUTS_LIMIT 4096
#define RELOCATIONS_LIMIT 65536 /* so many arguments may execve have */
/* In place of a pointer that the guest could not read: nothing is mapped there (mmap_min_addr), and the kernel finds out
 * only when it gets to it, so that a vector's parts before it still count. */
#define FAULT_ADDRESS 16ULL

/* CLOCK_MONOTONIC, nanoseconds. */
static inline int64_t monotonic_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* ---- the table ---- */

enum call_class {
	CLASS_GO_HOME,
	CLASS_LOCAL,
	CLASS_FORWARD,
	CLASS_BOTH,
	CLASS_END,
	CLASS_REFUSE,
	CLASS_SUM,
	CLASS_EXECUTE,
	CLASS_BIND,
	CLASS_RIGHTS,
	CLASS_IDS,
	CLASS_WATCH,
	CLASS_KEYS
};
enum shape {
	SHAPE_NUMBER,
	SHAPE_STRING,
	SHAPE_IN,
	SHAPE_OUT,
	SHAPE_INOUT,
	SHAPE_IOV_IN,
	SHAPE_IOV_OUT,
	SHAPE_MSG_IN,
	SHAPE_MSG_OUT,
	SHAPE_MMSG_IN,
	SHAPE_MMSG_OUT,
	SHAPE_MASK,
	SHAPE_MASK6,
	SHAPE_ZERO,
	SHAPE_IN_PLACE,
	SHAPE_TEXT,
	SHAPE_XATTR_IN,
	SHAPE_XATTR_OUT,
	SHAPE_PROGRAM,
	SHAPE_EVENT,
	SHAPE_TIMEX,
	SHAPE_STRINGS,
	SHAPE_TERMINAL,
	SHAPE_PART,
	SHAPE_MSG_PART,
	SHAPE_MMSG_PART,
	SHAPE_SIGNALS
};
enum size_kind { SIZE_FIXED, SIZE_ARGUMENT, SIZE_BEHIND, SIZE_BITS };

/* When the kernel writes: after an effect that it does not take back, so that room for it is seen to before; or (LATE) only when there
 * was none, and says EFAULT if it cannot; or (QUIET) it does not say so. */
enum writes { WRITES_AFTER, WRITES_LATE, WRITES_QUIET };
enum records { RECORDS_NONE, RECORDS_DIRENT, RECORDS_DIRENT64 };

struct call_argument {
	uint8_t shape, size_kind, size_argument, rule;
	uint16_t rule_scale, rule_add;
	uint32_t size_scale, size_add;
	uint16_t size_least, size_most; /* bounds of the size; 0: none */
	uint8_t writes, records;
};
struct call_entry {
	uint8_t class, count;
	struct call_argument arguments[6];
};
struct call_variant {
	uint8_t argument, also;
	uint64_t mask, value, also_mask, also_value;
	struct call_entry entry;
};
struct call_row {
	const char *name;
	uint16_t first_variant, variants;
	struct call_entry entry;
};

/* The entry that a call's number and arguments choose. */
const struct call_entry *link_entry(long number, const uint64_t arguments[6]);
int link_class(long number, const uint64_t arguments[6]);
/* Whether some arguments of this number are executed at home. */
int link_forwardable(long number);

/* ---- events for Python ---- */

enum event_kind {
	EVENT_CONTROL = 1,
	EVENT_CONNECTION_LOST = 2,
	EVENT_SILENT = 3,
	EVENT_HEARD = 4,
	EVENT_CONNECTED = 5,
	EVENT_GO_HOME_CALL = 6,
	EVENT_GUEST_GONE = 7,
	EVENT_SUSPENDED = 8,
	EVENT_READS = 9,
	EVENT_READS_OPEN = 10,
	EVENT_BUSY = 11,
	EVENT_LETS_IN = 12,
	EVENT_WRITE_FAILED = 13
};

struct event {
	uint32_t kind, tid, control, flags;
	uint64_t number;
	int64_t value;
	uint32_t length, zero;
};

/* ---- the session ---- */

struct session;
/* Takes the body of a CALL or REPLY by session_read(), all frame->length bytes of it. Returns 0, or -1: broken. */
typedef int (*session_handler)(void *owner, struct session *session, const struct frame *frame);

struct outgoing;
struct session *session_new(session_handler handler, void *owner, int event_fd);
void session_free(struct session *session);
/* Another owner of the same kind has it from here on. Returns when nobody is in a function of the one before. */
void session_hand_over(struct session *session, void *owner);
/* Before the end of one side that the other waits for: what has come is acknowledged, if that takes no time. */
void session_say_received(struct session *session);
/* The stream is the session's from here on. Never blocks. */
int session_attach(struct session *session, struct stream *stream);
void session_detach(struct session *session);
void session_hold(struct session *session);
void session_release(struct session *session);
void session_set_silence(struct session *session, int milliseconds);
/* One end of a connection that is inside of the session's own (branch.c); both sides have the number, and no other such connection of the
 * session has or had it. NULL: no memory. */
struct stream *session_branch(struct session *session, uint32_t number);
int session_read(struct session *session, void *to, size_t length);
/* A handler has read the whole body: from here on the frame counts as received. Before it acts on it. */
void session_accept(struct session *session, const struct frame *frame);
int session_skip(struct session *session, size_t length);
size_t session_buffered(const struct session *session);
void session_broken(struct session *session, const char *reason);

/* A frame to be sent: `head` bytes after the frame's own header, and a body of its own (malloc'ed, given away). */
struct outgoing *outgoing_new(uint16_t kind, uint32_t tid, size_t head);
void *outgoing_head(struct outgoing *frame);
void outgoing_body(struct outgoing *frame, void *body, size_t length);
void outgoing_free(struct outgoing *frame);
enum send_mode { SEND_NOW, SEND_LATER };
/* Returns the frame's number. */
uint64_t session_post(struct session *session, struct outgoing *frame, enum send_mode mode);
/* session_post(SEND_NOW) in two: what is queued has its place before all that is queued later; session_send() may wait. Returns the
 * frame's number. */
uint64_t session_queue(struct session *session, struct outgoing *frame);
/* The same if no frame was queued since the one of that number; else 0. */
uint64_t session_queue_after(struct session *session, struct outgoing *frame, uint64_t number);
/* Before each frame that is queued by session_queue() and its like. Before the first connection. */
void session_set_before(struct session *session, void (*before)(void *owner));
/* session_queue() without that; sent by the session's own thread, if nothing else is sent. */
void session_queue_first(struct session *session, struct outgoing *frame);
void session_send_later(struct session *session);
/* Numbers of the last frames that were queued, and that were received. */
uint64_t session_last_queued(struct session *session);
uint64_t session_last_received(struct session *session);
/* From before the first connection on: what the sender does every TICK milliseconds once session_tick() has asked for it, until it returns 0. */
void session_set_tick(struct session *session, int (*on_tick)(void *owner));
void session_tick(struct session *session);
void session_send(struct session *session);
void session_event(struct session *session, const struct event *event, const void *data);
int session_next_event(struct session *session, struct event *event, void *data, uint32_t room);
int session_control(struct session *session, uint16_t kind, uint16_t flags, uint32_t tid, const void *data, uint32_t length);
/* Waits until everything posted is on its way. 0, or -ETIMEDOUT. */
int session_flush(struct session *session, int milliseconds);
uint64_t session_statistic(struct session *session, int which);

/* ---- marshalling (marshal/) ---- */

struct segment {
	uint64_t address;
	uint32_t length;
	uint32_t out;
	uint8_t writes, records;
};

struct marshalled { /* one per guest thread, reused */
	struct call call;
	uint32_t *relocations;
	uint32_t relocations_room;
	struct out *outs;
	uint32_t outs_room;
	struct segment *segments;
	uint32_t segments_count, segments_room;
	unsigned char *image;
	size_t image_room;
	unsigned char *kept;
	size_t kept_room; /* what was sent of the outs that lie in the image, one after the other */
	struct guest_room *room; /* not ours; NULL: what is written to is not looked at */
	struct room_seen seen;
	uint64_t signal_mask;
	int has_mask; /* what the call wants blocked: all but what it waits for */
	uint64_t watched; /* signals that wait at home where the guest's threads block them */
	int failed;
};

/* Builds the CALL of a guest thread (tid as this process sees it). 0, or -E2BIG: too much for a slot, -ENOTSUP: what it
 * means, home's kernel knows alone, or -ENOMEM. */
int marshal_call(struct marshalled *m, int tid, const struct call_entry *entry, long number, const uint64_t arguments[6]);
/* The path that a marshalled call names first; NULL: none, or none that could be read. */
const char *marshal_path(const struct marshalled *m, const struct call_entry *entry);
/* Has it name another one. 0, -ENOTSUP, or as marshal_call(). */
int marshal_rename(struct marshalled *m, const struct call_entry *entry, const char *path);
/* Adds what is for the deputy alone to a call without pointers. 0, or a negative errno. */
int marshal_attach(struct marshalled *m, const void *data, uint32_t size);
/* Makes the frame of it; the image goes along. */
struct outgoing *marshal_frame(struct marshalled *m, uint32_t tid);
/* Copies results to the guest: of memory that was sent, too, what home's kernel has changed, and nothing else. 0, or -EFAULT.
 * `lengths[outs]`, `data` as in the REPLY. */
int marshal_results(const struct marshalled *m, int tid, const uint32_t *lengths, unsigned char *data);
void marshal_free(struct marshalled *m);

/* ---- what a process reads of itself (own_proc.c) ---- */

/* Whether a path may be that of a file in /proc by which a process looks at its own memory or signals. `id`: the process or thread that
 * it names, 0: the caller, or (a relative one) not known here. */
int own_proc_path(const char *path, uint32_t *id);

#endif
