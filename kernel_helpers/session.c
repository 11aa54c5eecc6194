/* The session under a link: numbered frames over a connection that may break and be made again.
 * Every numbered frame is seen exactly once and in order, in each direction: it is kept until the other side has said
 * that it has it, and after a new connection both sides say first how far they had come (RESUME).
 * A broken connection is an event for Python and nothing to anybody else. Nobody who posts SEND_LATER ever blocks. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "link.h"
#include "looking.h"

#define BUFFER 65536
#define EVENTS_LIMIT 4096       /* more than these wait for Python: the receiver waits too */
#define SIGN_OF_LIFE 1000       /* ms between two, if nothing else is sent */
#define LOOK 250                /* ms: whether a side that was silent is heard again */
#define LEAST_WAIT 20           /* ms: something is due, and somebody else is sending */
#define SPARE_LIMIT 8192        /* bodies at least this long are received in place, not through the buffer */

struct outgoing {
    struct outgoing *next;
    unsigned char *body;
    size_t head, body_length;
    struct frame frame;         /* followed by the head */
};

struct queued_event { struct queued_event *next; struct event event; unsigned char data[]; };

struct session {
    session_handler handler;
    void *owner;
    int event_fd;
    pthread_t receiver, sender;
    pthread_mutex_t lock;       /* everything below but the receiver's own */
    pthread_mutex_t sending;    /* held while bytes are written; never waited for by SEND_LATER */
    pthread_cond_t changed;
    int descriptor, fresh, ready, stopping, held, silent, later, broken;
    uint64_t last_number, sent, received, acknowledged_sent;
    struct outgoing *first, *last, *next;   /* kept frames in order; the first one not sent on this connection */
    struct queued_event *events, *events_tail;
    unsigned events_count;
    int silence;                /* ms, 0: never */
    struct timespec heard, spoken;
    char reason[120];
    uint64_t kept, frames_in, frames_out, carried;
    /* the receiver's own */
    struct looking looking;
    unsigned char buffer[BUFFER];
    size_t begin, end;
};

static long milliseconds_since(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - then->tv_sec) * 1000 + (now.tv_nsec - then->tv_nsec) / 1000000;
}

/* ---- events ---- */

static void add_event(struct session *s, const struct event *event, const void *data) {
    struct queued_event *q = malloc(sizeof *q + event->length);
    if (!q)
        return;
    q->next = NULL;
    q->event = *event;
    memcpy(q->data, data, event->length);
    if (s->events)
        s->events_tail->next = q;
    else
        s->events = q;
    s->events_tail = q;
    s->events_count++;
    eventfd_write(s->event_fd, 1);
}

void session_event(struct session *s, const struct event *event, const void *data) {
    pthread_mutex_lock(&s->lock);
    add_event(s, event, data);
    pthread_mutex_unlock(&s->lock);
}

static void plain_event(struct session *s, enum event_kind kind, const char *text) {
    struct event event = {.kind = kind, .length = strlen(text)};
    add_event(s, &event, text);
}

/* 1 and an event, 0: none, -ENOSPC: `room` is too small (event->length says what is needed). */
int session_next_event(struct session *s, struct event *event, void *data, uint32_t room) {
    int result = 0;
    pthread_mutex_lock(&s->lock);
    struct queued_event *q = s->events;
    if (!q) {
        eventfd_t count;
        eventfd_read(s->event_fd, &count);
    } else {
        *event = q->event;
        if (q->event.length > room)
            result = -ENOSPC;
        else {
            memcpy(data, q->data, q->event.length);
            s->events = q->next;
            if (--s->events_count == EVENTS_LIMIT - 1)
                pthread_cond_broadcast(&s->changed);
            free(q);
            result = 1;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

/* ---- frames that leave ---- */

struct outgoing *outgoing_new(uint16_t kind, uint32_t tid, size_t head) {
    struct outgoing *o = malloc(sizeof *o + head);
    if (!o)
        return NULL;
    memset(o, 0, sizeof *o);
    o->head = head;
    o->frame.kind = kind;
    o->frame.tid = tid;
    return o;
}

void *outgoing_head(struct outgoing *o) { return o + 1; }

void outgoing_body(struct outgoing *o, void *body, size_t length) {
    o->body = body;
    o->body_length = length;
}

void outgoing_free(struct outgoing *o) {
    free(o->body);
    free(o);
}

static int send_all(int descriptor, struct iovec *parts, size_t count) {
    while (count) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t n = sendmsg(descriptor, &message, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        while (count && (size_t)n >= parts->iov_len) {
            n -= parts->iov_len;
            parts++;
            count--;
        }
        if (count) {
            parts->iov_base = (char *)parts->iov_base + n;
            parts->iov_len -= n;
        }
    }
    return 0;
}

static int send_bare(struct session *s, int descriptor, uint16_t kind, uint64_t acknowledged) {
    struct frame frame = {.kind = kind, .acknowledged = acknowledged};
    struct iovec part = {&frame, sizeof frame};
    clock_gettime(CLOCK_MONOTONIC, &s->spoken);
    return send_all(descriptor, &part, 1);
}

/* Called with s->lock held: notes that the connection is of no use; the receiver closes it. */
static void note_broken(struct session *s, const char *reason) {
    if (s->descriptor < 0 || s->broken)
        return;
    s->broken = 1;
    s->ready = 0;
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    shutdown(s->descriptor, SHUT_RDWR);
}

void session_broken(struct session *s, const char *reason) {
    pthread_mutex_lock(&s->lock);
    note_broken(s, reason);
    pthread_mutex_unlock(&s->lock);
}

/* Sends what waits, unless another thread is doing so: that one sends ours as well. Called without locks. */
static void drain(struct session *s, int wait) {
    for (;;) {
        if (wait)
            pthread_mutex_lock(&s->sending);
        else if (pthread_mutex_trylock(&s->sending))
            return;
        pthread_mutex_lock(&s->lock);
        while (s->ready && s->next) {
            struct outgoing *o = s->next;
            int descriptor = s->descriptor;
            o->frame.acknowledged = s->acknowledged_sent = s->received;
            /* Before it is written: its answer, which acknowledges it, may be here before we look again. */
            if (o->frame.number > s->sent)
                s->sent = o->frame.number;
            s->carried += sizeof o->frame + o->head + o->body_length;
            pthread_mutex_unlock(&s->lock);
            struct iovec parts[2] = {{&o->frame, sizeof o->frame + o->head}, {o->body, o->body_length}};
            int failed = send_all(descriptor, parts, o->body_length ? 2 : 1);
            pthread_mutex_lock(&s->lock);
            clock_gettime(CLOCK_MONOTONIC, &s->spoken);
            if (failed) {
                note_broken(s, strerror(errno));
                break;
            }
            s->next = o->next;
            s->frames_out++;
        }
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_unlock(&s->sending);
        /* One that was posted between our last look and the unlock found us sending: look again. */
        pthread_mutex_lock(&s->lock);
        int more = s->ready && s->next;
        pthread_mutex_unlock(&s->lock);
        if (!more)
            return;
    }
}

void session_queue(struct session *s, struct outgoing *o) {
    o->frame.length = o->head + o->body_length;
    pthread_mutex_lock(&s->lock);
    o->frame.number = ++s->last_number;
    o->next = NULL;
    if (s->last)
        s->last->next = o;
    else
        s->first = o;
    s->last = o;
    if (!s->next)
        s->next = o;
    s->kept += o->frame.length;
    pthread_mutex_unlock(&s->lock);
}

void session_send(struct session *s) { drain(s, 0); }

void session_post(struct session *s, struct outgoing *o, enum send_mode mode) {
    session_queue(s, o);
    if (mode == SEND_NOW) {
        session_send(s);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->later = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int session_control(struct session *s, uint16_t kind, uint16_t flags, uint32_t tid, const void *data,
                    uint32_t length) {
    if (kind < FRAME_CONTROL || length > CONTROL_LIMIT)
        return -EINVAL;
    struct outgoing *o = outgoing_new(kind, tid, length);
    if (!o)
        return -ENOMEM;
    o->frame.flags = flags;
    memcpy(outgoing_head(o), data, length);
    session_post(s, o, SEND_LATER);
    return 0;
}

/* Called with s->lock held. -1: it acknowledges what was never sent. */
static int acknowledge(struct session *s, uint64_t number) {
    if (number > s->sent)
        return -1;
    while (s->first && s->first->frame.number <= number) {
        struct outgoing *o = s->first;
        if (o == s->next)
            break;
        s->first = o->next;
        if (!s->first)
            s->last = NULL;
        s->kept -= o->frame.length;
        outgoing_free(o);
    }
    return 0;
}

/* ---- frames that arrive: only the receiver runs these ---- */

size_t session_buffered(const struct session *s) { return s->end - s->begin; }

int session_read(struct session *s, void *to, size_t length) {
    unsigned char *at = to;
    while (length) {
        size_t have = s->end - s->begin;
        if (have) {
            if (have > length)
                have = length;
            memcpy(at, s->buffer + s->begin, have);
            s->begin += have;
            at += have;
            length -= have;
            continue;
        }
        int direct = length >= SPARE_LIMIT;
        ssize_t n = recv(s->descriptor, direct ? at : s->buffer, direct ? length : BUFFER, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            session_broken(s, n ? strerror(errno) : "closed by the other side");
            return -1;
        }
        clock_gettime(CLOCK_MONOTONIC, &s->heard);
        if (direct) {
            at += n;
            length -= n;
        } else {
            s->begin = 0;
            s->end = n;
        }
    }
    return 0;
}

/* Looks on for the next frame. What else may come of it, session_read() finds. */
static void look_on(struct session *s) {
    ssize_t n;
    if (s->begin < s->end || !looking_begins(&s->looking))
        return;
    do
        n = recv(s->descriptor, s->buffer, BUFFER, MSG_DONTWAIT);
    while (n < 0 && errno == EAGAIN && looking_goes_on(&s->looking));
    looking_ends(&s->looking);
    if (n > 0) {
        clock_gettime(CLOCK_MONOTONIC, &s->heard);
        s->begin = 0;
        s->end = n;
    }
}

int session_skip(struct session *s, size_t length) {
    unsigned char waste[4096];
    while (length) {
        size_t part = length < sizeof waste ? length : sizeof waste;
        if (session_read(s, waste, part))
            return -1;
        length -= part;
    }
    return 0;
}

static int take_control(struct session *s, const struct frame *frame) {
    if (frame->length > CONTROL_LIMIT) {
        session_broken(s, "a control frame is too long");
        return -1;
    }
    unsigned char *data = malloc(frame->length + 1);
    if (!data || session_read(s, data, frame->length)) {
        free(data);
        return -1;
    }
    struct event event = {.kind = EVENT_CONTROL, .tid = frame->tid, .control = frame->kind, .flags = frame->flags,
                          .number = frame->number, .length = frame->length};
    pthread_mutex_lock(&s->lock);
    if (frame->flags & FRAME_BARRIER)
        s->held++;
    s->received = frame->number;
    add_event(s, &event, data);
    while (!s->stopping && (s->held || s->events_count >= EVENTS_LIMIT))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    free(data);
    return 0;
}

static int take_frame(struct session *s) {
    struct frame frame;
    look_on(s);
    if (session_read(s, &frame, sizeof frame))
        return -1;
    if (frame.length > FRAME_LIMIT || (!frame.number && frame.length)) {
        session_broken(s, "a frame of senseless length");
        return -1;
    }
    pthread_mutex_lock(&s->lock);
    s->frames_in++;
    s->carried += sizeof frame + frame.length;
    if (s->broken) {        /* what is dropped now comes again */
        pthread_mutex_unlock(&s->lock);
        return -1;
    }
    int resume = frame.kind == FRAME_RESUME;
    int bad = resume != !s->ready;      /* RESUME comes first, and once */
    if (!bad)
        bad = acknowledge(s, frame.acknowledged);
    if (!bad && resume) {
        /* What the other side lacks is sent again: it is all kept, for only what it had was let go. */
        for (s->next = s->first; s->next && s->next->frame.number <= frame.acknowledged; s->next = s->next->next)
            ;
        s->ready = 1;
        s->later = 1;
        plain_event(s, EVENT_CONNECTED, "");
        pthread_cond_broadcast(&s->changed);
    }
    if (!bad && frame.number && frame.number != s->received + 1 && frame.number > s->received)
        bad = 1;
    int seen = frame.number && frame.number <= s->received;
    if (bad)
        note_broken(s, "a frame out of order");
    pthread_mutex_unlock(&s->lock);
    if (bad)
        return -1;
    if (!frame.number)
        return 0;
    if (seen)
        return session_skip(s, frame.length);
    if (frame.kind >= FRAME_CONTROL)
        return take_control(s, &frame);
    if (s->handler(s->owner, s, &frame))
        return -1;
    return 0;
}

static void *receive_loop(void *argument) {
    struct session *s = argument;
    pthread_setname_np(pthread_self(), "link-receive");
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->fresh < 0 && !s->stopping)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->stopping) {
            pthread_mutex_unlock(&s->lock);
            return NULL;
        }
        s->descriptor = s->fresh;
        s->fresh = -1;
        s->broken = s->ready = 0;
        s->reason[0] = 0;
        s->begin = s->end = 0;
        int descriptor = s->descriptor;
        uint64_t received = s->received;
        clock_gettime(CLOCK_MONOTONIC, &s->heard);
        s->silent = 0;
        pthread_mutex_unlock(&s->lock);

        pthread_mutex_lock(&s->sending);
        int failed = send_bare(s, descriptor, FRAME_RESUME, received);
        pthread_mutex_unlock(&s->sending);
        if (failed)
            session_broken(s, strerror(errno));
        while (!failed)
            failed = take_frame(s);

        pthread_mutex_lock(&s->lock);
        note_broken(s, "protocol error");
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_lock(&s->sending);        /* nobody writes to it any more */
        pthread_mutex_lock(&s->lock);
        close(s->descriptor);
        s->descriptor = -1;
        if (!s->stopping && s->fresh < 0)
            plain_event(s, EVENT_CONNECTION_LOST, s->reason);
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_unlock(&s->sending);
    }
}

/* Milliseconds until something may be due; the lock is held. */
static long patience(const struct session *s) {
    long left = SIGN_OF_LIFE;
    if (s->ready && left > SIGN_OF_LIFE - milliseconds_since(&s->spoken))
        left = SIGN_OF_LIFE - milliseconds_since(&s->spoken);
    if (s->descriptor >= 0 && s->silence && !s->silent && !s->held && left > s->silence - milliseconds_since(&s->heard))
        left = s->silence - milliseconds_since(&s->heard);
    if (s->silent && left > LOOK)
        left = LOOK;
    return left < LEAST_WAIT ? LEAST_WAIT : left + 1;
}

/* Sends what others may not wait for, and once a second a sign of life; notices the other side's silence. */
static void *send_loop(void *argument) {
    struct session *s = argument;
    pthread_setname_np(pthread_self(), "link-send");
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        if (!s->later) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += patience(s) * 1000000L;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&s->changed, &s->lock, &until);
        }
        int work = s->later, descriptor = s->descriptor, ready = s->ready;
        s->later = 0;
        if (!work && descriptor >= 0 && s->silence && !s->silent && !s->held && milliseconds_since(&s->heard) > s->silence) {
            s->silent = 1;
            plain_event(s, EVENT_SILENT, "");
        } else if (s->silent && milliseconds_since(&s->heard) <= s->silence) {
            s->silent = 0;
            plain_event(s, EVENT_HEARD, "");
        }
        uint64_t received = s->received;
        pthread_mutex_unlock(&s->lock);
        if (work)
            drain(s, 1);
        else if (ready && milliseconds_since(&s->spoken) >= SIGN_OF_LIFE && !pthread_mutex_trylock(&s->sending)) {
            pthread_mutex_lock(&s->lock);
            ready = s->ready && s->descriptor == descriptor;
            pthread_mutex_unlock(&s->lock);
            if (ready && send_bare(s, descriptor, FRAME_HEARTBEAT, received))
                session_broken(s, strerror(errno));
            pthread_mutex_unlock(&s->sending);
            drain(s, 1);    /* what was posted meanwhile counted on us */
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int session_attach(struct session *s, int descriptor) {
    int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);   /* not a TCP socket in tests: then it fails */
    pthread_mutex_lock(&s->lock);
    if (s->fresh >= 0)
        close(s->fresh);
    s->fresh = descriptor;
    note_broken(s, "replaced by a new connection");
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

void session_detach(struct session *s) {
    pthread_mutex_lock(&s->lock);
    if (s->fresh >= 0)
        close(s->fresh);
    s->fresh = -1;
    note_broken(s, "detached");
    pthread_mutex_unlock(&s->lock);
}

/* Lets go of one barrier: later frames are handled again. */
void session_release(struct session *s) {
    pthread_mutex_lock(&s->lock);
    if (s->held)
        s->held--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void session_set_silence(struct session *s, int milliseconds) { s->silence = milliseconds; }

int session_flush(struct session *s, int milliseconds) {
    struct timespec begin, pause = {0, 500000};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        int waiting = s->next != NULL;
        pthread_mutex_unlock(&s->lock);
        if (!waiting)
            return 0;
        if (milliseconds_since(&begin) > milliseconds)
            return -ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
}

/* 0: bytes kept for sending again; 1, 2: frames in, out; 3: connected; 4: last number received; 5: bytes in and out. */
uint64_t session_statistic(struct session *s, int which) {
    pthread_mutex_lock(&s->lock);
    uint64_t values[] = {s->kept, s->frames_in, s->frames_out, s->ready, s->received, s->carried};
    uint64_t value = which >= 0 && which < 6 ? values[which] : 0;
    pthread_mutex_unlock(&s->lock);
    return value;
}

/* A handler has the whole body of this frame: from here on it counts as received. */
void session_accept(struct session *s, const struct frame *frame) {
    pthread_mutex_lock(&s->lock);
    s->received = frame->number;
    pthread_mutex_unlock(&s->lock);
}

struct session *session_new(session_handler handler, void *owner, int event_fd) {
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->handler = handler;
    s->owner = owner;
    s->event_fd = event_fd;
    s->descriptor = s->fresh = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->sending, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attributes);
    if (pthread_create(&s->receiver, NULL, receive_loop, s)) {
        free(s);
        return NULL;
    }
    if (pthread_create(&s->sender, NULL, send_loop, s)) {
        s->stopping = 1;
        pthread_cond_broadcast(&s->changed);
        pthread_join(s->receiver, NULL);
        free(s);
        return NULL;
    }
    return s;
}

/* Ends the threads; frames that were not acknowledged are gone with it. */
void session_free(struct session *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = 1;
    if (s->fresh >= 0)
        close(s->fresh);
    s->fresh = -1;
    note_broken(s, "closed");
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->receiver, NULL);
    pthread_join(s->sender, NULL);
    while (s->first) {
        struct outgoing *next = s->first->next;
        outgoing_free(s->first);
        s->first = next;
    }
    while (s->events) {
        struct queued_event *next = s->events->next;
        free(s->events);
        s->events = next;
    }
    free(s);
}
