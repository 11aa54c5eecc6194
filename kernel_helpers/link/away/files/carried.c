/* Calls about a file that has just been opened, answered on the node: what carried.h says. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "link/away/files/carried_state.h"
#include "link/marshal/data_area.h"
#include "process/guest_memory.h"

#define LASTS 10000000ll        /* ns: for so long answers are given without a word from home */
#define ENTRY_HEAD 19u         /* bytes of a struct linux_dirent64 before its name */
#define FAR (1ll << 34)         /* bytes: a position up to here no file system refuses */

struct carried *carried_new(struct session *session)
{
	struct carried *c = calloc(1, sizeof *c);
	if (!c || !(c->ahead = malloc(AHEAD_LIMIT))) {
		free(c);
		return NULL;
	}
	pthread_mutex_init(&c->lock, NULL);
	c->session = session;
	return c;
}

void carried_free(struct carried *c)
{
	if (!c)
		return;
	carried_forget(c);
	free(c->ahead);
	free(c);
}

/* ---- what a close of it comes to ---- */

static void note_plain(struct carried *c, int descriptor, uint64_t file)
{
	if (c->plain_count == CARRIED_PLAIN)
		memmove(c->plain, c->plain + 1, --c->plain_count * sizeof *c->plain);
	c->plain[c->plain_count++] = (struct plain){descriptor, file};
}

/* Behind what waits already. */
static void note_effect(struct carried *c, struct effect effect)
{
	c->effect = effect;
	c->effects++;
	if (c->ahead_length)
		ahead_add_effect(c);
}

static int close_one(struct carried *c, int descriptor)
{
	note_effect(c, (struct effect){EFFECT_CLOSE, descriptor, 0});
	if (c->answer && c->descriptor == descriptor)
		carried_forget(c);
	return 0;
}

int carried_closes(struct carried *c, long number, const uint64_t arguments[6], int64_t *value)
{
	if (number != SYS_close || !__atomic_load_n(&c->plain_count, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&c->lock);
	int is = c->effect.kind == EFFECT_NONE && carried_forget_plain(c, (int)arguments[0]);
	if (is)
		*value = close_one(c, (int)arguments[0]);
	pthread_mutex_unlock(&c->lock);
	if (is)
		session_tick(c->session);
	return is;
}

uint64_t carried_file(struct carried *c, int descriptor)
{
	uint64_t file = 0;
	if (!__atomic_load_n(&c->plain_count, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&c->lock);
	for (unsigned i = 0; i < c->plain_count; i++)
		if (c->plain[i].descriptor == descriptor)
			file = c->plain[i].file;
	pthread_mutex_unlock(&c->lock);
	return file;
}

void carried_put(struct carried *c, int descriptor, uint32_t tid, uint64_t as_of, struct carried_answer *answer)
{
	pthread_mutex_lock(&c->lock);
	carried_forget(c);
	c->answer = answer;
	c->descriptor = descriptor;
	carried_forget_plain(c, descriptor);
	note_plain(c, descriptor, answer->file);
	c->tid = tid;
	c->as_of = as_of;
	c->until = monotonic_ns() + LASTS;
	c->position = 0;
	pthread_mutex_unlock(&c->lock);
}

/* ---- with the lock held ---- */

/* Whether nothing has come since. */
static int is_valid(const struct carried *c)
{
	return session_last_received(c->session) == c->as_of && monotonic_ns() < c->until;
}

static struct stat attributes(const struct carried *c)
{
	struct stat status;
	memcpy(&status, c->answer->attributes, sizeof status);
	return status;
}

static const unsigned char *bytes(const struct carried *c)
{
	return (const unsigned char *)(c->answer + 1);
}

/* Whether all of it is the guest's now. */
static int give(int host_tid, uint64_t address, const void *data, size_t length)
{
	struct iovec here = {(void *)data, length}, there = {(void *)address, length};
	return !length || guest_memory_writev(host_tid, &here, 1, &there, 1) == (ssize_t)length;
}

static void move(struct carried *c, int64_t position)
{
	if (position == c->position)
		return;
	c->position = position;
	note_effect(c, (struct effect){EFFECT_POSITION, c->descriptor, position});
}

static int stat_by(struct carried *c, int host_tid, uint64_t address, int64_t *value)
{
	*value = 0;
	return give(host_tid, address, c->answer->attributes, ATTRIBUTES_SIZE);
}

/* A read of `count` bytes from `from` into the guest's memory, if what it gives is here. */
static int read_at(struct carried *c, int host_tid, uint64_t address, uint64_t count, int64_t from, int64_t *value)
{
	const struct carried_answer *a = c->answer;
	struct stat status = attributes(c);
	if (!S_ISREG(status.st_mode) || !a->has_contents || from < 0)
		return 0;
	uint64_t left = from < a->length ? a->length - (uint64_t)from : 0;
	if (!a->is_whole && count > left)
		return 0;
	if (count > left)
		count = left;
	*value = (int64_t)count;
	return give(host_tid, address, bytes(c) + from, count);
}

static int read_on(struct carried *c, int host_tid, uint64_t address, uint64_t count, int64_t *value)
{
	if (!read_at(c, host_tid, address, count, c->position, value))
		return 0;
	move(c, c->position + *value);
	return 1;
}

/* The size of the entry that begins there; 0: there is none, or it cannot be one. */
static uint16_t entry_size(const struct carried_answer *a, uint32_t begin)
{
	uint16_t size = 0;
	if (begin < a->length && a->length - begin > ENTRY_HEAD)
		memcpy(&size, (const unsigned char *)(a + 1) + begin + 16, sizeof size);
	return size > ENTRY_HEAD && size <= a->length - begin ? size : 0;
}

/* The position behind it. */
static int64_t entry_end(const struct carried_answer *a, uint32_t begin)
{
	int64_t offset;
	memcpy(&offset, (const unsigned char *)(a + 1) + begin + 8, sizeof offset);
	return offset;
}

/* As many entries as have room, from the position on. */
static int read_entries(struct carried *c, int host_tid, uint64_t address, uint64_t count, int64_t *value)
{
	const struct carried_answer *a = c->answer;
	uint32_t begin = 0, end;
	int64_t position = 0;
	uint16_t size;
	if (!S_ISDIR(attributes(c).st_mode) || !a->has_contents)
		return 0;
	for (; position != c->position && (size = entry_size(a, begin)); begin += size)
		position = entry_end(a, begin);
	if (position != c->position)
		return 0;
	for (end = begin; (size = entry_size(a, end)) && end + size - begin <= count; end += size)
		position = entry_end(a, end);
	if (end == begin && begin < a->length)
		return 0; /* no room for one: home says so */
	*value = end - begin;
	if (!give(host_tid, address, bytes(c) + begin, end - begin))
		return 0;
	move(c, position);
	return 1;
}

static int seek(struct carried *c, int64_t by, unsigned whence, int64_t *value)
{
	struct stat status = attributes(c);
	int is_file = S_ISREG(status.st_mode);
	if (whence == SEEK_CUR && is_file)
		by += c->position;
	else if (whence == SEEK_CUR && !by)
		by = c->position;
	else if (whence == SEEK_END && is_file)
		by += status.st_size;
	else if (whence != SEEK_SET || (!is_file && by))
		return 0;
	if (by < 0 || by > FAR)
		return 0;
	move(c, by);
	*value = by;
	return 1;
}

static int control(const struct carried *c, int command, int64_t *value)
{
	if (command != F_GETFL)
		return 0;
	*value = c->answer->status_flags;
	return 1;
}

static int is_empty_string(int host_tid, uint64_t address)
{
	char text[2];
	return guest_string(host_tid, address, text, 1) == 0;
}

static int answer(struct carried *c, int host_tid, long number, const uint64_t a[6], int64_t *value)
{
	switch (number) {
	case SYS_fstat:
		return stat_by(c, host_tid, a[1], value);
	case SYS_newfstatat:
		return (a[3] & AT_EMPTY_PATH) && !(a[3] & ~(uint64_t)(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT)) &&
		       is_empty_string(host_tid, a[1]) && stat_by(c, host_tid, a[2], value);
	case SYS_read:
		return read_on(c, host_tid, a[1], a[2], value);
	case SYS_pread64:
		return read_at(c, host_tid, a[1], a[2], (int64_t)a[3], value);
	case SYS_getdents64:
		return read_entries(c, host_tid, a[1], (uint32_t)a[2], value);
	case SYS_lseek:
		return seek(c, (int64_t)a[1], (unsigned)a[2], value);
	case SYS_fcntl:
		return control(c, (int)a[1], value);
	case SYS_ioctl:
		*value = -ENOTTY;
		return (uint32_t)a[1] == TCGETS;
	case SYS_close:
		carried_forget_plain(c, c->descriptor);
		*value = close_one(c, c->descriptor);
		return 1;
	}
	return 0;
}

/* ---- without it ---- */

int carried_answers(struct carried *c, int host_tid, long number, const uint64_t arguments[6], int64_t *value)
{
	if (!__atomic_load_n(&c->answer, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&c->lock);
	uint64_t effects = c->effects;
	int is_about = c->answer && (int32_t)arguments[0] == c->descriptor;
	int is = is_about && is_valid(c) && answer(c, host_tid, number, arguments, value);
	int ticks = c->effects != effects;
	pthread_mutex_unlock(&c->lock);
	if (ticks)
		session_tick(c->session);
	return is;
}
