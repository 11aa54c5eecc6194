/* Direct files of one guest: regular files, open for reading alone, of which it has an open file of its own on the node (docs/files.md).
 *
 * The guest's own kernel reads them, by the number that home's descriptor has. Its position is the node's affair as long as the number is
 * direct; or it stays home's, if others have it, too: then only reads that name the place in the file are made here. Any other call that
 * has to do with the number, or might, ends that first: home gets the position, and the number means home's descriptor again. While
 * another thread reads by that number, the call waits: that the thread has come out of its read, only a stop of it shows, for which Python
 * sees (remote/requests/direct_files.py). */
#ifndef FARHOME_DIRECT_H
#define FARHOME_DIRECT_H
#include <stdint.h>
#include "link/link.h"

struct direct;

/* What is kept of a thread of the guest, all 0 at first. */
struct direct_thread {
	unsigned inside, forwarded; /* the number by which it reads itself, or home for it, and 1; 0: neither */
	unsigned passes;            /* home makes a call for it that may do something to others' numbers */
	uint32_t moment;            /* of its call: struct direct */
};

/* A call that was caught. */
struct direct_call {
	int listener;
	uint64_t id;                /* of the notification */
	struct session *session;    /* by which home gets positions */
	int host_tid;
	long number;
	const uint64_t *arguments;
	struct direct_thread *thread;
};

enum direct_verdict {
	DIRECT_NOT,         /* the call goes its way */
	DIRECT_HERE,        /* the guest's kernel makes it */
	DIRECT_WANTED,      /* it goes its way, and home should be asked about the descriptor */
	DIRECT_WANTED_OWN,  /* the same; the guest has opened it here, and shared it with nobody since */
	DIRECT_OPEN,        /* its file is open on the node: let the call wait, and make the number direct */
	DIRECT_BUSY,        /* let the call wait until no thread reads by a number that it is about, and have it made again */
};

#pragma GCC visibility push(hidden)
/* What of a descriptor: its number, and the question that home is asked about it; `by_place`: it was read by calls that name the place. */
struct direct_question {
	int32_t descriptor;
	uint32_t serial, by_place;
};

enum direct_verdict direct_take(struct direct *d, const struct direct_call *call, struct direct_question *question);
/* A thread's call has come back from home with this value. */
void direct_answered(struct direct *d, struct direct_thread *t, long number, int64_t value);
/* It is in none any more. */
void direct_leave(struct direct *d, struct direct_thread *t);
/* Whether it may be reading by a number that others wait for. */
int direct_is_awaited(struct direct *d, const struct direct_thread *t);
/* After DIRECT_OPEN: the guest has the file, at home's position. 0, -ENOENT: the number means something else meanwhile, or another errno. */
int direct_make(struct direct *d, int listener, uint64_t id, int descriptor, uint32_t serial, int64_t position);
#pragma GCC visibility pop

/* `eager`: after how many reads of a file home is asked about it. NULL: no memory. */
struct direct *direct_new(unsigned eager);
void direct_free(struct direct *d);
/* What follows is about the number as it was when home was asked; -ENOENT: it means something else meanwhile. */
/* Home does not want it, or it cannot be opened: asked again only after many more reads. */
int direct_refuse(struct direct *d, int descriptor, uint32_t serial);
/* The open file on the node, which is ours from now on; `is_shared`: others have the position, too. */
int direct_opened(struct direct *d, int descriptor, uint32_t serial, int file, int is_shared);
/* Numbers that are direct, and their positions, of a guest that stands still; how many. */
struct direct_position {
	uint64_t descriptor;
	int64_t position;
};
unsigned direct_positions(struct direct *d, struct direct_position *list, unsigned room);
/* Numbers that the guest has opened away, and shares with nobody; how many. What was said of it where it was before. */
unsigned direct_own(struct direct *d, uint32_t *list, unsigned room);
void direct_set_own(struct direct *d, int descriptor);

#endif
