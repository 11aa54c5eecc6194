/* A call leaves for home, or is handed over to Python: what it makes void of what is known of files here, and what home has still to make. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include "link/away/files/carried_state.h"
#include "link/away/files/names.h"

void names_leave(struct names *n, long number, int class)
{
	/* Calls for another root or namespace take the process home; it comes back with nothing remembered. */
	int other_rights = class == CLASS_RIGHTS || class == CLASS_EXECUTE;
	if (!other_rights && number != SYS_chdir && number != SYS_fchdir)
		return;
	pthread_mutex_lock(&names_lock);
	if (other_rights)
		n->scope = 0;
	n->own = ++names_last_own;
	pthread_mutex_unlock(&names_lock);
}

void carried_leave(struct carried *c, long number, const uint64_t arguments[6])
{
	if (!__atomic_load_n(&c->plain_count, __ATOMIC_RELAXED) && !__atomic_load_n(&c->rooms_count, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&c->lock);
	switch (number) {
	case SYS_close:
		carried_forget_plain(c, (int)arguments[0]);
		carried_forget_room(c, (int)arguments[0]);
		break;
	case SYS_dup2:
	case SYS_dup3:
		carried_forget_plain(c, (int)arguments[1]);
		carried_forget_room(c, (int)arguments[1]);
		break;
	case SYS_fcntl: /* O_DIRECT, of all descriptors of the open file */
		if ((int)arguments[1] == F_SETFL)
			c->rooms_count = 0;
		break;
	case SYS_ioctl:
		carried_forget_room(c, (int)arguments[0]);
		break;
	case SYS_setrlimit:
	case SYS_prlimit64:
		c->rooms_count = 0;
		break;
	case SYS_clone:
		if (!(arguments[0] & CLONE_FILES))
			break;
		/* fall through */
	case SYS_clone3:
	case SYS_close_range:
	case SYS_unshare:
	case SYS_execve:
	case SYS_execveat:
		c->plain_count = c->rooms_count = 0;
		break;
	}
	pthread_mutex_unlock(&c->lock);
}

void carried_settle(struct carried *c, struct effect *effect)
{
	pthread_mutex_lock(&c->lock);
	*effect = c->effect;
	c->effect.kind = EFFECT_NONE;
	carried_forget(c);
	pthread_mutex_unlock(&c->lock);
}

/* With the lock held, so that no call overtakes it. */
static void queue_effect(struct carried *c)
{
	ahead_queue(c);
	struct outgoing *o = c->effect.kind ? outgoing_new(FRAME_EFFECT, c->tid, sizeof c->effect) : NULL;
	if (!o)
		return;
	memcpy(outgoing_head(o), &c->effect, sizeof c->effect);
	c->effect.kind = EFFECT_NONE;
	session_queue_first(c->session, o); /* of the two, one alone can wait */
	session_send_later(c->session);
}

void carried_settle_alone(struct carried *c)
{
	pthread_mutex_lock(&c->lock);
	carried_forget(c);
	queue_effect(c);
	pthread_mutex_unlock(&c->lock);
}

int carried_tick(struct carried *c)
{
	pthread_mutex_lock(&c->lock);
	if (c->effect.kind && c->seen == c->effects) {
		carried_forget(c);
		queue_effect(c);
	}
	int goes_on = ahead_tick(c) || c->seen != c->effects || c->effect.kind;
	c->seen = c->effects;
	pthread_mutex_unlock(&c->lock);
	return goes_on;
}
