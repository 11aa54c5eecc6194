/* What the guests of this program remember of home's names: which are absent, what directories are like, where links lead, what is no link.
 *
 * All guests of one home that may see the same (credentials, root, mounts: a scope) share it. Home recalls what changes before it says
 * anything else to a guest (home/files/watch.h); after a minute it is forgotten anyway. */
#ifndef FARHOME_AWAY_NAMES_H
#define FARHOME_AWAY_NAMES_H
#include <pthread.h>
#include "link/link.h"

#pragma GCC visibility push(hidden)
/* Of one guest. */
struct names {
	struct shared_names *shared; /* NULL: nothing was sent yet */
	uint64_t scope; /* 0: not known */
	uint64_t own; /* for paths that begin at its working directory */
};

extern pthread_mutex_t names_lock; /* of all guests, and of */
extern uint64_t names_last_own; /* that of a guest whose working directory has changed last */

/* Whether a call names a path about which home may say something. */
int names_want(long number, const uint64_t arguments[6]);
/* Answers a call of the guest's thread, if it can be: then 1, and the value. wants: as names_want says. */
int names_answer(struct names *n, int host_tid, long number, const uint64_t arguments[6], int64_t *value, int *wants);
/* A call goes home, or to Python, after which other names may be meant, or seen. */
void names_leave(struct names *n, long number, int class);
/* A reply to a call with that path (as it was sent) says something about it. The bytes stay the caller's. 0, or -1: it cannot be. */
int names_put(struct names *n, const char *path, const struct name_answer *answer, size_t size);
/* 0, or -1: it cannot be. */
int names_recall(struct names *n, const struct recall *recall, size_t size);
/* The program of home's whose names they are, how many of these are known, and how many calls of its guests they have answered. */
void names_count(struct names *n, uint64_t *program, uint64_t *known, uint64_t *answered);
void names_free(struct names *n);
#pragma GCC visibility pop
#endif
