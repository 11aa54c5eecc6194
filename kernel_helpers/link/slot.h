/* The memory that a deputy shares with the resident loop of its stub: a control page, then one slot for each thread. */
#ifndef FARHOME_SLOT_H
#define FARHOME_SLOT_H
#include <stdint.h>

#define CONTROL_PAGE 4096u
#define SLOT_STRIDE (64u << 20)
#define SLOT_HEADER 4096u
#define SLOT_DATA (SLOT_STRIDE - SLOT_HEADER)

#define KNOWN_FILES 250u        /* as many as the page has room for */

/* Bytes that a file is mapped aside beyond its last page: the first mapping of a library has room for what is not in the file. */
#define ASIDE_BEYOND (1u << 20)

struct known_file {
	uint64_t device, inode; /* st_dev, st_ino */
};

struct control_page {
	uint32_t completions;   /* futex: grows with each call that ends after the receiver stopped to look */
	uint32_t known_count;   /* of files that are mapped aside as they are opened (home/files/aside.h) */
	struct known_file known[KNOWN_FILES];
};

enum { WATCHED_NOT = 0, WATCHED_HERE = 1, WATCHED_AT_CONTROL = 2 };   /* a futex on `done`, on `completions` */

/* Spinning is good only while there is a processor to spare. A gap of that many cycles between two looks means that
 * there was none; so nobody spins for the next CROWDED_FOR requests. */
#define CROWDED_CYCLES 40000u
#define CROWDED_FOR 200u

#define EFFECT_AHEAD 100u       /* besides enum effect_kind: the list of struct ahead in the data area */

#define NO_CALL (-1)            /* a number: there is an effect alone */

struct slot {               /* followed, in the same page, by the loop's stack (grows down from the page's end) */
	uint32_t request;       /* futex: grows with each call */
	uint32_t done;          /* the last request that has ended */
	uint32_t sleeping;      /* the loop waits in the futex, or is about to */
	uint32_t watched;       /* WATCHED_*: who is to be woken when the request has ended */
	uint32_t spin;          /* cycles of the time-stamp counter that the loop spins before it sleeps; 0: none */
	uint32_t crowded;       /* that many requests to come find nobody spinning: the last one was preempted */
	int64_t number;
	uint64_t arguments[6];
	int64_t value;
	uint32_t processor;     /* where the last request was made */
	uint32_t terminal;      /* 1 + the descriptor that may be a terminal which looks at its caller's mask; 0: there is none */
	uint64_t control;       /* the address of the control page in the stub */
	uint64_t blocked;       /* signals (bit n-1: signal n) that the thread blocks while it makes the call, as its caller does */
	uint64_t asks;          /* the call was not made: see terminal */
	uint64_t written;       /* by the call, whose rest the thread makes now: its value is that much more */
	uint64_t blocking;      /* those that it blocks now: the loop's own affair, and of who stops it in a call */
	uint64_t keeps;         /* those that it blocks between calls as well */
	uint32_t effect;        /* enum effect_kind: made before the call; 0: there is none, or it was made */
	int32_t effect_descriptor;
	int64_t effect_position;
	uint32_t ahead_at, ahead_end;   /* EFFECT_AHEAD: of the list in the data area, in bytes: what is still to be made */
	int32_t ahead_descriptor, ahead_error;  /* the first that could not be, and why: an errno; 0: none */
	uint64_t aside;         /* the call opens a file: where it is mapped aside if it is a known one; 0: nowhere */
	uint64_t aside_length;  /* bytes that were mapped there; 0: none */
};
#endif
