/* See children.h. Few processes of a program are away at a time, and children that nobody has waited for yet are fewer: lists will do. */
#include "usage/children.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ENDED_MOST 4096u /* beyond, those that ended first are forgotten: nobody waits for children that are ignored (SA_NOCLDWAIT) */
#define PROCESSES_MOST 65536u

struct process {
	int pid, parent;
	uint32_t known_as;
	struct used by_children, at_end;
};

struct ended {
	int parent;
	uint32_t known_as;
	struct used own, used;      /* used: with what its own children have */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct process *processes;
static unsigned processes_count, processes_room;
static struct ended ended[ENDED_MOST];
static unsigned ended_count;

static void add(struct used *to, const struct used *more)
{
	to->total += more->total;
	to->user += more->user;
	to->system += more->system;
	to->minor += more->minor;
	to->major += more->major;
	to->voluntary += more->voluntary;
	to->involuntary += more->involuntary;
	if (more->peak > to->peak)
		to->peak = more->peak;
}

static struct process *process_of(int pid)
{
	for (unsigned i = 0; i < processes_count; i++)
		if (processes[i].pid == pid)
			return &processes[i];
	return NULL;
}

static struct ended *ended_of(int parent, uint32_t known_as)
{
	for (unsigned i = 0; i < ended_count; i++)
		if (ended[i].parent == parent && ended[i].known_as == known_as)
			return &ended[i];
	return NULL;
}

static void forget_ended(struct ended *one)
{
	memmove(one, one + 1, (char *)(ended + ended_count) - (char *)(one + 1));
	ended_count--;
}

int children_begin(int pid, uint32_t known_as, int parent)
{
	int error = 0;
	pthread_mutex_lock(&lock);
	struct process *p = process_of(pid);
	if (!p && processes_count == processes_room) {
		unsigned room = processes_room ? 2 * processes_room : 16;
		struct process *more = room <= PROCESSES_MOST ? realloc(processes, room * sizeof *more) : NULL;
		if (more) {
			processes = more;
			processes_room = room;
		}
	}
	if (!p && processes_count < processes_room) {
		p = &processes[processes_count++];
		*p = (struct process){.pid = pid};
	}
	struct ended *reused = parent ? ended_of(parent, known_as) : NULL;
	if (reused)     /* of a child that the kernel itself has reaped, and whose id this one has got */
		forget_ended(reused);
	if (p) {
		p->known_as = known_as;
		p->parent = parent ? parent : p->parent;
	} else
		error = -ENOMEM;
	pthread_mutex_unlock(&lock);
	return error;
}

void children_forget(int pid)
{
	pthread_mutex_lock(&lock);
	struct process *p = process_of(pid);
	if (p)
		*p = processes[--processes_count];
	for (unsigned i = ended_count; i--;)
		if (ended[i].parent == pid)
			forget_ended(&ended[i]);
	pthread_mutex_unlock(&lock);
}

void children_end(int pid, const struct used *used)
{
	pthread_mutex_lock(&lock);
	struct process *p = process_of(pid);
	if (p)
		p->at_end = *used;
	if (p && p->parent && process_of(p->parent)) {
		struct ended *one = ended_of(p->parent, p->known_as);
		if (!one) {
			if (ended_count == ENDED_MOST)
				forget_ended(ended);
			one = &ended[ended_count++];
		}
		*one = (struct ended){.parent = p->parent, .known_as = p->known_as, .own = *used, .used = p->by_children};
		add(&one->used, used);
	}
	pthread_mutex_unlock(&lock);
}

int children_used(int parent, uint32_t known_as, int taken, struct used *used)
{
	memset(used, 0, sizeof *used);
	pthread_mutex_lock(&lock);
	struct ended *one = ended_of(parent, known_as);
	struct process *p = process_of(parent);
	if (one) {
		*used = one->used;
		if (taken && p)
			add(&p->by_children, used);
		if (taken)
			forget_ended(one);
	}
	pthread_mutex_unlock(&lock);
	return one != NULL;
}

void children_own(int parent, uint32_t known_as, struct used *used)
{
	pthread_mutex_lock(&lock);
	struct ended *one = ended_of(parent, known_as);
	*used = one ? one->own : (struct used){0};
	pthread_mutex_unlock(&lock);
}

void children_at_end(int pid, struct used *used)
{
	pthread_mutex_lock(&lock);
	struct process *p = process_of(pid);
	*used = p ? p->at_end : (struct used){0};
	pthread_mutex_unlock(&lock);
}

void children_in_all(int pid, struct used *used)
{
	memset(used, 0, sizeof *used);
	pthread_mutex_lock(&lock);
	struct process *p = process_of(pid);
	if (p)
		*used = p->by_children;
	pthread_mutex_unlock(&lock);
}
