/* See account.h: how much processor time and the like one process and each of its threads have used. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include "usage/account_inner.h"

struct entry *account_by_tid(struct account *a, uint32_t tid)
{
	for (unsigned i = 0; i < a->count; i++)
		if (a->entries[i].tid == tid)
			return &a->entries[i];
	return NULL;
}

struct entry *account_by_host_tid(struct account *a, int tid)
{
	for (unsigned i = 1; i < a->count; i++)
		if (a->entries[i].host_tid == tid)
			return &a->entries[i];
	return NULL;
}

struct account *account_new(int host_pid, const int *host_tids, const int *tids, unsigned count)
{
	struct account *a = calloc(1, sizeof *a);
	if (!a || !(a->entries = calloc(count + 1, sizeof *a->entries))) {
		free(a);
		return NULL;
	}
	a->room = count + 1;
	a->host_pid = host_pid;
	a->count = count + 1;
	a->entries[0].host_tid = host_pid;
	for (unsigned i = 0; i < count; i++) {
		a->entries[i + 1].host_tid = host_tids[i];
		a->entries[i + 1].tid = tids[i];
	}
	pthread_mutex_init(&a->lock, NULL);
	return a;
}

void account_free(struct account *a)
{
	free(a->entries);
	free(a);
}

int account_add_thread(struct account *a, int host_tid, uint32_t tid)
{
	pthread_mutex_lock(&a->lock);
	struct entry *e = account_by_tid(a, ENDED);
	if (!e && a->count == a->room) {
		struct entry *more = realloc(a->entries, 2 * a->room * sizeof *more);
		if (more) {
			a->entries = more;
			a->room *= 2;
		}
	}
	if (!e && a->count < a->room)
		e = &a->entries[a->count++];
	if (e)
		*e = (struct entry){.host_tid = host_tid, .tid = tid};
	pthread_mutex_unlock(&a->lock);
	return e ? 0 : -ENOMEM;
}

void account_remove_thread(struct account *a, int host_tid)
{
	pthread_mutex_lock(&a->lock);
	struct entry *e = account_by_host_tid(a, host_tid);
	if (e)
		*e = (struct entry){.tid = ENDED};
	pthread_mutex_unlock(&a->lock);
}

int account_begin(struct account *a)
{
	pthread_mutex_lock(&a->lock);
	struct used *found = calloc(a->count, sizeof *found);
	if (found)
		account_read_everything(a, found);
	for (unsigned i = 0; found && i < a->count; i++) {
		struct entry *e = &a->entries[i];
		if (found[i].total != UINT64_MAX)
			e->begun = found[i];
		e->user = e->system = e->voluntary = e->involuntary = 0;
	}
	pthread_mutex_unlock(&a->lock);
	free(found);
	return found ? 0 : -ENOMEM;
}

int account_used(struct account *a, uint32_t tid, struct used *used)
{
	pthread_mutex_lock(&a->lock);
	struct entry *e = account_by_tid(a, tid);
	int result = e && !account_all_used(a, e, used, 1) ? 0 : -ESRCH;
	pthread_mutex_unlock(&a->lock);
	return result;
}

int account_used_by_each(struct account *a, struct row *rows, unsigned room)
{
	unsigned count = 0;
	pthread_mutex_lock(&a->lock);
	struct used *found = calloc(a->count, sizeof *found);
	if (found)
		account_read_everything(a, found);
	for (unsigned i = 0; found && i < a->count && count < room; i++)
		if (found[i].total != UINT64_MAX) {
			account_report(&a->entries[i], &found[i]);
			rows[count++] = (struct row){a->entries[i].tid, found[i]};
		}
	pthread_mutex_unlock(&a->lock);
	free(found);
	return found ? (int)count : -ENOMEM;
}

void account_carry(struct account *a, uint32_t tid, const struct used *before)
{
	pthread_mutex_lock(&a->lock);
	struct entry *e = account_by_tid(a, tid);
	if (e)
		e->before = *before;
	pthread_mutex_unlock(&a->lock);
}

/* ---- results of calls ---- */
