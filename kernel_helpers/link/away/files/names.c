/* Names of home that are remembered: see names.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "link/away/files/names.h"
#include "link/marshal/data_area.h"
#include "link/paths.h"
#include "process/guest_memory.h"

#define MOST 4096u              /* names, a power of two */
#define WAYS 4u                 /* places for each hash */
#define LASTS 60                /* seconds */
#define UNUSED 4u               /* programs of which no guest is here now */

struct entry {
	char *path;             /* NULL: none */
	uint64_t scope;
	uint64_t hash;
	int64_t until;          /* CLOCK_MONOTONIC, seconds */
	uint32_t kind, follows, count, length;
	struct dependency *on;  /* count of them, and `length` bytes behind; with the path one piece of memory */
};

struct shared_names {
	struct shared_names *next;
	uint64_t program, position; /* of home; all that was recalled up to here is forgotten */
	unsigned users;
	uint64_t answered; /* calls */
	struct entry entries[MOST];
	unsigned turn;
};

/* All of this program, each of another program of a home. */
pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_names *all;
uint64_t names_last_own;

static int64_t seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return now.tv_sec;
}

/* ---- with the lock held ---- */

static void forget(struct entry *e)
{
	free(e->on);
	*e = (struct entry){0};
}

static void forget_all(struct shared_names *s)
{
	for (unsigned i = 0; i < MOST; i++)
		forget(&s->entries[i]);
}

static uint64_t hash_of(uint64_t scope, const char *path)
{
	uint64_t hash = 14695981039346656037u ^ scope;
	for (; *path; path++)
		hash = (hash ^ (unsigned char)*path) * 1099511628211u;
	return hash ^ hash >> 32;
}

/* follows: whether a link at the end is to be followed. NULL: nothing is known. */
static struct entry *find(struct shared_names *s, uint64_t scope, const char *path, int follows)
{
	uint64_t hash = hash_of(scope, path);
	for (unsigned i = 0; i < WAYS; i++) {
		struct entry *e = &s->entries[(hash + i) % MOST];
		if (e->path && e->hash == hash && e->scope == scope && e->follows >> follows & 1 && !strcmp(e->path, path)) {
			if (seconds() <= e->until)
				return e;
			forget(e);
		}
	}
	return NULL;
}

/* A place for a name: its former one, a free one, or that of another. */
static struct entry *place(struct shared_names *s, uint64_t hash)
{
	for (unsigned i = 0; i < WAYS; i++)
		if (!s->entries[(hash + i) % MOST].path)
			return &s->entries[(hash + i) % MOST];
	struct entry *e = &s->entries[(hash + s->turn++ % WAYS) % MOST];
	forget(e);
	return e;
}

static struct shared_names *of_program(uint64_t program)
{
	for (struct shared_names *s = all; s; s = s->next)
		if (s->program == program) {
			s->users++;
			return s;
		}
	struct shared_names *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->program = program;
	s->users = 1;
	s->next = all;
	all = s;
	return s;
}

/* Another guest of that program may come: it stays, unless there are many of which none has. */
static void leave(struct shared_names *s)
{
	unsigned unused = 0;
	if (!s || --s->users)
		return;
	for (struct shared_names **at = &all, *one; (one = *at);) {
		if (one->users || ++unused <= UNUSED) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		forget_all(one);
		free(one);
	}
}

/* ---- what a call asks ---- */

struct question {
	enum { STATUS = 1, ACCESS, LINK, OPEN, EXTENDED } what;
	struct named_path path;
	uint64_t to, size;
};

#define STATUS_FLAGS (uint64_t)(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH)
#define OPEN_FLAGS (uint64_t)(O_ACCMODE | O_CLOEXEC | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_NOCTTY | O_APPEND | O_LARGEFILE | 0100000)

/* What is asked, and by which arguments behind the path; 0: nothing that can be answered. */
static int what(struct question *q, long number, const uint64_t *rest)
{
	switch (number) {
	case SYS_stat:
	case SYS_lstat:
		q->to = rest[0];
		return STATUS;
	case SYS_newfstatat:
		q->to = rest[0];
		return rest[1] & ~STATUS_FLAGS ? 0 : STATUS;
	case SYS_statx:
		return rest[0] & ~STATUS_FLAGS || rest[1] & STATX__RESERVED ? 0 : EXTENDED;
	case SYS_access:
	case SYS_faccessat:
		q->to = rest[0];
		return rest[0] & ~(uint64_t)(R_OK | W_OK | X_OK) ? 0 : ACCESS;
	case SYS_readlink:
	case SYS_readlinkat:
		q->to = rest[0], q->size = (uint32_t)rest[1];
		return (int)rest[1] > 0 ? LINK : 0;
	case SYS_open:
	case SYS_openat:
		return rest[0] & ~OPEN_FLAGS || (rest[0] & O_ACCMODE) == O_ACCMODE ? 0 : OPEN;
	}
	return 0;
}

/* Whether it is one about a path that can be answered, if the path is known. */
static int asks(struct question *q, long number, const uint64_t a[6])
{
	*q = (struct question){0};
	if (!call_names_path(number, a, &q->path))
		return 0;
	q->what = what(q, number, a + q->path.argument + 1);
	return q->what != 0;
}

int names_want(long number, const uint64_t arguments[6])
{
	struct question q;
	return asks(&q, number, arguments);
}

static int give(int host_tid, uint64_t address, const void *data, size_t length)
{
	struct iovec here = {(void *)data, length}, there = {(void *)address, length};
	return guest_memory_writev(host_tid, &here, 1, &there, 1) == (ssize_t)length;
}

static int reply(const struct entry *e, const struct question *q, int host_tid, int64_t *value)
{
	const char *bytes = (const char *)(e->on + e->count);
	if (e->kind == NAME_ABSENT) {
		*value = -ENOENT;
		return 1;
	}
	if (e->kind != NAME_LINK && q->what == LINK) {
		*value = -EINVAL;
		return 1;
	}
	*value = 0;
	if (e->kind == NAME_STATUS && q->what == STATUS)
		return give(host_tid, q->to, bytes, e->length);
	if (e->kind == NAME_STATUS && q->what == ACCESS)
		return q->to == F_OK;
	if (e->kind != NAME_LINK || q->what != LINK)
		return 0;
	*value = e->length < q->size ? e->length : (uint32_t)q->size;
	return give(host_tid, q->to, bytes, (size_t)*value);
}

/* For whom a path is meant: one that begins at the working directory for the guest alone, as long as that is the same. */
static uint64_t scope_of(const struct names *n, const char *path)
{
	return *path == '/' ? n->scope : n->scope ^ n->own * 0x9e3779b97f4a7c15u;
}

int names_answer(struct names *n, int host_tid, long number, const uint64_t arguments[6], int64_t *value, int *wants)
{
	struct question q;
	char path[PATH_ROOM + 1];
	*wants = asks(&q, number, arguments);
	if (!*wants || !n->scope || guest_string(host_tid, arguments[q.path.argument], path, PATH_ROOM - 1) <= 0)
		return 0;
	if (*path != '/' && q.path.is_relative && (int)arguments[0] != AT_FDCWD)
		return 0;
	pthread_mutex_lock(&names_lock);
	struct entry *e = n->shared ? find(n->shared, scope_of(n, path), path, q.path.follows) : NULL;
	int is = e && reply(e, &q, host_tid, value);
	if (is)
		n->shared->answered++;
	pthread_mutex_unlock(&names_lock);
	return is;
}

/* With the lock held: whose numbers they are, and that all was forgotten which was recalled before anything was sent to the guest. 0: there
 * is no memory. */
static int follow(struct names *n, uint64_t program, uint64_t since)
{
	if (!n->shared || n->shared->program != program) {
		leave(n->shared);
		n->shared = of_program(program);
	}
	if (!n->shared)
		return 0;
	if (since > n->shared->position) {
		forget_all(n->shared);
		n->shared->position = since;
	}
	return 1;
}

static void hear(struct names *n, const struct name_answer *a)
{
	if (!n->own)
		n->own = ++names_last_own;
	n->scope = a->scope;
}

static void put(struct names *n, const char *path, const struct name_answer *a)
{
	struct shared_names *s = n->shared;
	uint64_t scope = scope_of(n, path), hash = hash_of(scope, path);
	size_t on = a->count * sizeof(struct dependency), text = strlen(path) + 1;
	if (a->as_of < s->position)
		return; /* something that it depends on may have been recalled meanwhile */
	s->position = a->as_of;
	struct dependency *copy = malloc(on + a->length + text);
	if (!copy)
		return;
	memcpy(copy, a + 1, on + a->length);
	memcpy((char *)copy + on + a->length, path, text);
	struct entry *e = find(s, scope, path, a->follows & 2 ? 1 : 0);
	if (e)
		forget(e);
	e = place(s, hash);
	e->on = copy;
	e->path = (char *)copy + on + a->length;
	e->scope = scope, e->hash = hash, e->until = seconds() + LASTS;
	/* The entry has it: the analyzer of gcc 12 takes it for lost when the table is of memory that others allocate. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
	e->kind = a->kind, e->follows = a->follows, e->count = a->count, e->length = a->length;
#pragma GCC diagnostic pop
}

int names_put(struct names *n, const char *path, const struct name_answer *a, size_t size)
{
	if (size < sizeof *a || a->count > DEPENDENCIES_LIMIT || a->kind < NAME_ABSENT || a->kind > NAME_NO_LINK || !a->scope ||
	    a->length > PATH_ROOM || size != sizeof *a + a->count * sizeof(struct dependency) + a->length ||
	    (a->kind == NAME_STATUS && a->length != ATTRIBUTES_SIZE))
		return -1;
	pthread_mutex_lock(&names_lock);
	if (follow(n, a->program, a->since)) {
		hear(n, a);
		put(n, path, a);
	}
	pthread_mutex_unlock(&names_lock);
	return 0;
}

/* What was sent to others of the program already is not gone through again. */
int names_recall(struct names *n, const struct recall *r, size_t size)
{
	const struct dependency *changed = (const struct dependency *)(r + 1);
	if (size < sizeof *r || r->count > RECALLED_LIMIT || size != sizeof *r + r->count * sizeof *changed)
		return -1;
	pthread_mutex_lock(&names_lock);
	struct shared_names *s = follow(n, r->program, r->from) ? n->shared : NULL;
	uint64_t first = s && r->position - r->from == r->count ? s->position - r->from : 0; /* else it is everything */
	for (unsigned i = 0; s && i < MOST; i++)
		for (uint64_t k = first; k < r->count && s->entries[i].path; k++)
			if (dependencies_have(s->entries[i].on, s->entries[i].count, &changed[k]))
				forget(&s->entries[i]);
	if (s && r->position > s->position)
		s->position = r->position;
	pthread_mutex_unlock(&names_lock);
	return 0;
}

void names_count(struct names *n, uint64_t *program, uint64_t *known, uint64_t *answered)
{
	pthread_mutex_lock(&names_lock);
	*program = n->shared ? n->shared->program : 0;
	*answered = n->shared ? n->shared->answered : 0;
	*known = 0;
	for (unsigned i = 0; n->shared && i < MOST; i++)
		*known += n->shared->entries[i].path != NULL;
	pthread_mutex_unlock(&names_lock);
}

void names_free(struct names *n)
{
	pthread_mutex_lock(&names_lock);
	leave(n->shared);
	n->shared = NULL;
	pthread_mutex_unlock(&names_lock);
}
