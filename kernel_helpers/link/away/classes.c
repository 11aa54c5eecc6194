/* A row for each class of calls: what is particular before they go home, and after. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <errno.h>
#include <sys/syscall.h>

/* The node's kernel makes it. */
static int proceeds(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	(void)t, (void)arguments;
	away_respond(a, n->id, -ENOSYS, 1);
	return 1;
}

/* As above; it gives memory a protection key, or takes it. */
static int changes_keys(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	guest_room_keys_change(a->room);
	return proceeds(a, t, n, arguments);
}

static int is_refused(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	(void)t, (void)arguments;
	away_respond(a, n->id, -ENOSYS, 0);
	return 1;
}

static int always(struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	(void)t, (void)n, (void)arguments;
	return 1;
}

/* ---- limits that home has set bind the guest on its node, too ---- */

static int limited_resource(long number, const uint64_t arguments[6])
{
	return arguments[number == SYS_prlimit64];
}

/* What a call that sets a limit wants to set: 0, or a negative errno. */
static int read_limit(struct guest_thread *t, long number, const uint64_t arguments[6])
{
	return guest_read(t->host_tid, arguments[number == SYS_prlimit64 ? 2 : 1], &t->limit, sizeof t->limit);
}

/* The guest is not bound more loosely than its node binds us. */
static void bind_guest(struct guest_thread *t)
{
	struct rlimit ours, limit = t->limit;
	int resource = limited_resource(t->m.call.number, t->m.call.arguments);
	if (getrlimit(resource, &ours))
		return;
	limit.rlim_cur = limit.rlim_cur < ours.rlim_max ? limit.rlim_cur : ours.rlim_max;
	limit.rlim_max = limit.rlim_max < ours.rlim_max ? limit.rlim_max : ours.rlim_max;
	prlimit(t->host_tid, resource, &limit, NULL);
}

static int if_unread(struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	return read_limit(t, n->data.nr, arguments);
}

/* A call to end: if the process does by that, its parent may wait for it, and gets its status. */
static void tell_used(struct away *a, struct guest_thread *t)
{
	struct used used;
	if (a->account && (away_is_single(a) || t->m.call.number == SYS_exit_group) && !account_used(a->account, 0, &used))
		marshal_attach(&t->m, &used, sizeof used);
}

static void add_used(struct away *a, struct guest_thread *t, uint32_t length)
{
	if (length && a->account)
		away_add_used(a, t, length);
}

static void bind(struct away *a, struct guest_thread *t, uint32_t length)
{
	(void)a, (void)length;
	bind_guest(t);
}

static const struct class_row classes[] = {
	[CLASS_GO_HOME] = {.is_for_python = always},
	[CLASS_LOCAL] = {.answers = proceeds, .is_anybodys = 1},
	[CLASS_FORWARD] = {.answers = NULL},
	[CLASS_BOTH] = {.is_made_here = 1},
	[CLASS_END] = {.adds = tell_used},
	[CLASS_REFUSE] = {.answers = is_refused, .is_anybodys = 1},
	[CLASS_SUM] = {.answers = away_answer_clock, .after = add_used},
	[CLASS_EXECUTE] = {.is_for_python = always},
	[CLASS_BIND] = {.is_for_python = if_unread, .after = bind},
	[CLASS_RIGHTS] = {.is_for_python = always},
	[CLASS_IDS] = {.answers = NULL},
	[CLASS_WATCH] = {.is_for_python = always},
	[CLASS_KEYS] = {.answers = changes_keys, .is_anybodys = 1},
};

const struct class_row *away_class(int class)
{
	return &classes[class];
}
