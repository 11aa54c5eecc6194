/* What the three files of an account have from one another. */
#ifndef FARHOME_ACCOUNT_INNER_H
#define FARHOME_ACCOUNT_INNER_H
#include <pthread.h>
#include "usage/account.h"

#define SECOND 1000000000ull
#define TICK 10000000ull /* ns; USER_HZ is 100 on x86 */
#define ENDED UINT32_MAX /* in place of a thread's id: the entry is free */

struct entry {
	int host_tid; /* of the process: its host pid */
	uint32_t tid; /* 0: the process */
	struct used begun, before;
	uint64_t user, system; /* as last reported: nothing ever goes back */
	uint64_t voluntary, involuntary;
};

struct account {
	int host_pid;
	pthread_mutex_t lock;
	unsigned count, room;
	struct entry *entries; /* the process, then its threads */
};

/* account_read.c */
uint64_t account_since(uint64_t now, uint64_t then);
int account_read_clock(const struct account *a, const struct entry *e, uint64_t *total);
void account_report(struct entry *e, struct used *u);
int account_all_used(const struct account *a, struct entry *e, struct used *u, int switches);
void account_read_everything(const struct account *a, struct used *found);

/* account.c */
struct entry *account_by_tid(struct account *a, uint32_t tid);
struct entry *account_by_host_tid(struct account *a, int tid);

#endif
