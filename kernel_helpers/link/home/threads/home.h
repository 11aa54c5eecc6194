/* The threads of a process that is away, at home, and what is known of their calls. What stands above has parts.h. */
#ifndef FARHOME_HOME_H
#define FARHOME_HOME_H
#include <pthread.h>
#include <stdint.h>
#include "link/home/files/aside.h"
#include "link/home/files/watch.h"
#include "link/link.h"
#include "link/spin.h"

#define PLACES 64
#define FAILURES 8
#define PLACED UINT32_MAX
#define STUB_PAGE 4096u

enum state { IDLE, BUSY };
/* Of a call by which the process may have sent itself a signal, or after which a timer's does not come any more: its reply waits until
 * our owner has sent the guest what has come. RECEIVES: the same if it has brought a signalfd. */
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
	int settles;                /* the last request was for an effect alone */
	int waits;                  /* the call is made when that is over */
	int carries;                /* somebody is making its reply, which carries */
	int fails;                  /* the errno that its call shows; 0: it shows its own value */
};

struct home {
	struct session *session;
	int memory;
	int pidfd; /* of the stub; -1: none yet */
	int carry_not, remember_not; /* no reply carries; none says anything about names */
	int ahead_not; /* none says that there is room for writes */
	struct failure {
		int32_t descriptor, error; /* an errno */
	} failures[FAILURES]; /* of writes that were answered and could not be made, the oldest first */
	unsigned failures_count;
	struct hearer hearer; /* of what is recalled */
	struct asides asides;
	uint64_t scope; /* for whom what is sent about names is so; 0: not known */
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
	struct spin spinning; /* the receiver's */
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

/* A request for the call itself is still to come: what the loop does, or has done, is an effect, or to map a page of the call's place. */
static inline int home_is_preparing(const struct home_thread *t)
{
	return t->waits || (t->placing && t->placing != PLACED);
}

/* Whether the loop is at an effect alone. */
static inline int home_settles(const struct home_thread *t)
{
	return t->settles && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) != t->slot->request;
}

/* Whether the last request was for a list of effects. */
static inline int home_lists(const struct home_thread *t)
{
	return t->settles && t->slot->ahead_end;
}

/* NULL: there is none, or it has ended. */
struct home_thread *home_thread_of(struct home *h, uint32_t tid);
/* Whether it has ended. */
int home_is_gone(struct home *h, uint32_t tid);
#endif
