/* Writes that run ahead of home: what ahead.h says. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "link/away/files/ahead.h"
#include "link/away/files/carried_state.h"
#include "link/paths.h"

#define WAITS 3000000ll         /* ns that the list may wait for others */
#define FAR (1ll << 34)         /* bytes: a position up to here no file system refuses */

static struct ahead_room *room_of(struct carried *c, int descriptor)
{
	for (unsigned i = 0; i < c->rooms_count; i++)
		if (c->rooms[i].descriptor == descriptor)
			return &c->rooms[i];
	return NULL;
}

/* ---- with the lock held ---- */

void ahead_queue(struct carried *c)
{
	struct outgoing *o = c->ahead_length ? outgoing_new(FRAME_AHEAD, c->ahead_tid, c->ahead_length) : NULL;
	if (!o) /* without memory it waits */
		return;
	memcpy(outgoing_head(o), c->ahead, c->ahead_length);
	c->ahead_length = 0;
	session_queue_first(c->session, o);
	session_send_later(c->session);
}

static int has_room(const struct carried *c, uint32_t length)
{
	return c->ahead_length + sizeof(struct ahead) + ahead_padded(length) <= AHEAD_LIMIT;
}

static void add(struct carried *c, const struct ahead *record)
{
	unsigned char *at = c->ahead + c->ahead_length;
	if (!c->ahead_length)
		c->ahead_since = monotonic_ns();
	memcpy(at, record, sizeof *record);
	c->ahead_length += sizeof *record + ahead_padded(record->length);
	c->effects++;
}

void ahead_add_effect(struct carried *c)
{
	struct effect *e = &c->effect;
	if (!e->kind || !has_room(c, 0))
		return;
	add(c, &(struct ahead){
		       .descriptor = e->descriptor, .kind = e->kind == EFFECT_CLOSE ? AHEAD_CLOSE : AHEAD_SEEK, .position = e->position});
	e->kind = EFFECT_NONE;
}

/* Whether the carried file is the one that is written to. */
static int is_carried(const struct carried *c, const struct ahead_room *room)
{
	struct stat status;
	if (!c->answer)
		return 0;
	memcpy(&status, c->answer->attributes, sizeof status);
	return status.st_dev == room->answer.device && status.st_ino == room->answer.inode;
}

static int write_ahead(struct carried *c, int host_tid, uint32_t tid, const struct ahead *record, uint64_t address)
{
	struct ahead_room *room = room_of(c, record->descriptor);
	if (!room || room->left < record->length)
		return 0;
	if (!has_room(c, record->length) || (c->ahead_length && c->ahead_tid != tid))
		ahead_queue(c);
	ahead_add_effect(c);
	if (!has_room(c, record->length) || c->effect.kind)
		return 0;
	unsigned char *to = c->ahead + c->ahead_length + sizeof *record;
	struct iovec here = {to, record->length}, there = {(void *)address, record->length};
	if (process_vm_readv(host_tid, &here, 1, &there, 1, 0) != (ssize_t)record->length)
		return 0;
	memset(to + record->length, 0, ahead_padded(record->length) - record->length);
	if (is_carried(c, room))
		carried_forget(c);
	room->left -= record->length;
	c->ahead_tid = tid;
	add(c, record);
	return 1;
}

/* ---- without it ---- */

int ahead_answers(struct carried *c, int host_tid, uint32_t tid, long number, const uint64_t a[6], int64_t *value)
{
	int at = number == SYS_pwrite64;
	if ((!at && number != SYS_write) || !__atomic_load_n(&c->rooms_count, __ATOMIC_RELAXED) || !a[2] || a[2] > AHEAD_WRITE ||
	    (at && a[3] > FAR))
		return 0;
	struct ahead record = {.descriptor = (int32_t)a[0],
	                       .kind = at ? AHEAD_WRITE_AT : AHEAD_WRITE_ON,
	                       .length = (uint32_t)a[2],
	                       .position = at ? (int64_t)a[3] : 0};
	pthread_mutex_lock(&c->lock);
	int is = write_ahead(c, host_tid, tid, &record, a[1]);
	pthread_mutex_unlock(&c->lock);
	if (!is)
		return 0;
	*value = record.length;
	session_tick(c->session);
	return 1;
}

int ahead_wants(struct carried *c, long number, const uint64_t arguments[6])
{
	if (number != SYS_write && number != SYS_pwrite64)
		return call_opens_to_write(number, arguments);
	pthread_mutex_lock(&c->lock);
	struct ahead_room *room = room_of(c, (int)arguments[0]);
	int is = !room || !room->is_denied;
	pthread_mutex_unlock(&c->lock);
	return is;
}

void ahead_put(struct carried *c, const struct call *call, int64_t value, const struct room_answer *answer)
{
	int descriptor = call_opens_to_write(call->number, call->arguments) ? (int)value : (int)call->arguments[0];
	pthread_mutex_lock(&c->lock);
	struct ahead_room *room = room_of(c, descriptor);
	if (!room) {
		if (c->rooms_count == CARRIED_ROOMS)
			memmove(c->rooms, c->rooms + 1, --c->rooms_count * sizeof *c->rooms);
		room = &c->rooms[c->rooms_count++];
	}
	*room = (struct ahead_room){.descriptor = descriptor, .left = answer ? AHEAD_ROOM : 0, .is_denied = !answer};
	if (answer)
		room->answer = *answer;
	pthread_mutex_unlock(&c->lock);
}

void ahead_failed(struct carried *c, int descriptor)
{
	if (!__atomic_load_n(&c->rooms_count, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&c->lock);
	carried_forget_room(c, descriptor);
	pthread_mutex_unlock(&c->lock);
}

void ahead_leave(struct carried *c)
{
	if (!__atomic_load_n(&c->ahead_length, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&c->lock);
	ahead_queue(c);
	pthread_mutex_unlock(&c->lock);
}

int ahead_tick(struct carried *c)
{
	if (c->ahead_length && monotonic_ns() - c->ahead_since >= WAITS)
		ahead_queue(c);
	return c->ahead_length != 0;
}
