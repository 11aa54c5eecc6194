/* Which numbers of a guest are direct, and what calls do to that: see direct_files.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "link/marshal/data_area.h"
#include "link/away/direct/direct_spans.h"
#include "link/away/files/giving.h"

#define MOST 4096               /* numbers; greater ones are not direct */
#define EAGER_ABOUT_OTHERS 16   /* times as many reads of a file that the guest has not opened here: home has to look who else has it */
#define REFUSED 2000            /* reads until home is asked again about what it has refused; twice as many each time, so often: */
#define DOUBLED 10
#define NEAR (1ll << 34)        /* bytes: a position up to here, or in the file, no file system refuses */
#define POSITIONS 84            /* Control.POSITIONS of wire/control.py */

enum state { PLAIN, ASKED, OPEN, DIRECT };

struct direct_file {
	uint8_t state;
	uint8_t is_own;             /* opened here, and nobody else has it */
	uint8_t refused;            /* how often */
	uint8_t ending;             /* DIRECT: it is to be home's again as soon as nobody reads it */
	uint8_t is_shared;          /* OPEN, DIRECT: its position is, and stays at home: only what names its place is read here */
	uint8_t by_place;           /* some of the reads did */
	int reads;                  /* that went home */
	uint32_t serial;            /* of the question about it */
	int file;                   /* OPEN, DIRECT: ours */
	unsigned inside;            /* threads that the guest's kernel lets read it, or did last */
	unsigned forwarded;         /* those for whom home reads it */
};

struct direct {
	pthread_mutex_t lock;
	int nothing;                /* what the guest has in place of a file that it has no more */
	int eager;
	unsigned top;               /* beyond it nothing is known of any number */
	unsigned passing; /* threads in calls that may share a position, or give numbers another meaning: no number becomes direct */
	uint32_t serial;
	uint32_t moment; /* how often numbers were given another meaning */
	struct direct_file files[MOST];
};

struct direct *direct_new(unsigned eager)
{
	struct direct *d = calloc(1, sizeof *d);
	if (!d)
		return NULL;
	pthread_mutex_init(&d->lock, NULL);
	d->eager = eager;
	d->nothing = open("/dev/null", O_WRONLY | O_CLOEXEC); /* it cannot be read; what is O_PATH cannot be given */
	if (d->nothing >= 0)
		return d;
	free(d);
	return NULL;
}

void direct_free(struct direct *d)
{
	for (unsigned i = 0; i < MOST; i++)
		if (d->files[i].state >= OPEN)
			close(d->files[i].file);
	close(d->nothing);
	free(d);
}

static void forget(struct direct_file *f)
{
	if (f->state >= OPEN)
		close(f->file);
	*f = (struct direct_file){.state = PLAIN, .inside = f->inside, .forwarded = f->forwarded};
}

/* The numbers mean home's descriptors again, whose positions home gets before it hears of the call. */
static void give_up(struct direct *d, const struct direct_call *call, struct span span)
{
	for (unsigned i = span.first; i <= span.last && i < d->top; i++) {
		struct direct_file *f = &d->files[i];
		if (f->state == DIRECT) {
			struct direct_position last = {i, lseek(f->file, 0, SEEK_CUR)};
			if (call->number != SYS_close && !f->is_shared)
				session_control(call->session, POSITIONS, FRAME_BARRIER, 0, &last, sizeof last);
			give_file(call->listener, call->id, d->nothing, i);
		}
		forget(f);
	}
}

/* Whether another thread reads one of them; none begins to any more then. */
static int is_busy(struct direct *d, struct span span)
{
	int busy = 0;
	for (unsigned i = span.first; i <= span.last && i < d->top; i++)
		if (d->files[i].state == DIRECT && d->files[i].inside)
			busy = d->files[i].ending = 1;
	return busy;
}

static enum direct_verdict pass(struct direct *d, const struct direct_call *call)
{
	struct span spans[2];
	unsigned count = direct_touched(call, spans);
	if (count && (is_busy(d, spans[0]) | is_busy(d, spans[count - 1])))
		return DIRECT_BUSY;
	for (unsigned i = 0; i < count; i++)
		give_up(d, call, spans[i]);
	d->moment += count;
	d->passing += call->thread->passes = count > 0;
	return DIRECT_NOT;
}

/* Whether a call sets the position of a direct file so far away that only home's file system knows whether it may be there. */
static int goes_far(const struct direct_file *f, const struct direct_call *call)
{
	int64_t by = (int64_t)call->arguments[1];
	unsigned from = (unsigned)call->arguments[2];
	struct statx known;
	if (call->number != SYS_lseek || f->state != DIRECT || f->is_shared || by <= 0 || from > SEEK_END)
		return 0;
	if (from == SEEK_END || (from == SEEK_CUR && __builtin_add_overflow(by, lseek(f->file, 0, SEEK_CUR), &by)))
		return 1;
	/* It may have been as large as what is remembered, if it is not: nobody is asked. */
	return by > NEAR && (statx(f->file, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &known) || by > (int64_t)known.stx_size);
}

static struct direct_file *known(struct direct *d, unsigned descriptor)
{
	if (descriptor >= d->top)
		d->top = descriptor + 1;
	return &d->files[descriptor];
}

/* A read that goes home. Home is asked about a file that is read again and again: what it takes to make it direct is worth several calls.
 * The same about one whose position was shared, if it is read by that: it may not be any more. */
static enum direct_verdict count(struct direct *d, const struct direct_call *call, unsigned number)
{
	struct direct_file *f = &d->files[number];
	unsigned refused = f->refused;
	if (f->reads + 1 < d->eager * (f->is_own ? 1 : EAGER_ABOUT_OTHERS)) {
		f->reads++;
		return DIRECT_NOT;
	}
	if (f->state == DIRECT) {
		if (f->inside)
			return DIRECT_NOT;
		give_up(d, call, direct_span(number));
		f->refused = refused;
		f->by_place = 1;
	}
	f->state = ASKED;
	f->serial = ++d->serial;
	return f->is_own ? DIRECT_WANTED_OWN : DIRECT_WANTED;
}

/* With the lock held: the thread is not in the call any more that it was in last. */
static void leave(struct direct *d, struct direct_thread *t)
{
	if (t->inside)
		d->files[t->inside - 1].inside--;
	if (t->forwarded)
		d->files[t->forwarded - 1].forwarded--;
	d->passing -= t->passes;
	t->inside = t->forwarded = t->passes = 0;
}

static enum direct_verdict take_read(struct direct *d, const struct direct_call *call, unsigned number)
{
	struct direct_file *f = known(d, number);
	if (f->state == DIRECT && f->ending) {
		if (f->inside)
			return DIRECT_BUSY;
		give_up(d, call, direct_span(number));
	}
	int by_place = direct_names_place(call);
	if (f->state == DIRECT && (by_place || !f->is_shared)) {
		f->inside++;
		call->thread->inside = number + 1;
		return DIRECT_HERE;
	}
	/* From the first that waits for home's position on, all do, until the number is direct or means something else: so it stays true. */
	if (f->state == OPEN && (f->is_shared ? by_place : !f->forwarded))
		return DIRECT_OPEN;
	f->forwarded++;
	call->thread->forwarded = number + 1;
	if ((f->state != PLAIN && f->state != DIRECT) || call->number == SYS_lseek || d->passing)
		return DIRECT_NOT;
	f->by_place |= by_place;
	return count(d, call, number);
}

enum direct_verdict direct_take(struct direct *d, const struct direct_call *call, struct direct_question *question)
{
	enum direct_verdict verdict = DIRECT_NOT;
	uint32_t number = call->arguments[0];
	pthread_mutex_lock(&d->lock);
	leave(d, call->thread);
	if (!direct_reads(call) || (number < MOST && goes_far(&d->files[number], call)))
		verdict = pass(d, call);
	else if (number < MOST) {
		verdict = take_read(d, call, number);
		*question = (struct direct_question){(int32_t)number, d->files[number].serial, d->files[number].by_place};
	}
	call->thread->moment = d->moment;
	pthread_mutex_unlock(&d->lock);
	return verdict;
}

void direct_answered(struct direct *d, struct direct_thread *t, long number, int64_t value)
{
	pthread_mutex_lock(&d->lock);
	leave(d, t);
	if (value >= 0 && value < MOST) {
		int opens = number == SYS_open || number == SYS_openat || number == SYS_openat2 || number == SYS_creat;
		if (opens)
			forget(known(d, (unsigned)value));
		if (opens || number == SYS_dup || number == SYS_fcntl)
			known(d, (unsigned)value)->is_own = opens && t->moment == d->moment;
	}
	pthread_mutex_unlock(&d->lock);
}

void direct_leave(struct direct *d, struct direct_thread *t)
{
	pthread_mutex_lock(&d->lock);
	leave(d, t);
	pthread_mutex_unlock(&d->lock);
}

int direct_is_awaited(struct direct *d, const struct direct_thread *t)
{
	pthread_mutex_lock(&d->lock);
	int is = t->inside && d->files[t->inside - 1].ending;
	pthread_mutex_unlock(&d->lock);
	return is;
}

/* With the lock held; NULL: it is no such number any more. */
static struct direct_file *asked_about(struct direct *d, int descriptor, uint32_t serial, enum state state)
{
	pthread_mutex_lock(&d->lock);
	struct direct_file *f = (unsigned)descriptor < MOST ? &d->files[descriptor] : NULL;
	if (f && f->serial == serial && f->state == state)
		return f;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* Until home is asked again, it takes longer each time. */
static void put_off(struct direct_file *f, unsigned refused)
{
	f->refused = refused + (refused < DOUBLED);
	f->reads = -(REFUSED << refused);
}

int direct_refuse(struct direct *d, int descriptor, uint32_t serial)
{
	struct direct_file *f = asked_about(d, descriptor, serial, ASKED);
	if (!f)
		f = asked_about(d, descriptor, serial, OPEN);
	if (!f)
		return -ENOENT;
	struct direct_file before = *f;
	forget(f);
	f->is_own = before.is_own;
	put_off(f, before.refused);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

int direct_opened(struct direct *d, int descriptor, uint32_t serial, int file, int is_shared)
{
	struct direct_file *f = asked_about(d, descriptor, serial, ASKED);
	if (!f) {
		close(file);
		return -ENOENT;
	}
	f->state = OPEN;
	f->file = file;
	f->is_shared = is_shared;
	if (is_shared)
		put_off(f, f->refused);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

int direct_make(struct direct *d, int listener, uint64_t id, int descriptor, uint32_t serial, int64_t position)
{
	struct direct_file *f = asked_about(d, descriptor, serial, OPEN);
	if (!f)
		return -ENOENT;
	int result = lseek(f->file, position, SEEK_SET) < 0 ? -errno : give_file(listener, id, f->file, descriptor);
	if (!result)
		f->state = DIRECT;
	pthread_mutex_unlock(&d->lock);
	return result;
}

unsigned direct_positions(struct direct *d, struct direct_position *list, unsigned room)
{
	unsigned found = 0;
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < d->top && found < room; i++)
		if (d->files[i].state == DIRECT && !d->files[i].is_shared)
			list[found++] = (struct direct_position){i, lseek(d->files[i].file, 0, SEEK_CUR)};
	pthread_mutex_unlock(&d->lock);
	return found;
}

unsigned direct_own(struct direct *d, uint32_t *list, unsigned room)
{
	unsigned found = 0;
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < d->top && found < room; i++)
		if (d->files[i].is_own)
			list[found++] = i;
	pthread_mutex_unlock(&d->lock);
	return found;
}

void direct_set_own(struct direct *d, int descriptor)
{
	pthread_mutex_lock(&d->lock);
	if ((unsigned)descriptor < MOST)
		known(d, (unsigned)descriptor)->is_own = 1;
	pthread_mutex_unlock(&d->lock);
}
