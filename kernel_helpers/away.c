/* The guest's side of the link: takes the notifications of its filter, has the calls executed at home, answers.
 * Two threads: the listener does nothing between two receptions but marshal and send; the session's receiver answers. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "account.h"
#include "area.h"
#include "direct.h"
#include "guest_memory.h"
#include "hub.h"
#include "link.h"

#define THREADS_LIMIT 32768u    /* entries; a place in the list is 8 bytes that are touched when it is used */

enum state { IDLE, SENT_HOME, WAITS_FOR_PYTHON };

/* What home last said of a cpu clock. Its share stands still for as long as the stub makes no call (but the question itself). */
struct told {
    uint64_t as_of;             /* the moment() at which it was asked; 0: nothing was said */
    struct timespec time;
};

struct guest_thread {
    int host_tid;
    uint32_t tid;               /* as the program sees it; 0: it has ended */
    uint32_t former;            /* what it was before that */
    enum state state;
    uint64_t notification;
    int class;
    int renamed;                /* away_forward() has given it another path */
    struct rlimit limit;        /* of a call that sets one */
    uint64_t calls;             /* sent home, questions about cpu clocks left out; from 1 */
    uint64_t asked_at;          /* the moment() of the question */
    struct told process_clock, thread_clock;
    struct direct_thread reads;
    struct marshalled m;
};

struct away {
    struct session *session;
    struct account *account;    /* not ours; NULL: nothing is added */
    struct direct *direct;      /* not ours; NULL: no file is direct */
    uint64_t frames;            /* CALLs sent and REPLYs taken, questions about cpu clocks left out; from 1 */
    struct hub *hub;
    int listener;               /* the hub's */
    int pause;
    unsigned count;             /* grows, also while other threads of ours go through the list */
    struct guest_thread **threads;
    pthread_mutex_t lock;       /* states and ledger */
    unsigned char *results;     /* the receiver's own */
    size_t results_room;
};

static struct guest_thread *by_host_tid(struct away *a, int tid) {
    unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (a->threads[i]->host_tid == tid)
            return a->threads[i];
    return NULL;
}

static struct guest_thread *by_tid(struct away *a, uint32_t tid) {
    unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
        if (a->threads[i]->tid == tid)
            return a->threads[i];
    return NULL;
}

/* ENOENT is no error: the thread was killed meanwhile. */
static void answer(struct away *a, uint64_t id, int64_t value, int native) {
    struct seccomp_notif_resp response = {.id = id};
    if (native)
        response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    else if (value < 0 && value >= -4095)
        response.error = value;
    else
        response.val = value;
    ioctl(a->listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

/* The notification stays pending until Python answers it or the thread dies. */
static void hand_over(struct away *a, struct guest_thread *t, const struct seccomp_notif *n) {
    struct event event = {.kind = EVENT_GO_HOME_CALL, .tid = t ? t->tid : 0, .value = n->data.nr, .number = n->pid,
                          .length = sizeof n->data.args};
    pthread_mutex_lock(&a->lock);
    if (t)
        t->state = WAITS_FOR_PYTHON;
    pthread_mutex_unlock(&a->lock);
    session_event(a->session, &event, n->data.args);
}

/* Whether a signal is pending for the thread that it blocks, but not with this mask. The kernel takes the mask of ppoll() and its like for
 * the time of the call; here the call waits under the thread's own, where such a signal would never end it. */
static int waits_for_mask(int tid, uint64_t mask) {
    char path[40], text[4096], *line;
    uint64_t pending = 0, blocked = 0;
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    if ((line = strstr(text, "\nSigPnd:")))
        pending |= strtoull(line + 8, NULL, 16);
    if ((line = strstr(text, "\nShdPnd:")))
        pending |= strtoull(line + 8, NULL, 16);
    if ((line = strstr(text, "\nSigBlk:")))
        blocked = strtoull(line + 8, NULL, 16);
    return (pending & blocked & ~mask) != 0;
}

/* What is known of the clock that a call asks about; NULL: it is no such question. */
static struct told *told_of(struct guest_thread *t, long number, uint64_t argument) {
    if (number != SYS_clock_gettime)
        return NULL;
    int clock = (int)argument;
    return clock == CLOCK_PROCESS_CPUTIME_ID ? &t->process_clock : clock == CLOCK_THREAD_CPUTIME_ID ? &t->thread_clock : NULL;
}

/* For as long as it does not change, home's share of that clock does not: a thread's own calls, or those of all. */
static uint64_t moment(struct away *a, struct guest_thread *t, uint64_t clock) {
    return (int)clock == CLOCK_THREAD_CPUTIME_ID ? t->calls : __atomic_load_n(&a->frames, __ATOMIC_SEQ_CST);
}

/* Whether a marshalled call opens what tells of the guest itself. */
static int opens_own_proc(struct away *a, const struct guest_thread *t, const struct call_entry *entry) {
    long number = t->m.call.number;
    if (number != SYS_openat && number != SYS_open && number != SYS_openat2)
        return 0;
    const char *path = marshal_path(&t->m, entry);
    uint32_t id;
    return path && own_proc_path(path, &id) && (!id || by_tid(a, id));
}

/* Has the call that was marshalled under way. 0, or -ENOMEM. */
static int send_call(struct away *a, struct guest_thread *t) {
    t->m.call.sequence++;
    if (told_of(t, t->m.call.number, t->m.call.arguments[0]))
        t->asked_at = moment(a, t, t->m.call.arguments[0]);
    else {
        t->calls++;
        __atomic_add_fetch(&a->frames, 1, __ATOMIC_SEQ_CST);
    }
    struct outgoing *o = marshal_frame(&t->m, t->tid);
    if (!o)
        return -ENOMEM;
    session_post(a->session, o, SEND_NOW);
    return 0;
}

static void forward(struct away *a, struct guest_thread *t, const struct seccomp_notif *n,
                    const struct call_entry *entry) {
    uint64_t arguments[6];
    for (int i = 0; i < 6; i++)
        arguments[i] = n->data.args[i];
    int sent = 0;
    t->renamed = 0;
    if (!marshal_call(&t->m, t->host_tid, entry, n->data.nr, arguments) && !opens_own_proc(a, t, entry)) {
        /* Parked first, then asked: a signal that comes meanwhile finds the call parked. */
        pthread_mutex_lock(&a->lock);
        t->state = SENT_HOME;
        pthread_mutex_unlock(&a->lock);
        sent = (!t->m.has_mask || !waits_for_mask(t->host_tid, t->m.signal_mask)) && !send_call(a, t);
    }
    if (!sent)                  /* too much for a slot, a mask that only home can wait with, or a look at itself */
        hand_over(a, t, n);
}

/* A cpu clock whose home share is known is answered at once. Whether it was. */
static int answer_clock(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]) {
    struct told *told = told_of(t, n->data.nr, arguments[0]);
    if (!told || told->as_of != moment(a, t, arguments[0]) || !a->account)
        return 0;
    struct timespec value = told->time;
    account_add(a->account, t->host_tid, n->data.nr, arguments, (unsigned char *)&value, sizeof value);
    struct iovec here = {&value, sizeof value}, there = {(void *)arguments[1], sizeof value};
    if (guest_memory_writev(t->host_tid, &here, 1, &there, 1) != sizeof value)
        return 0;
    answer(a, n->id, 0, 0);
    return 1;
}

/* A REPLY to a call of class SUM. */
static void add_used(struct away *a, struct guest_thread *t, uint32_t length) {
    struct told *told = told_of(t, t->m.call.number, t->m.call.arguments[0]);
    if (told && length == sizeof told->time) {
        memcpy(&told->time, a->results, sizeof told->time);
        told->as_of = t->asked_at;
    }
    account_add(a->account, t->host_tid, t->m.call.number, t->m.call.arguments, a->results, length);
}

static int limited_resource(long number, const uint64_t arguments[6]) { return arguments[number == SYS_prlimit64]; }

/* What a call wants to set: 0, or a negative errno. */
static int read_limit(struct guest_thread *t, long number, const uint64_t arguments[6]) {
    return guest_read(t->host_tid, arguments[number == SYS_prlimit64 ? 2 : 1], &t->limit, sizeof t->limit);
}

/* Home has set it; the guest is not bound more loosely than its node binds us. */
static void bind_guest(struct guest_thread *t) {
    struct rlimit ours, limit = t->limit;
    int resource = limited_resource(t->m.call.number, t->m.call.arguments);
    if (getrlimit(resource, &ours))
        return;
    limit.rlim_cur = limit.rlim_cur < ours.rlim_max ? limit.rlim_cur : ours.rlim_max;
    limit.rlim_max = limit.rlim_max < ours.rlim_max ? limit.rlim_max : ours.rlim_max;
    prlimit(t->host_tid, resource, &limit, NULL);
}

/* Whether a call is dealt with because of a file that is direct, or about to be. */
static int takes_directly(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6]) {
    struct direct_call call = {.listener = a->listener, .id = n->id, .session = a->session, .host_tid = t->host_tid, .number = n->data.nr,
                               .arguments = arguments, .thread = &t->reads};
    struct direct_question about = {0};
    enum direct_verdict verdict = direct_take(a->direct, &call, &about);
    if (verdict == DIRECT_NOT)
        return 0;
    if (verdict == DIRECT_HERE) {
        answer(a, n->id, 0, 1);
        return 1;
    }
    uint64_t told[4] = {about.descriptor, about.serial, verdict == DIRECT_WANTED_OWN, about.by_place};
    struct event event = {.kind = verdict == DIRECT_BUSY ? EVENT_BUSY : verdict == DIRECT_OPEN ? EVENT_READS_OPEN : EVENT_READS,
                          .tid = t->tid, .value = n->data.nr, .length = sizeof told};
    int waits = verdict == DIRECT_OPEN || verdict == DIRECT_BUSY;
    if (waits) {
        pthread_mutex_lock(&a->lock);
        t->state = WAITS_FOR_PYTHON;
        pthread_mutex_unlock(&a->lock);
    }
    session_event(a->session, &event, told);
    return waits;
}

static void take(void *member, const struct seccomp_notif *n) {
    struct away *a = member;
    uint64_t arguments[6];
    for (int i = 0; i < 6; i++)
        arguments[i] = n->data.args[i];
    const struct call_entry *entry = link_entry(n->data.nr, arguments);
    struct guest_thread *t = by_host_tid(a, n->pid);
    if (entry->class == CLASS_LOCAL || entry->class == CLASS_REFUSE) {
        answer(a, n->id, -ENOSYS, entry->class == CLASS_LOCAL);
        return;
    }
    if (!t) {
        /* Nobody's any more, if it was killed meanwhile: its call is no reason for anybody else to go home. */
        if (!ioctl(a->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &n->id))
            hand_over(a, NULL, n);
        return;
    }
    if (entry->class == CLASS_SUM && answer_clock(a, t, n, arguments))
        return;
    t->notification = n->id;
    t->class = entry->class;
    t->m.call.number = n->data.nr;
    if (a->direct && takes_directly(a, t, n, arguments))
        return;
    if (entry->class == CLASS_GO_HOME || entry->class == CLASS_EXECUTE ||
        (entry->class == CLASS_BIND && read_limit(t, n->data.nr, arguments)))
        hand_over(a, t, n);
    else
        forward(a, t, n, entry);    /* an exit too: the stub's thread ends, and Python lets the guest's do so */
}

static int has(void *member, int tid) { return by_host_tid(member, tid) != NULL; }

static void ended(void *member) {
    struct away *a = member;
    struct event event = {.kind = EVENT_GUEST_GONE};
    session_event(a->session, &event, "");
}

static const struct hub_uses uses = {.has = has, .take = take, .ended = ended};

/* Whether it has ended. */
static int is_gone(struct away *a, uint32_t tid) {
    unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count && tid; i++)
        if (a->threads[i]->former == tid)
            return 1;
    return 0;
}

/* Runs in the receiver: a REPLY. */
static int reply(void *owner, struct session *session, const struct frame *frame) {
    struct away *a = owner;
    struct reply r;
    uint32_t lengths[OUTS_LIMIT];
    struct guest_thread *t = by_tid(a, frame->tid);
    if (!t && frame->kind == FRAME_REPLY && is_gone(a, frame->tid)) {
        if (session_skip(session, frame->length))       /* killed in the midst of its call */
            return -1;
        session_accept(session, frame);
        return 0;
    }
    if (frame->kind != FRAME_REPLY || frame->length < sizeof r || !t || session_read(session, &r, sizeof r))
        goto nonsense;
    size_t left = frame->length - sizeof r;
    if (r.outs > t->m.call.outs || left < r.outs * 4 || session_read(session, lengths, r.outs * 4))
        goto nonsense;
    left -= r.outs * 4;
    size_t bytes = 0;
    for (uint32_t i = 0; i < t->m.call.outs; i++) {
        if (i >= r.outs)
            lengths[i] = 0;
        if (lengths[i] > t->m.outs[i].length)
            goto nonsense;
        bytes += lengths[i];
    }
    if (bytes != left)
        goto nonsense;
    if (bytes > a->results_room) {
        free(a->results);
        a->results = malloc(bytes);
        a->results_room = a->results ? bytes : 0;
        if (!a->results)
            goto nonsense;      /* the frame comes again on the next connection */
    }
    if (session_read(session, a->results, bytes))
        return -1;
    session_accept(session, frame);
    pthread_mutex_lock(&a->lock);
    int wanted = t->state == SENT_HOME && r.sequence == t->m.call.sequence;
    pthread_mutex_unlock(&a->lock);
    if (!wanted)
        return 0;
    if (!told_of(t, t->m.call.number, t->m.call.arguments[0]))
        __atomic_add_fetch(&a->frames, 1, __ATOMIC_SEQ_CST);
    int64_t value = r.value;
    if (t->class == CLASS_SUM && value >= 0 && r.outs && !(r.flags & REPLY_SUSPENDED) && a->account)
        add_used(a, t, lengths[0]);
    if (t->class == CLASS_BIND && value >= 0 && !(r.flags & REPLY_SUSPENDED))
        bind_guest(t);
    if (a->direct && !(r.flags & REPLY_SUSPENDED))
        direct_answered(a->direct, &t->reads, t->m.call.number, value);
    if (marshal_results(&t->m, t->host_tid, lengths, a->results))
        value = -EFAULT;
    uint64_t id = t->notification;
    int native = t->class == CLASS_BOTH && value >= 0 && !(r.flags & REPLY_SUSPENDED);
    struct event event = {.kind = EVENT_SUSPENDED, .tid = t->tid, .number = t->m.call.number, .value = r.value};
    /* The path that it was given is not there for it: what it would see by its own, only home can tell. */
    int fails = t->renamed && (value == -EACCES || value == -ENOENT || value == -EPERM || value == -ENOTDIR);
    if (fails)
        event.kind = EVENT_GO_HOME_CALL, event.value = t->m.call.number;
    if (bytes > 1 << 20) {
        free(a->results);
        a->results = NULL;
        a->results_room = 0;
    }
    pthread_mutex_lock(&a->lock);
    t->state = r.flags & REPLY_SUSPENDED || fails ? WAITS_FOR_PYTHON : IDLE;
    pthread_mutex_unlock(&a->lock);
    if (r.flags & REPLY_SUSPENDED || fails)  /* a restart code may only be answered when something is pending for the thread */
        session_event(session, &event, "");
    else
        answer(a, id, value, native);
    return 0;
nonsense:
    session_broken(session, "a reply that fits no call");
    return -1;
}

/* A thread that is here from now on; the entry of one that has ended is used again. 0, or a negative errno. */
int away_add_thread(struct away *a, int host_tid, int tid) {
    struct guest_thread *t = by_tid(a, 0);
    if (t) {
        pthread_mutex_lock(&a->lock);
        t->state = IDLE;
        t->m.call.sequence = 0;
        t->calls = 1;
        t->process_clock.as_of = t->thread_clock.as_of = 0;
        t->tid = tid;
        t->former = 0;
        t->host_tid = host_tid;
        pthread_mutex_unlock(&a->lock);
        return 0;
    }
    if (a->count >= THREADS_LIMIT)
        return -EAGAIN;
    t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->host_tid = host_tid;
    t->tid = tid;
    t->calls = 1;
    a->threads[a->count] = t;
    __atomic_store_n(&a->count, a->count + 1, __ATOMIC_RELEASE);
    return 0;
}

/* The thread has come out of whatever it read by itself. */
void away_direct_left(struct away *a, int host_tid) {
    struct guest_thread *t = by_host_tid(a, host_tid);
    if (t && a->direct)
        direct_leave(a->direct, &t->reads);
}

/* Threads (host tids) that may be reading by a number that others wait for; how many. */
unsigned away_direct_awaited(struct away *a, uint32_t *list, unsigned room) {
    unsigned found = 0, count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count && found < room; i++)
        if (a->threads[i]->host_tid && direct_is_awaited(a->direct, &a->threads[i]->reads))
            list[found++] = a->threads[i]->host_tid;
    return found;
}

void away_remove_thread(struct away *a, int host_tid) {
    struct guest_thread *t = by_host_tid(a, host_tid);
    if (!t)
        return;
    away_direct_left(a, host_tid);
    pthread_mutex_lock(&a->lock);
    t->state = IDLE;
    t->former = t->tid;
    t->host_tid = t->tid = 0;
    pthread_mutex_unlock(&a->lock);
}

static void free_away(struct away *a) {
    if (a->session)
        session_free(a->session);
    for (unsigned i = 0; i < a->count; i++) {
        marshal_free(&a->threads[i]->m);
        free(a->threads[i]);
    }
    free(a->threads);
    free(a->results);
    free(a);
}

static struct away *new_away(const int *host_tids, const int *tids, unsigned count, int event_fd) {
    struct away *a = calloc(1, sizeof *a);
    if (!a || !(a->threads = calloc(THREADS_LIMIT, sizeof *a->threads))) {
        free(a);
        return NULL;
    }
    a->frames = 1;
    pthread_mutex_init(&a->lock, NULL);
    int failed = 0;
    for (unsigned i = 0; i < count && !failed; i++)
        failed = away_add_thread(a, host_tids[i], tids[i]);
    if (failed || !(a->session = session_new(reply, a, event_fd))) {
        free_away(a);
        return NULL;
    }
    return a;
}

struct away *away_new(int listener, const int *host_tids, const int *tids, unsigned count, int event_fd) {
    struct away *a = new_away(host_tids, tids, count, event_fd);
    if (!a)
        return NULL;
    a->hub = hub_new(listener, &uses, a);
    if (a->hub) {
        a->listener = hub_listener(a->hub);
        if (!hub_start(a->hub))
            return a;
    }
    free_away(a);
    return NULL;
}

/* Another process with the same filter, whose thread has not run yet. */
struct away *away_sibling(struct away *one, int host_tid, int tid, int event_fd) {
    struct away *a = new_away(&host_tid, &tid, 1, event_fd);
    if (!a)
        return NULL;
    a->hub = one->hub;
    a->listener = one->listener;
    if (hub_join(a->hub, a)) {
        free_away(a);
        return NULL;
    }
    return a;
}

/* Before the first attach. */
void away_set_account(struct away *a, struct account *account) { a->account = account; }

/* Before the first attach. */
void away_set_direct(struct away *a, struct direct *direct) { a->direct = direct; }

struct session *away_session(struct away *a) { return a->session; }

/* Stops taking notifications, those of siblings too; returns when the listener stands. Calls that were sent are still answered. */
void away_pause(struct away *a) {
    if (!a->pause)
        hub_pause(a->hub);
    a->pause = 1;
}

void away_unpause(struct away *a) {
    if (a->pause)
        hub_unpause(a->hub);
    a->pause = 0;
}

struct parked { uint32_t tid, state; uint64_t sequence; int64_t number; uint64_t mask; uint32_t has_mask, class; };

/* Calls that were caught and not answered; how many. */
unsigned away_parked(struct away *a, struct parked *list, unsigned room) {
    unsigned n = 0;
    pthread_mutex_lock(&a->lock);
    for (unsigned i = 0; i < a->count && n < room; i++) {
        struct guest_thread *t = a->threads[i];
        if (t->state != IDLE)
            list[n++] = (struct parked){t->tid, t->state, t->m.call.sequence, t->m.call.number, t->m.signal_mask,
                                        t->m.has_mask, t->class};
    }
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* Answers a parked call with a raw result, or lets the kernel execute it here. 0, -ENOENT: nothing is parked. */
int away_answer(struct away *a, int tid, int64_t value, int native) {
    struct guest_thread *t = by_tid(a, tid);
    pthread_mutex_lock(&a->lock);
    if (!t || t->state == IDLE) {
        pthread_mutex_unlock(&a->lock);
        return -ENOENT;
    }
    t->state = IDLE;
    uint64_t id = t->notification;
    pthread_mutex_unlock(&a->lock);
    answer(a, id, value, native);
    return 0;
}

/* Of a thread's parked call. Whether there is one. */
static int notification_of(struct away *a, int tid, uint64_t *id) {
    struct guest_thread *t = by_tid(a, tid);
    pthread_mutex_lock(&a->lock);
    int is_parked = t && t->state != IDLE;
    *id = is_parked ? t->notification : 0;
    pthread_mutex_unlock(&a->lock);
    return is_parked;
}

/* See direct_make(): for the parked call of this thread. */
int away_make_direct(struct away *a, int tid, int descriptor, uint32_t serial, int64_t position) {
    uint64_t id;
    return notification_of(a, tid, &id) ? direct_make(a->direct, a->listener, id, descriptor, serial, position) : -ENOENT;
}

/* Puts a descriptor of ours into the guest, as this number, before a parked call of this thread goes on there. 0, or a negative errno:
 * -ENOENT: nothing is parked. */
int away_give_descriptor(struct away *a, int tid, int descriptor, int number) {
    uint64_t id;
    if (!notification_of(a, tid, &id))
        return -ENOENT;
    struct seccomp_notif_addfd give = {.id = id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .srcfd = descriptor, .newfd = number,
                                       .newfd_flags = O_CLOEXEC};
    int result;
    do /* a signal of ours may end the wait for the guest's thread to take it */
        result = ioctl(a->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &give);
    while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : 0;
}

/* Sends a call home that Python has been handed, with the arguments that it was told; `path`: what it shall name in place of its own, or
 * NULL. 0, -ENOENT: none is parked, or why it cannot
 * be sent (-E2BIG, -ENOMEM): it stays parked. */
int away_forward(struct away *a, int tid, int number, const uint64_t arguments[6], const char *path) {
    struct guest_thread *t = by_tid(a, tid);
    pthread_mutex_lock(&a->lock);
    int parked = t && t->state == WAITS_FOR_PYTHON && t->m.call.number == number;
    pthread_mutex_unlock(&a->lock);
    if (!parked)
        return -ENOENT;
    const struct call_entry *entry = link_entry(number, arguments);
    int error = marshal_call(&t->m, t->host_tid, entry, number, arguments);
    if (!error && path)
        error = marshal_rename(&t->m, entry, path);
    if (error)
        return error;
    t->renamed = path != NULL;
    pthread_mutex_lock(&a->lock);
    t->state = SENT_HOME;
    pthread_mutex_unlock(&a->lock);
    if ((error = send_call(a, t))) {
        pthread_mutex_lock(&a->lock);
        t->state = WAITS_FOR_PYTHON;
        pthread_mutex_unlock(&a->lock);
    }
    return error;
}

/* The guest will not make the suspended call of this thread again. */
int away_abandon(struct away *a, int tid) {
    struct outgoing *o = outgoing_new(FRAME_ABANDON, tid, 0);
    if (!o)
        return -ENOMEM;
    session_post(a->session, o, SEND_LATER);
    return 0;
}

void away_free(struct away *a) {
    away_unpause(a);
    hub_leave(a->hub, a);
    free_away(a);
}
