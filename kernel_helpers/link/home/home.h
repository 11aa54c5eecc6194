/* The threads of a process that is away, at home, and what is known of their calls. What stands above has parts.h. */
#ifndef FARHOME_HOME_H
#define FARHOME_HOME_H
#include <pthread.h>
#include <stdint.h>
#include "link/link.h"
#include "link/spin.h"

#define PLACES 64
#define PLACED UINT32_MAX
#define STUB_PAGE 4096u

enum state { IDLE, BUSY };
/* Of a call by which the process may have sent itself a signal, or after which a timer's does not come any more: its reply waits until
 * our owner has told the guest of what has come. RECEIVES: the same if it has brought a signalfd. */
enum signalling { SIGNALS_NOBODY, SIGNALS, SIGNALLED, RECEIVES };

/* Of a call of which a part is done, when the guest makes it again (rests.c). done: bytes; 0: there is none. */
struct rest {
	int64_t number;
	uint64_t arguments[6], done;
};

struct home_thread {
	uint32_t tid;               /* 0: it has ended */
	uint32_t former;            /* what it was before that */
	enum state state;
	unsigned index;             /* of the slot */
	struct slot *slot;
	struct call call;
	struct out outs[OUTS_LIMIT];
	uint64_t sequence;          /* of the last call taken */
	uint64_t answered;          /* number of the last REPLY, which is kept until the other side says that it has it */
	int quick;                  /* its last call ended soon: the receiver stays with the next one */
	uint64_t begun;             /* cycles */
	int placed;                 /* the call's place is in use: the buffer is there and not in the slot */
	uint32_t placing;           /* bytes of the place that have been mapped or found mapped; PLACED: all */
	enum signalling signalling;
	int64_t deadline;           /* of the call, if it has one: CLOCK_MONOTONIC, nanoseconds */
	/* A call that was suspended with ERESTART_RESTARTBLOCK: the thread's kernel goes on with it when it is made again. Or one with a
     * deadline. */
	struct call resumable;
	unsigned char *resumable_image; /* NULL: of the time before the process left, known by its arguments */
	int resumable_placed; /* the restart block points to the place, not into the slot */
	int64_t resumable_deadline;
	int resuming;
	struct rest rest;
};

struct home {
	struct session *session;
	int memory;
	unsigned count; /* grows, also while other threads of ours go through the list */
	struct control_page *control;
	uint64_t stub; /* where the same memory is in the stub */
	int stub_pid;
	uint32_t spin;
	uint64_t places[PLACES]; /* pages of the stub known to be mapped, the newest over the oldest */
	unsigned places_count;
	int places_held;
	struct home_thread **threads;
	pthread_mutex_t lock;
	pthread_t finisher;
	pthread_cond_t answered;
	unsigned answering; /* threads of ours that are sending a reply */
	int stopping, event_fd;
	struct looking looking; /* the receiver's */
	int follows;
	uint32_t processor; /* where follow() has put the receiver */
	uint64_t calls, quick;
	int keeps_time; /* sleeps and polls have deadlines, too */
	int alarmed; /* the process's timer of real time may be running, or have sent what it has not had */
};

static inline uint64_t slot_offset(unsigned i)
{
	return CONTROL_PAGE + (uint64_t)i * SLOT_STRIDE;
}

static inline uint64_t size(struct home *h)
{
	return slot_offset(h->count);
}

/* Where the stub has the data area of a thread's slot. */
static inline uint64_t data_in_stub(struct home *h, struct home_thread *t)
{
	return h->stub + slot_offset(t->index) + SLOT_HEADER;
}

static inline unsigned char *data_of(const struct home_thread *t)
{
	return (unsigned char *)t->slot + SLOT_HEADER;
}

/* A request for the call itself is still to come: what the loop does, or has done, is to map a page of the call's place. */
static inline int home_is_placing(const struct home_thread *t)
{
	return t->placing && t->placing != PLACED;
}

/* NULL: there is none, or it has ended. */
struct home_thread *home_thread_of(struct home *h, uint32_t tid);
/* Whether it has ended. */
int home_is_gone(struct home *h, uint32_t tid);
#endif
