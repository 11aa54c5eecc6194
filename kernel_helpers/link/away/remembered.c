/* A row for each thing that the node remembers of home, or keeps for it: which calls it answers by that, and what replies bring for it. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include "link/paths.h"
#include <string.h>

/* ---- what an open has brought ---- */

static enum remembered_answer by_open(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6],
                                      int64_t *value)
{
	return carried_answers(a->carried, t->host_tid, n->data.nr, arguments, value) ? ANSWERED_FROM_OPEN : ANSWERED_NOT;
}

static int open_wants(struct away *a, struct guest_thread *t)
{
	return call_only_reads(t->m.call.number, t->m.call.arguments) && away_is_single(a);
}

static void open_leaves(struct away *a, struct guest_thread *t)
{
	carried_leave(a->carried, t->m.call.number, t->m.call.arguments);
}

static int open_brings(struct away *a, struct guest_thread *t, const struct frame *frame, const struct reply *reply, struct addition *added)
{
	struct carried_answer *c = added->bytes;
	if (added->size < sizeof *c || c->length != added->size - sizeof *c || c->length > CARRIED_LIMIT)
		return 0;
	carried_put(a->carried, (int)reply->value, t->tid, frame->number, c);
	added->bytes = NULL;
	return 1;
}

/* ---- names ---- */

static enum remembered_answer by_name(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6],
                                      int64_t *value)
{
	return names_answer(&a->names, t->host_tid, n->data.nr, arguments, value, &t->wants) ? ANSWERED : ANSWERED_NOT;
}

/* The path of a call of which home may say what there is to know. */
static int name_wants(struct away *a, struct guest_thread *t)
{
	(void)a;
	const struct call *c = &t->m.call;
	const char *path = NULL;
	t->path[0] = 0;
	if (!t->renamed && t->wants)
		path = marshal_path(&t->m, link_entry(c->number, c->arguments));
	if (!path || strlen(path) >= sizeof t->path)
		return 0;
	strcpy(t->path, path);
	return 1;
}

static void name_leaves(struct away *a, struct guest_thread *t)
{
	names_leave(&a->names, t->m.call.number, t->class);
}

static int name_brings(struct away *a, struct guest_thread *t, const struct frame *frame, const struct reply *reply, struct addition *added)
{
	(void)frame, (void)reply;
	return *t->path && !names_put(&a->names, t->path, added->bytes, added->size);
}

/* ---- files that the node has itself ---- */

static enum remembered_answer by_file(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6],
                                      int64_t *value)
{
	(void)value;
	if (!__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE))
		return ANSWERED_NOT;
	return away_takes_directly(a, t, n, arguments) ? TAKEN : ANSWERED_NOT;
}

/* ---- calls that home makes later ---- */

static enum remembered_answer by_running_ahead(struct away *a, struct guest_thread *t, const struct seccomp_notif *n,
                                               const uint64_t arguments[6], int64_t *value)
{
	if (__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) || !away_is_single(a))
		return ANSWERED_NOT;
	int is_known = carried_closes(a->carried, n->data.nr, arguments, value) ||
	               ahead_answers(a->carried, t->host_tid, t->tid, n->data.nr, arguments, value);
	return is_known ? ANSWERED_FROM_OPEN : ANSWERED_NOT;
}

static int write_wants(struct away *a, struct guest_thread *t)
{
	return away_is_single(a) && !__atomic_load_n(&a->direct, __ATOMIC_ACQUIRE) &&
	       ahead_wants(a->carried, t->m.call.number, t->m.call.arguments);
}

static int write_brings(struct away *a, struct guest_thread *t, const struct frame *frame, const struct reply *reply,
                        struct addition *added)
{
	(void)frame;
	if (added->size != sizeof(struct room_answer))
		return 0;
	ahead_put(a->carried, &t->m.call, reply->value, added->bytes);
	return 1;
}

static void note_room(struct away *a, struct guest_thread *t, const struct reply *reply)
{
	if (reply->value < 0)
		ahead_failed(a->carried, (int)t->m.call.arguments[0]);
	else if (t->m.call.flags & CALL_WRITES && !(reply->flags & REPLY_ROOM))
		ahead_put(a->carried, &t->m.call, reply->value, NULL);
}

const struct remembered_row remembered_rows[REMEMBERED_ROWS] = {
	{.answers = by_open,
	 .wants = open_wants,
	 .asks = CALL_CARRIES,
	 .leaves = open_leaves,
	 .brought_by = REPLY_CARRIES,
	 .brings = open_brings},
	{.answers = by_name,
	 .wants = name_wants,
	 .asks = CALL_NAMES,
	 .leaves = name_leaves,
	 .brought_by = REPLY_NAMES,
	 .brings = name_brings,
	 .is_of_errors = 1},
	{.answers = by_file},
	{.answers = by_running_ahead,
	 .wants = write_wants,
	 .asks = CALL_WRITES,
	 .brought_by = REPLY_ROOM,
	 .brings = write_brings,
	 .notes = note_room},
};
