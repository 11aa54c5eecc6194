/* The home side of the link: puts a guest's calls into the slots of the stub's resident loops and sends back what they
 * gave. It knows no call: sizes and pointers come with the CALL, and every one of them is checked against the slot.
 *
 * Places. When poll, nanosleep or clock_nanosleep is interrupted, the kernel keeps what is left of it in the thread's
 * restart block, user pointer included, for restart_syscall(2). Such a call can go on after a move: when the guest makes
 * it again, and even at home when the stub has become the process again. So that the pointer is right then as well, the
 * buffer is put at the guest's own address in the stub.
 *
 * Deadlines. Of epoll_wait and semtimedop the kernel keeps nothing: when such a call is interrupted by a move, its deadline is kept
 * here, and the call made again gets what is left. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "link.h"
#include "looking.h"

#define RELEASE_AT (4u << 20)   /* bytes: a data area that grew beyond is given back to the system after the call */
#define RESTART_SYSCALL 219
#define PLACES 64
#define PLACE_LIMIT (8u * PAGE)
#define PLACED UINT32_MAX
#define PAGE 4096u
#define THREADS_LIMIT 32768u
#define WAIT_LIMIT_NS 200000
#define QUICK_CYCLES 500000u
#define TIMEOUT_ARGUMENT 3          /* of all calls that have a deadline */
#define TIMEOUT_LIMIT_S (1ll << 31)

enum state { IDLE, BUSY };
/* Of a call by which the process may have sent itself a signal, or after which a timer's does not come any more: its reply waits until
 * our owner has told the guest of what has come. */
enum signalling { SIGNALS_NOBODY, SIGNALS, SIGNALLED };

struct home_thread {
    uint32_t tid;               /* 0: it has ended */
    uint32_t former;            /* what it was before that */
    enum state state;
    unsigned index;             /* of the slot */
    struct slot *slot;
    struct call call;
    struct out outs[OUTS_LIMIT];
    uint64_t sequence;          /* of the last call taken */
    int quick;                  /* its last call ended soon: the receiver stays with the next one */
    uint64_t begun;             /* cycles */
    int placed;                 /* the call's place is in use: the buffer is there and not in the slot */
    uint32_t placing;           /* bytes of the place that have been mapped or found mapped; PLACED: all */
    enum signalling signalling;
    int64_t deadline;           /* of the call, if it has one: CLOCK_MONOTONIC, nanoseconds */
    /* A call that was suspended with ERESTART_RESTARTBLOCK: the thread's kernel goes on with it when it is made again. Or one with a
     * deadline. */
    struct call resumable;
    unsigned char *resumable_image;     /* NULL: of the time before the process left, known by its arguments */
    int resumable_placed;               /* the restart block points to the place, not into the slot */
    int64_t resumable_deadline;
    int resuming;
};

struct home {
    struct session *session;
    int memory;
    unsigned count;             /* grows, also while other threads of ours go through the list */
    struct control_page *control;
    uint64_t stub;              /* where the same memory is in the stub */
    int stub_pid;
    uint32_t spin;
    uint64_t places[PLACES];    /* pages of the stub known to be mapped, the newest over the oldest */
    unsigned places_count;
    int places_held;
    struct home_thread **threads;
    pthread_mutex_t lock;
    pthread_t finisher;
    pthread_cond_t answered;
    unsigned answering;         /* threads of ours that are sending a reply */
    int stopping, event_fd;
    struct looking looking;         /* the receiver's */
    int follows;
    uint32_t processor;             /* where follow() has put the receiver */
    uint64_t calls, quick;
};

static uint64_t slot_offset(unsigned i) { return CONTROL_PAGE + (uint64_t)i * SLOT_STRIDE; }

static uint64_t size(struct home *h) { return slot_offset(h->count); }

/* Where the stub has the data area of a thread's slot. */
static uint64_t data_in_stub(struct home *h, struct home_thread *t) { return h->stub + slot_offset(t->index) + SLOT_HEADER; }

static unsigned char *data_of(struct home_thread *t) { return (unsigned char *)t->slot + SLOT_HEADER; }

static unsigned char *place_data(struct home_thread *t) {
    return data_of(t) + t->call.arguments[t->call.place_argument];
}

static long futex(uint32_t *word, int operation, uint32_t value) {
    return syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

static struct home_thread *by_tid(struct home *h, uint32_t tid) {
    unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count && tid; i++)
        if (h->threads[i]->tid == tid)
            return h->threads[i];
    return NULL;
}

/* Whether it has ended. */
static int is_gone(struct home *h, uint32_t tid) {
    unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count && tid; i++)
        if (h->threads[i]->former == tid)
            return 1;
    return 0;
}

static uint32_t out_length(const struct out *out, int64_t value, int suspended) {
    int failed = value < 0 && value >= -4095;
    if (out->rule == OUT_ALWAYS)
        return out->length;
    if (failed || suspended)
        return 0;
    if (out->rule == OUT_FULL)
        return out->length;
    uint64_t length = (uint64_t)value * out->scale + out->add;
    return length < out->length ? length : out->length;
}

/* The REPLY to the thread's call, its bytes copied out of the slot. Called with the lock held. */
static struct outgoing *make_reply(struct home *h, struct home_thread *t, int64_t value, uint32_t flags) {
    uint32_t outs = t->call.outs;
    struct outgoing *o = outgoing_new(FRAME_REPLY, t->tid, sizeof(struct reply) + outs * 4);
    if (!o)
        return NULL;
    struct reply *r = outgoing_head(o);
    uint32_t *lengths = (uint32_t *)(r + 1);
    *r = (struct reply){.sequence = t->call.sequence, .value = value, .flags = flags, .outs = outs};
    if (t->placed) {
        struct iovec here = {place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
        process_vm_readv(h->stub_pid, &here, 1, &there, 1, 0);
    }
    size_t bytes = 0;
    for (uint32_t i = 0; i < outs; i++)
        bytes += lengths[i] = out_length(&t->outs[i], value, flags & REPLY_SUSPENDED);
    if (bytes) {
        unsigned char *body = malloc(bytes), *at = body;
        if (!body) {
            outgoing_free(o);
            return NULL;
        }
        for (uint32_t i = 0; i < outs; i++) {
            memcpy(at, data_of(t) + t->outs[i].offset, lengths[i]);
            at += lengths[i];
        }
        outgoing_body(o, body, bytes);
    }
    if (t->call.area > RELEASE_AT)
        madvise(data_of(t), SLOT_DATA, MADV_REMOVE);
    return o;
}

static void request(struct home_thread *t, uint32_t watched) {
    struct slot *slot = t->slot;
    slot->watched = watched;
    __atomic_store_n(&slot->request, slot->request + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&slot->sleeping, __ATOMIC_SEQ_CST))
        futex(&slot->request, FUTEX_WAKE, 1);
}

static int place_is_known(struct home *h, uint64_t page) {
    for (unsigned i = 0; i < PLACES && i < h->places_count; i++)
        if (h->places[i] == page)
            return 1;
    return 0;
}

/* Has the loop map the next page of the call's place that is not known. 0: all are. */
static int map_place(struct home *h, struct home_thread *t, uint32_t watched) {
    uint64_t first = t->call.place & ~(uint64_t)(PAGE - 1), end = t->call.place + t->call.place_length;
    for (; first + t->placing < end; t->placing += PAGE) {
        uint64_t page = first + t->placing;
        if (place_is_known(h, page))
            continue;
        h->places[h->places_count++ % PLACES] = page;   /* that something is there already is as good */
        t->placing += PAGE;
        t->slot->number = SYS_mmap;
        memcpy(t->slot->arguments, (uint64_t[6]){page, PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0}, sizeof t->slot->arguments);
        request(t, watched);
        return 1;
    }
    t->placing = PLACED;
    return 0;
}

/* Whether a thread may be about to give the stub another memory, in which nothing has its place. */
static int executes(struct home *h) {
    for (unsigned i = 0; i < h->count; i++)
        if (h->threads[i]->state == BUSY &&
            link_class(h->threads[i]->call.number, h->threads[i]->call.arguments) == CLASS_EXECUTE)
            return 1;
    return 0;
}

static int64_t monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Whether the time-out of the call is a number of milliseconds, or a struct timespec, relative to now. */
static int in_milliseconds(const struct call *c) { return c->number == SYS_epoll_wait || c->number == SYS_epoll_pwait; }

static int in_timespec(const struct call *c) { return c->number == SYS_epoll_pwait2 || c->number == SYS_semtimedop; }

/* Nanoseconds that the call may wait; 0: it does not wait, has no limit, or the kernel keeps it itself. */
static int64_t patience(struct home_thread *t) {
    uint64_t value = t->call.arguments[TIMEOUT_ARGUMENT];
    if (in_milliseconds(&t->call))
        return (int32_t)value > 0 ? (int32_t)value * 1000000ll : 0;
    if (!in_timespec(&t->call) || !(t->call.offsets >> TIMEOUT_ARGUMENT & 1) || value + sizeof(struct timespec) > t->call.image)
        return 0;
    struct timespec limit;
    memcpy(&limit, data_of(t) + value, sizeof limit);
    if (limit.tv_sec < 0 || limit.tv_nsec < 0 || limit.tv_nsec >= 1000000000)
        return 0;
    return (limit.tv_sec < TIMEOUT_LIMIT_S ? limit.tv_sec : TIMEOUT_LIMIT_S) * 1000000000ll + limit.tv_nsec;
}

/* Milliseconds, not less than what is left. */
static int64_t milliseconds_to(int64_t deadline) {
    int64_t left = deadline - monotonic();
    return left > 0 ? (left + 999999) / 1000000 : 0;
}

/* Has the call in the slot wait only to its deadline. A struct timespec goes behind what the call has in the slot. */
static void shorten(struct home *h, struct home_thread *t) {
    uint64_t free = (t->call.area + 7ull) & ~7ull;
    if (in_milliseconds(&t->call))
        t->slot->arguments[TIMEOUT_ARGUMENT] = milliseconds_to(t->deadline);
    else if (free + sizeof(struct timespec) <= SLOT_DATA) {
        int64_t left = t->deadline - monotonic();
        left = left > 0 ? left : 0;
        memcpy(data_of(t) + free, &(struct timespec){left / 1000000000, left % 1000000000}, sizeof(struct timespec));
        t->slot->arguments[TIMEOUT_ARGUMENT] = data_in_stub(h, t) + free;
    }
}

/* Gives the call to the loop. Called with the lock held. */
static void launch(struct home *h, struct home_thread *t, uint32_t watched) {
    struct slot *slot = t->slot;
    uint64_t data = data_in_stub(h, t);
    if (t->placing != PLACED && map_place(h, t, watched))
        return;
    t->placed = 0;
    if (t->call.place_argument < NO_PLACE && t->call.place_length && t->placing == PLACED && !executes(h)) {
        struct iovec here = {place_data(t), t->call.place_length}, there = {(void *)t->call.place, t->call.place_length};
        t->placed = process_vm_writev(h->stub_pid, &here, 1, &there, 1, 0) == (ssize_t)t->call.place_length;
    }
    slot->number = t->call.number;
    for (int i = 0; i < 6; i++)
        slot->arguments[i] = t->call.arguments[i] + (t->call.offsets >> i & 1 ? data : 0);
    if (t->placed)
        slot->arguments[t->call.place_argument] = t->call.place;
    if (t->resuming && t->deadline)
        shorten(h, t);
    else if (t->resuming && t->placed == t->resumable_placed) {
        slot->number = RESTART_SYSCALL;
        memset(slot->arguments, 0, sizeof slot->arguments);
    }
    request(t, watched);
}

/* Sends the reply of a call that has ended, unless another thread did. Once the call is no longer BUSY its reply has its place among
 * the frames, before whatever is said to a guest that has nothing under way. */
static int finish(struct home *h, struct home_thread *t) {
    struct outgoing *o = NULL;
    struct session *session = NULL;
    pthread_mutex_lock(&h->lock);
    int ended = t->state == BUSY && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request;
    if (ended && t->placing != PLACED && t->placing) {
        launch(h, t, WATCHED_AT_CONTROL);
        ended = 0;
    }
    if (ended && t->signalling) {
        if (t->signalling == SIGNALS)
            eventfd_write(h->event_fd, 1);
        t->signalling = SIGNALLED;
        ended = 0;
    }
    if (ended) {
        t->quick = __builtin_ia32_rdtsc() - t->begun < QUICK_CYCLES;
        o = make_reply(h, t, t->slot->value, 0);
    }
    if (o) {
        session = h->session;
        session_queue(session, o);
        t->state = IDLE;
        h->answering++;
    }
    pthread_mutex_unlock(&h->lock);
    if (!o)
        return 0;
    session_send(session);
    pthread_mutex_lock(&h->lock);
    if (!--h->answering)
        pthread_cond_broadcast(&h->answered);
    pthread_mutex_unlock(&h->lock);
    return 1;
}

/* Answers calls that took longer than the receiver looked on. */
static void *finish_loop(void *argument) {
    struct home *h = argument;
    pthread_setname_np(pthread_self(), "link-finish");
    for (;;) {
        uint32_t seen = __atomic_load_n(&h->control->completions, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&h->stopping, __ATOMIC_SEQ_CST))
            return NULL;
        unsigned count = __atomic_load_n(&h->count, __ATOMIC_ACQUIRE);
        for (unsigned i = 0; i < count; i++)
            if (__atomic_load_n(&h->threads[i]->slot->watched, __ATOMIC_SEQ_CST) == WATCHED_AT_CONTROL)
                finish(h, h->threads[i]);
        futex(&h->control->completions, FUTEX_WAIT, seen);
    }
}

/* Where processors are few, the loop does not look on; then the cheapest wake-up is that of a thread on the same processor
 * (4 us, against 30 when an idle one has to be woken), so the receiver goes where the loop is. The loop itself stays where
 * the program wants it. */
static void follow(struct home *h, uint32_t processor) {
    if (!h->follows || h->count > 1 || processor == h->processor)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (!sched_setaffinity(0, sizeof set, &set))
        h->processor = processor;
}

/* Stays for a while with a call that ought to be quick: most are, and one wake-up more costs more than they do. It looks on,
 * or where that has not paid sleeps until the end of the call; what takes longer is left to the finisher. */
static void look_on(struct home *h, struct home_thread *t, int others_wait) {
    struct slot *slot = t->slot;
    uint32_t wanted = slot->request;
    h->calls++;
    if (!others_wait && t->quick && looking_begins(&h->looking)) {
        while (__atomic_load_n(&slot->done, __ATOMIC_ACQUIRE) != wanted && looking_goes_on(&h->looking))
            ;
        looking_ends(&h->looking);
    } else if (!others_wait && t->quick) {
        struct timespec limit = {0, WAIT_LIMIT_NS};
        __atomic_store_n(&slot->watched, WATCHED_HERE, __ATOMIC_SEQ_CST);
        uint32_t done = __atomic_load_n(&slot->done, __ATOMIC_SEQ_CST);
        if (done != wanted)
            syscall(SYS_futex, &slot->done, FUTEX_WAIT, done, &limit, NULL, 0);
    }
    if (__atomic_load_n(&slot->done, __ATOMIC_SEQ_CST) != wanted) {
        __atomic_store_n(&slot->watched, WATCHED_AT_CONTROL, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&slot->done, __ATOMIC_SEQ_CST) != wanted)
            return;
    }
    if (finish(h, t))
        h->quick++;
    follow(h, slot->processor);
}

/* Whether this is the suspended call made again: the same number, arguments and bytes. */
static int resumes(struct home_thread *t) {
    const struct call *a = &t->call, *b = &t->resumable;
    if (a->number != b->number || a->place_argument != b->place_argument || a->place != b->place)
        return 0;
    if (!t->resumable_image) {  /* it came from the process's registers: pointers are the guest's there, offsets here */
        for (int i = 0; i < 6; i++)
            if (!(a->offsets >> i & 1) && a->arguments[i] != b->arguments[i])
                return 0;
        return 1;
    }
    return a->offsets == b->offsets && a->image == b->image && !memcmp(a->arguments, b->arguments, sizeof a->arguments) &&
           !memcmp(t->resumable_image, data_of(t), a->image);
}

static int settles_signals(long number) {
    return number == SYS_timer_delete || number == SYS_timer_settime || number == SYS_alarm || number == SYS_kill || number == SYS_tgkill || number == SYS_tkill || number == SYS_rt_sigqueueinfo ||
           number == SYS_rt_tgsigqueueinfo || number == SYS_pidfd_send_signal;
}

static void forget_resumable(struct home_thread *t) {
    t->resumable.number = -1;
    free(t->resumable_image);
    t->resumable_image = NULL;
    t->resumable_deadline = 0;
}

/* Notes how a suspended call is to be gone on with, if it is made again. */
static void remember(struct home_thread *t, int64_t code) {
    if (code != -516 && !t->deadline)
        return;
    if (t->call.image && !(t->resumable_image = malloc(t->call.image)))
        return;
    /* With what the interrupted call has written: the guest gets that too, and sends it again. */
    if (t->call.image)
        memcpy(t->resumable_image, data_of(t), t->call.image);
    t->resumable = t->call;
    t->resumable_placed = t->placed;
    t->resumable_deadline = t->deadline;
}

static void start(struct home *h, struct home_thread *t) {
    uint64_t end = t->call.place + t->call.place_length;
    int place = t->call.place_argument < NO_PLACE && t->call.place_length && !h->places_held &&
                t->call.place_length <= PLACE_LIMIT && end > t->call.place &&
                (end <= h->stub - PAGE || t->call.place >= h->stub + size(h));
    t->placing = place ? 0 : PLACED;
    if (!place)
        t->call.place_length = 0;
    t->signalling = settles_signals(t->call.number) ? SIGNALS : SIGNALS_NOBODY;
    t->resuming = resumes(t);
    int64_t limit = patience(t);
    t->deadline = !limit ? 0 : t->resuming && t->resumable_deadline ? t->resumable_deadline : monotonic() + limit;
    forget_resumable(t);
    t->state = BUSY;
    t->begun = __builtin_ia32_rdtsc();
    launch(h, t, WATCHED_NOT);
}

/* Runs in the receiver: a CALL. Its image is read straight into the slot, which nobody else uses now. */
static int take_call(void *owner, struct session *session, const struct frame *frame) {
    struct home *h = owner;
    struct call call;
    uint32_t relocations[RELOCATIONS_LIMIT];
    struct home_thread *t = by_tid(h, frame->tid);
    if (!t && (frame->kind == FRAME_CALL || frame->kind == FRAME_ABANDON) && is_gone(h, frame->tid)) {
        if (session_skip(session, frame->length))       /* killed here, which they have not heard there: nobody waits for a reply */
            return -1;
        session_accept(session, frame);
        return 0;
    }
    if (frame->kind == FRAME_ABANDON && t && !frame->length) {
        session_accept(session, frame);
        pthread_mutex_lock(&h->lock);
        forget_resumable(t);
        pthread_mutex_unlock(&h->lock);
        return 0;
    }
    if (frame->kind != FRAME_CALL || frame->length < sizeof call || !t || session_read(session, &call, sizeof call))
        goto nonsense;
    if (call.relocations > RELOCATIONS_LIMIT || call.outs > OUTS_LIMIT || call.image > call.area ||
        call.area > SLOT_DATA || call.offsets >> 6 || !link_forwardable(call.number) || call.sequence <= t->sequence ||
        frame->length != sizeof call + call.relocations * 4ull + call.outs * sizeof(struct out) + call.image)
        goto nonsense;
    pthread_mutex_lock(&h->lock);
    int busy = t->state == BUSY;
    pthread_mutex_unlock(&h->lock);
    if (busy)
        goto nonsense;
    for (int i = 0; i < 6; i++)
        if (call.offsets >> i & 1 && call.arguments[i] > call.area)
            goto nonsense;
    if (call.place_argument != NO_PLACE &&
        (call.place_argument > NO_PLACE || !(call.offsets >> call.place_argument & 1) ||
         call.place_length > call.area - call.arguments[call.place_argument]))
        goto nonsense;
    t->call = call;
    if (session_read(session, relocations, call.relocations * 4) ||
        session_read(session, t->outs, call.outs * sizeof(struct out)) ||
        session_read(session, data_of(t), call.image))
        return -1;
    uint64_t total = 0;
    for (uint32_t i = 0; i < call.outs; i++) {
        if (t->outs[i].offset > call.area || t->outs[i].length > call.area - t->outs[i].offset)
            goto nonsense;
        total += t->outs[i].length;
    }
    if (total > SLOT_DATA)
        goto nonsense;
    uint64_t data = data_in_stub(h, t);
    for (uint32_t i = 0; i < call.relocations; i++) {
        uint64_t value;
        if (call.image < 8 || relocations[i] > call.image - 8)
            goto nonsense;
        memcpy(&value, data_of(t) + relocations[i], 8);
        if (value > call.area)
            goto nonsense;
        value += data;
        memcpy(data_of(t) + relocations[i], &value, 8);
    }
    session_accept(session, frame);
    pthread_mutex_lock(&h->lock);
    t->sequence = call.sequence;    /* with its state: nobody finds a call that was taken and is not under way */
    start(h, t);
    pthread_mutex_unlock(&h->lock);
    look_on(h, t, session_buffered(session) > 0);
    return 0;
nonsense:
    session_broken(session, "a call that cannot be");
    return -1;
}

/* Makes the next slot and its thread. 0, or a negative errno. */
static int make_thread(struct home *h, int tid) {
    unsigned index = h->count;
    if (index >= THREADS_LIMIT)
        return -EAGAIN;
    struct home_thread *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    void *slot = ftruncate(h->memory, slot_offset(index + 1)) ? MAP_FAILED
                 : mmap(NULL, SLOT_STRIDE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, h->memory, slot_offset(index));
    if (slot == MAP_FAILED) {
        free(t);
        return -ENOMEM;
    }
    *t = (struct home_thread){.tid = tid, .index = index, .slot = slot, .quick = 1, .resumable = {.number = -1}};
    t->slot->control = h->stub;
    t->slot->spin = h->spin;
    h->threads[index] = t;
    __atomic_store_n(&h->count, index + 1, __ATOMIC_RELEASE);
    return 0;
}

static void free_threads(struct home *h) {
    for (unsigned i = 0; i < h->count; i++) {
        forget_resumable(h->threads[i]);
        munmap(h->threads[i]->slot, SLOT_STRIDE);
        free(h->threads[i]);
    }
    if (h->control != MAP_FAILED)
        munmap(h->control, CONTROL_PAGE);
    free(h->threads);
    free(h);
}

struct home *home_new(const int *tids, unsigned count, int memory, int event_fd, int follows) {
    struct home *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->memory = memory;
    h->event_fd = event_fd;
    h->follows = follows;
    h->processor = -1;
    h->threads = calloc(THREADS_LIMIT, sizeof *h->threads);
    h->control = ftruncate(memory, CONTROL_PAGE) ? MAP_FAILED
                 : mmap(NULL, CONTROL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (!h->threads || h->control == MAP_FAILED)
        goto failed;
    for (unsigned i = 0; i < count; i++)
        if (make_thread(h, tids[i]))
            goto failed;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->answered, NULL);
    h->session = session_new(take_call, h, h->event_fd);
    if (!h->session)
        goto failed;
    if (pthread_create(&h->finisher, NULL, finish_loop, h)) {
        session_free(h->session);
        goto failed;
    }
    return h;
failed:
    free_threads(h);
    return NULL;
}

/* A slot for a thread that is about to be born, which home_name_thread() gives its tid: its index, or a negative errno. One whose
 * thread has ended is used again. */
int home_add_thread(struct home *h) {
    for (unsigned i = 0; i < h->count; i++)
        if (!h->threads[i]->tid)
            return i;
    int error = make_thread(h, 0);
    return error ? error : (int)h->count - 1;
}

/* 0: it has ended. */
void home_name_thread(struct home *h, unsigned index, int tid) {
    struct home_thread *t = h->threads[index];
    pthread_mutex_lock(&h->lock);
    forget_resumable(t);
    t->state = IDLE;
    t->sequence = 0;
    t->placed = 0;
    t->signalling = SIGNALS_NOBODY;
    t->slot->done = t->slot->request;
    t->slot->sleeping = t->slot->watched = 0;
    if (tid || t->tid)
        t->former = tid ? 0 : t->tid;
    t->tid = tid;
    pthread_mutex_unlock(&h->lock);
}

struct session *home_session(struct home *h) { return h->session; }

/* Where the stub has the memory. To be said before the first connection. */
void home_set_stub(struct home *h, int pid, uint64_t address, uint32_t spin) {
    h->stub_pid = pid;
    h->stub = address;
    h->spin = spin;
    for (unsigned i = 0; i < h->count; i++) {
        h->threads[i]->slot->control = address;
        h->threads[i]->slot->spin = spin;
    }
}

uint64_t home_slot_offset(unsigned i) { return slot_offset(i); }
uint64_t home_size(struct home *h) { return size(h); }

/* A session with another remote, after a hop: numbers begin anew; a suspended call is remembered. */
int home_renew(struct home *h) {
    struct session *fresh = session_new(take_call, h, h->event_fd);
    if (!fresh)
        return -ENOMEM;
    struct session *old = h->session;
    session_detach(old);        /* nobody waits in it for long then */
    pthread_mutex_lock(&h->lock);
    h->session = fresh;
    while (h->answering)
        pthread_cond_wait(&h->answered, &h->lock);
    for (unsigned i = 0; i < h->count; i++)
        h->threads[i]->sequence = 0;
    pthread_mutex_unlock(&h->lock);
    session_free(old);
    return 0;
}

struct standing { uint64_t sequence; int64_t number; uint32_t busy, done; };

/* How a thread's call stands. 0, or -ESRCH. */
int home_standing(struct home *h, int tid, struct standing *standing) {
    struct home_thread *t = by_tid(h, tid);
    if (!t)
        return -ESRCH;
    pthread_mutex_lock(&h->lock);
    *standing = (struct standing){t->sequence, t->call.number, t->state == BUSY,
                                  __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) == t->slot->request};
    pthread_mutex_unlock(&h->lock);
    return 0;
}

struct signaller { uint32_t tid, target; };

/* Threads whose reply waits for home_told(), at most `room`, and which thread each has sent a signal to; 0: any. How many. */
unsigned home_signallers(struct home *h, struct signaller *found, unsigned room) {
    unsigned n = 0;
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < h->count && n < room; i++) {
        struct home_thread *t = h->threads[i];
        if (t->state != BUSY || t->signalling != SIGNALLED)
            continue;
        long number = t->call.number;
        uint64_t target = number == SYS_tgkill || number == SYS_rt_tgsigqueueinfo ? t->call.arguments[1]
                          : number == SYS_tkill ? t->call.arguments[0] : 0;
        found[n++] = (struct signaller){t->tid, target};
    }
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* The guest has been told of what such a thread's call has sent. */
void home_told(struct home *h, int tid) {
    struct home_thread *t = by_tid(h, tid);
    if (!t)
        return;
    pthread_mutex_lock(&h->lock);
    t->signalling = SIGNALS_NOBODY;
    pthread_mutex_unlock(&h->lock);
    finish(h, t);
}

/* The thread was taken out of its call (ptrace) with a restart code: says so to the guest. The resident loop must be
 * begun anew afterwards. 0, -ENOENT: no call under way or it has ended. */
int home_suspend(struct home *h, int tid, int64_t code) {
    struct home_thread *t = by_tid(h, tid);
    if (!t)
        return -ESRCH;
    struct outgoing *o = NULL;
    pthread_mutex_lock(&h->lock);
    if (t->state == BUSY && __atomic_load_n(&t->slot->done, __ATOMIC_SEQ_CST) != t->slot->request) {
        o = make_reply(h, t, code, REPLY_SUSPENDED);
        t->slot->done = t->slot->request;
        t->state = IDLE;
        remember(t, code);
    }
    pthread_mutex_unlock(&h->lock);
    if (!o)
        return -ENOENT;
    session_post(h->session, o, SEND_LATER);
    return 0;
}

/* The stub's thread was interrupted in this call (raw arguments of its registers) before it left: when the guest makes it
 * for the first time, the kernel goes on with it, or it is made to wait to its deadline, if that is not 0 (nanoseconds).
 * `place_argument`: which of them is its place. */
int home_expect(struct home *h, int tid, int number, const uint64_t arguments[6], unsigned place_argument, int64_t deadline) {
    struct home_thread *t = by_tid(h, tid);
    if (!t || place_argument > NO_PLACE || (place_argument == NO_PLACE && !deadline))
        return -ESRCH;
    pthread_mutex_lock(&h->lock);
    forget_resumable(t);
    t->resumable = (struct call){.number = number};
    memcpy(t->resumable.arguments, arguments, link_entry(number, arguments)->count * sizeof *arguments);
    t->resumable.place = place_argument < NO_PLACE ? arguments[place_argument] : 0;
    t->resumable.place_argument = t->resumable.place ? place_argument : NO_PLACE;
    t->resumable_deadline = deadline;
    t->resumable_placed = t->resumable.place_argument < NO_PLACE;
    pthread_mutex_unlock(&h->lock);
    return 0;
}

/* The number of the suspended call that restart_syscall(2) in this thread would go on with, at home as well; or -ENOENT. */
int home_resumable(struct home *h, int tid) {
    struct home_thread *t = by_tid(h, tid);
    int number = -ENOENT;
    pthread_mutex_lock(&h->lock);
    if (t && t->resumable.number >= 0 && !t->resumable_deadline &&
        (t->resumable_placed || t->resumable.place_argument == NO_PLACE || !t->resumable.image))
        number = t->resumable.number;
    pthread_mutex_unlock(&h->lock);
    return number;
}

/* Milliseconds that are left of the suspended call `number` of this thread, if it takes them in a register; or -ENOENT. */
int64_t home_milliseconds_left(struct home *h, int tid, int number) {
    struct home_thread *t = by_tid(h, tid);
    int64_t left = -ENOENT;
    pthread_mutex_lock(&h->lock);
    if (t && t->resumable.number == number && t->resumable_deadline && in_milliseconds(&t->resumable))
        left = milliseconds_to(t->resumable_deadline);
    pthread_mutex_unlock(&h->lock);
    return left;
}

/* While held, no new places are made; the ones in use: how many, page addresses. */
unsigned home_hold_places(struct home *h, int held, uint64_t *pages, unsigned room) {
    unsigned n = 0;
    pthread_mutex_lock(&h->lock);
    h->places_held = held;
    for (unsigned i = 0; i < PLACES && i < h->places_count && n < room; i++)
        pages[n++] = h->places[i];
    pthread_mutex_unlock(&h->lock);
    return n;
}

uint64_t home_statistic(struct home *h, int which) { return which ? h->quick : h->calls; }

void home_free(struct home *h) {
    session_detach(h->session);     /* nobody waits in it for long then */
    __atomic_store_n(&h->stopping, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&h->control->completions, 1, __ATOMIC_SEQ_CST);
    futex(&h->control->completions, FUTEX_WAKE, 1);
    pthread_join(h->finisher, NULL);
    session_free(h->session);
    free_threads(h);
}
