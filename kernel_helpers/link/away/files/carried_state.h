/* What is known of a file that has been carried: the answers (carried.c), and what makes them void (leaving.c). */
#ifndef FARHOME_CARRIED_STATE_H
#define FARHOME_CARRIED_STATE_H
#include <stdlib.h>
#include "link/away/files/carried.h"

#define CARRIED_PLAIN 16u /* descriptors */
#define CARRIED_ROOMS 8u /* descriptors */

struct plain {
	int descriptor;
	uint64_t file;                  /* of struct carried_answer */
};

struct ahead_room {
	int descriptor;
	int is_denied;                  /* home has said that there is none */
	uint32_t left;                  /* bytes */
	struct room_answer answer;
};

struct carried {
	pthread_mutex_t lock;
	struct session *session;
	struct carried_answer *answer;  /* NULL: nothing is answered */
	int descriptor;
	uint32_t tid;
	uint64_t as_of;
	int64_t until;                  /* CLOCK_MONOTONIC, ns */
	int64_t position;
	struct effect effect;           /* that home has still to make */
	uint64_t effects, seen;         /* how many there were; at the last tick */
	struct plain plain[CARRIED_PLAIN];      /* descriptors that are still what was carried: their close is known beforehand */
	unsigned plain_count;
	struct ahead_room rooms[CARRIED_ROOMS];       /* for writes, of descriptors that are still what they were */
	unsigned rooms_count;
	unsigned char *ahead;           /* struct ahead, one after the other: what home has still to make; then `effect` is none */
	uint32_t ahead_length, ahead_tid;
	int64_t ahead_since;            /* CLOCK_MONOTONIC, ns: of the first */
};

/* ---- with the lock held ---- */

static inline void carried_forget(struct carried *c)
{
	free(c->answer);
	c->answer = NULL;
}

/* ---- ahead.c ---- */

/* The list leaves. */
void ahead_queue(struct carried *c) __attribute__((visibility("hidden")));
/* The effect goes into the list. */
void ahead_add_effect(struct carried *c) __attribute__((visibility("hidden")));
/* The list leaves, if it has waited for long enough. Whether one waits. */
int ahead_tick(struct carried *c) __attribute__((visibility("hidden")));

static inline void carried_forget_room(struct carried *c, int descriptor)
{
	for (unsigned i = 0; i < c->rooms_count; i++)
		if (c->rooms[i].descriptor == descriptor)
			c->rooms[i--] = c->rooms[--c->rooms_count];
}

/* Whether it was plain; it is not any more. */
static inline int carried_forget_plain(struct carried *c, int descriptor)
{
	for (unsigned i = 0; i < c->plain_count; i++)
		if (c->plain[i].descriptor == descriptor) {
			c->plain[i] = c->plain[--c->plain_count];
			return 1;
		}
	return 0;
}

#endif
