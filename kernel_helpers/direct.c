/* Which numbers of a guest are direct, and what calls do to that: see direct.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "area.h"
#include "direct.h"

#define MOST 4096               /* numbers; greater ones are not direct */
#define EAGER_ABOUT_OTHERS 16   /* times as many reads of a file that the guest has not opened here: home has to look who else has it */
#define REFUSED 2000            /* reads until home is asked again about what it has refused; twice as many each time, so often: */
#define DOUBLED 10
#define FARTHEST (1ll << 42)    /* bytes: file systems differ in what is too far */
#define ALL 0, ~0u
#define POSITIONS 84            /* Control.POSITIONS of wire/control.py */

enum state { PLAIN, ASKED, OPEN, DIRECT };

struct direct_file {
    uint8_t state;
    uint8_t is_own;             /* opened here, and nobody else has it */
    uint8_t refused;            /* how often */
    int reads;                  /* that went home */
    uint32_t serial;            /* of the question about it */
    int file;                   /* OPEN, DIRECT: ours */
};

struct direct {
    pthread_mutex_t lock;
    int nothing;                /* what the guest has in place of a file that it has no more */
    int eager;
    unsigned top;               /* beyond it nothing is known of any number */
    uint32_t serial;
    struct direct_file files[MOST];
};

struct direct *direct_new(unsigned eager) {
    struct direct *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    pthread_mutex_init(&d->lock, NULL);
    d->eager = eager;
    d->nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);  /* it cannot be read; what is O_PATH cannot be given */
    if (d->nothing >= 0)
        return d;
    free(d);
    return NULL;
}

void direct_free(struct direct *d) {
    for (unsigned i = 0; i < MOST; i++)
        if (d->files[i].state >= OPEN)
            close(d->files[i].file);
    close(d->nothing);
    free(d);
}

static void forget(struct direct_file *f) {
    if (f->state >= OPEN)
        close(f->file);
    *f = (struct direct_file){.state = PLAIN};
}

/* The guest's thread puts it there itself, before it goes on waiting. */
static void take_from_guest(struct direct *d, const struct direct_call *call, unsigned descriptor) {
    struct seccomp_notif_addfd give = {.id = call->id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .srcfd = d->nothing, .newfd = descriptor,
                                       .newfd_flags = O_CLOEXEC};
    while (ioctl(call->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &give) < 0 && errno == EINTR)
        ;
}

/* The numbers from first to last mean home's descriptors again, whose positions home is told before it hears of the call. */
static void give_up(struct direct *d, const struct direct_call *call, unsigned first, unsigned last) {
    for (unsigned i = first; i <= last && i < d->top; i++) {
        struct direct_file *f = &d->files[i];
        if (f->state == DIRECT) {
            struct direct_position told = {i, lseek(f->file, 0, SEEK_CUR)};
            session_control(call->session, POSITIONS, FRAME_BARRIER, 0, &told, sizeof told);
            take_from_guest(d, call, i);
        }
        forget(f);
    }
    if (!first && last >= d->top)
        d->top = 0;
}

static void give_up_one(struct direct *d, const struct direct_call *call, uint64_t descriptor) {
    if ((unsigned)descriptor < MOST)
        give_up(d, call, (unsigned)descriptor, (unsigned)descriptor);
}

/* Whether a message may have descriptors with it. */
static int has_control(const struct direct_call *call) {
    struct msghdr message;
    return guest_read(call->host_tid, call->arguments[1], &message, sizeof message) || message.msg_controllen;
}

/* A call that does not read: whatever it may do to a number, or to the position that the number stands for, ends its being direct. */
static void pass(struct direct *d, const struct direct_call *call) {
    const uint64_t *a = call->arguments;
    switch (call->number) {
    case SYS_close:
        if ((unsigned)a[0] < MOST && d->files[(unsigned)a[0]].state == DIRECT)
            take_from_guest(d, call, a[0]);
        if ((unsigned)a[0] < MOST)
            forget(&d->files[(unsigned)a[0]]);
        break;
    case SYS_fcntl:
        if ((int)a[1] != F_GETFD && (int)a[1] != F_SETFD && (int)a[1] != F_GETFL)
            give_up_one(d, call, a[0]);
        break;
    case SYS_mmap:
        if (!(a[3] & MAP_ANONYMOUS))
            give_up_one(d, call, a[4]);     /* the number is needed for what is mapped */
        break;
    case SYS_dup: case SYS_ioctl: case SYS_preadv2: case SYS_lseek:
        give_up_one(d, call, a[0]);
        break;
    case SYS_dup2: case SYS_dup3: case SYS_sendfile: case SYS_tee:
        give_up_one(d, call, a[0]);
        give_up_one(d, call, a[1]);
        break;
    case SYS_splice: case SYS_copy_file_range:
        give_up_one(d, call, a[0]);
        give_up_one(d, call, a[2]);
        break;
    case SYS_close_range:
        give_up(d, call, (unsigned)a[0], (unsigned)a[1]);
        break;
    case SYS_sendmsg:
        if (has_control(call))
            give_up(d, call, ALL);
        break;
    case SYS_sendmmsg: case SYS_fork: case SYS_vfork: case SYS_clone: case SYS_clone3: case SYS_execve: case SYS_execveat: case SYS_unshare:
        give_up(d, call, ALL);
    }
}

static int reads(const struct direct_call *call) {
    const uint64_t *a = call->arguments;
    switch (call->number) {
    case SYS_read: case SYS_readv: case SYS_pread64: case SYS_preadv:
        return 1;
    case SYS_lseek:
        return (int64_t)a[1] < FARTHEST;
    case SYS_preadv2:
        return !a[5];
    }
    return 0;
}

static struct direct_file *known(struct direct *d, unsigned descriptor) {
    if (descriptor >= d->top)
        d->top = descriptor + 1;
    return &d->files[descriptor];
}

/* Home is asked about a file that is read again and again: what it takes to make it direct is worth several calls. */
static enum direct_verdict count(struct direct *d, struct direct_file *f) {
    if (++f->reads < d->eager * (f->is_own ? 1 : EAGER_ABOUT_OTHERS))
        return DIRECT_NOT;
    f->state = ASKED;
    f->serial = ++d->serial;
    return f->is_own ? DIRECT_WANTED_OWN : DIRECT_WANTED;
}

enum direct_verdict direct_take(struct direct *d, const struct direct_call *call, struct direct_question *question) {
    enum direct_verdict verdict = DIRECT_NOT;
    uint32_t number = call->arguments[0];
    pthread_mutex_lock(&d->lock);
    if (!call->is_alone)
        give_up(d, call, ALL);
    else if (!reads(call))
        pass(d, call);
    else if (number < MOST) {
        struct direct_file *f = known(d, number);
        if (f->state == DIRECT)
            verdict = DIRECT_HERE;
        else if (f->state == OPEN)
            verdict = DIRECT_OPEN;
        else if (f->state == PLAIN && call->number != SYS_lseek)
            verdict = count(d, f);
        *question = (struct direct_question){(int32_t)number, f->serial};
    }
    pthread_mutex_unlock(&d->lock);
    return verdict;
}

void direct_answered(struct direct *d, long number, int64_t value) {
    if (value < 0 || value >= MOST || (number != SYS_open && number != SYS_openat && number != SYS_openat2 && number != SYS_creat))
        return;
    pthread_mutex_lock(&d->lock);
    struct direct_file *f = known(d, (unsigned)value);
    forget(f);
    f->is_own = 1;
    pthread_mutex_unlock(&d->lock);
}

/* With the lock held; NULL: it is no such number any more. */
static struct direct_file *asked_about(struct direct *d, int descriptor, uint32_t serial, enum state state) {
    pthread_mutex_lock(&d->lock);
    struct direct_file *f = (unsigned)descriptor < MOST ? &d->files[descriptor] : NULL;
    if (f && f->serial == serial && f->state == state)
        return f;
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int direct_refuse(struct direct *d, int descriptor, uint32_t serial) {
    struct direct_file *f = asked_about(d, descriptor, serial, ASKED);
    if (!f)
        f = asked_about(d, descriptor, serial, OPEN);
    if (!f)
        return -ENOENT;
    struct direct_file before = *f;
    forget(f);
    *f = (struct direct_file){.is_own = before.is_own, .refused = before.refused + (before.refused < DOUBLED),
                              .reads = -(REFUSED << before.refused)};
    pthread_mutex_unlock(&d->lock);
    return 0;
}

int direct_opened(struct direct *d, int descriptor, uint32_t serial, int file) {
    struct direct_file *f = asked_about(d, descriptor, serial, ASKED);
    if (!f) {
        close(file);
        return -ENOENT;
    }
    f->state = OPEN;
    f->file = file;
    pthread_mutex_unlock(&d->lock);
    return 0;
}

int direct_file(struct direct *d, int descriptor, uint32_t serial) {
    struct direct_file *f = asked_about(d, descriptor, serial, OPEN);
    int file = f ? f->file : -ENOENT;
    if (f)
        pthread_mutex_unlock(&d->lock);
    return file;
}

int direct_given(struct direct *d, int descriptor, uint32_t serial) {
    struct direct_file *f = asked_about(d, descriptor, serial, OPEN);
    if (!f)
        return -ENOENT;
    f->state = DIRECT;
    pthread_mutex_unlock(&d->lock);
    return 0;
}

unsigned direct_positions(struct direct *d, struct direct_position *list, unsigned room) {
    unsigned found = 0;
    pthread_mutex_lock(&d->lock);
    for (unsigned i = 0; i < d->top && found < room; i++)
        if (d->files[i].state == DIRECT)
            list[found++] = (struct direct_position){i, lseek(d->files[i].file, 0, SEEK_CUR)};
    pthread_mutex_unlock(&d->lock);
    return found;
}

unsigned direct_own(struct direct *d, uint32_t *list, unsigned room) {
    unsigned found = 0;
    pthread_mutex_lock(&d->lock);
    for (unsigned i = 0; i < d->top && found < room; i++)
        if (d->files[i].is_own)
            list[found++] = i;
    pthread_mutex_unlock(&d->lock);
    return found;
}

void direct_set_own(struct direct *d, int descriptor) {
    pthread_mutex_lock(&d->lock);
    if ((unsigned)descriptor < MOST)
        known(d, (unsigned)descriptor)->is_own = 1;
    pthread_mutex_unlock(&d->lock);
}
