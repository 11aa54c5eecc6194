/* The threads of a guest, and what is known of their calls.
 *
 *   away.c          which there are, and the answers that they get
 *   parts.h         what the others have for one another:
 *   parked.c        calls that Python deals with
 *   direct_calls.c  calls about files that are direct
 *   clocks.c        cpu clocks that are answered without asking
 *   classes.c       what is particular about the calls of each class
 *   replies.c       what comes from home
 *   mapping.c       files that it maps by itself
 *   sending.c       calls on their way home
 *   calls.c         calls that were caught
 *   life.c          the beginning and the end of all */
#ifndef FARHOME_AWAY_H
#define FARHOME_AWAY_H
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include "usage/account.h"
#include "link/marshal/data_area.h"
#include "link/away/files/ahead.h"
#include "link/away/files/carried.h"
#include "link/away/direct/direct_files.h"
#include "link/away/files/kept.h"
#include "link/away/files/names.h"
#include "link/away/threads/listener.h"
#include "link/link.h"

enum state { IDLE, SENT_HOME, WAITS_FOR_PYTHON };

/* What home last said of a cpu clock. Its share stands still for as long as the stub makes no call (but the question itself). */
struct reported {
	uint64_t as_of;             /* the moment() at which it was asked; 0: nothing was said */
	struct timespec time;
};

struct class_row;

struct guest_thread {
	int host_tid;
	uint32_t tid;               /* as the program sees it; 0: it has ended */
	uint32_t former;            /* what it was before that */
	enum state state;
	uint64_t notification;
	uint64_t asked_by;          /* number of the last CALL, which is kept until the other side says that it has it */
	int class;
	const struct class_row *row;    /* of that: classes.c */
	int asked;                  /* home wants to know what it blocks */
	int renamed;                /* away_forward() has given it another path */
	int wants;                  /* the call: names_want */
	char path[PATH_ROOM];       /* of a call whose reply may say something about it; empty: none */
	struct rlimit limit;        /* of a call that sets one */
	int64_t part, part_number;  /* bytes that are done of the call that it is to make next, and its number; 0: none are */
	uint64_t calls;             /* sent home, questions about cpu clocks left out; from 1 */
	uint64_t asked_at;          /* the moment() of the question */
	struct reported process_clock, thread_clock;
	struct direct_thread reads;
	struct marshalled m;
};

struct away {
	struct session *session;
	struct carried *carried;
	struct names names;
	struct kept_files *kept;    /* that it may map; NULL: none */
	uint64_t map_size;          /* bytes of the file that may be mapped by map_descriptor, privately, without a word; 0: none */
	int map_descriptor;
	uint64_t opens, maps;       /* calls that were answered by what an open had brought; mappings of files that are kept */
	struct account *account;    /* not ours; NULL: nothing is added */
	struct direct *direct;      /* not ours; NULL: no file is direct */
	struct guest_room *room;
	uint64_t frames;            /* CALLs sent and REPLYs taken, questions about cpu clocks left out; from 1 */
	struct listener *listening;
	int listener;               /* its descriptor */
	int pause;
	uint64_t watched;           /* signals that wait at home where threads block them */
	unsigned count;             /* grows, also while other threads of ours go through the list */
	struct guest_thread **threads;
	pthread_mutex_t lock;       /* states and ledger */
	unsigned char *results;     /* the receiver's own */
	size_t results_room;
};

/* A thread's next call comes after the answer to its last one. The kernel sees to that, which ThreadSanitizer does not know. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#else
#define __tsan_acquire(address) ((void)(address))
#define __tsan_release(address) ((void)(address))
#endif

/* NULL: there is none. */
struct guest_thread *away_by_host_tid(struct away *a, int tid);
struct guest_thread *away_by_tid(struct away *a, uint32_t tid);
/* Whether there is one alone. */
int away_is_single(struct away *a);
/* Whether it has ended. */
int away_is_gone(struct away *a, uint32_t tid);
/* Ends the caught call: with that value, or by having the kernel execute it here. */
void away_respond(struct away *a, uint64_t id, int64_t value, int native);

#endif
