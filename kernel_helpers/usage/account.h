/* What a guest has used of this machine, and of those that it was on before: added to what home says of its stub. */
#ifndef FARHOME_ACCOUNT_H
#define FARHOME_ACCOUNT_H
#include <stddef.h>
#include <stdint.h>

struct used {
	uint64_t total, user, system;           /* ns; total is the exact one, and the sum of the others */
	uint64_t minor, major;                  /* page faults */
	uint64_t voluntary, involuntary;        /* context switches */
	uint64_t peak;                          /* KiB resident at most; of the process alone */
};

/* Used by a thread (as the program sees it), or (0) by the process. */
struct row {
	uint64_t tid;
	struct used used;
};

struct account;
/* Of threads: tid here, tid as the program sees it. All that they have behind them counts until it begins. NULL: no memory. */
struct account *account_new(int host_pid, const int *host_tids, const int *tids, unsigned count);
void account_free(struct account *a);
/* A thread that is born here, before it runs. 0, -ENOMEM. */
int account_add_thread(struct account *a, int host_tid, uint32_t tid);
void account_remove_thread(struct account *a, int host_tid);
/* Begins anew: what was used up to now does not count. 0, -ENOMEM. */
int account_begin(struct account *a);
/* What was used before the guest came here; tid 0: by the process. A thread that is not known is no error. */
void account_carry(struct account *a, uint32_t tid, const struct used *before);
/* Used in all, here and before. tid 0: by the process. 0, or -ESRCH. */
int account_used(struct account *a, uint32_t tid, struct used *used);
/* Adds it to what home's kernel says. */
struct rusage;
void account_add_to_usage(struct rusage *usage, const struct used *used);
/* The same of the process and each thread that there still is, `room` at most: how many, or -ENOMEM. */
int account_used_by_each(struct account *a, struct row *rows, unsigned room);
/* Adds it to what a call that thread `host_tid` made has returned at home: `length` bytes at `result`. */
void account_add(struct account *a, int host_tid, long number, const uint64_t arguments[6], unsigned char *result, size_t length);
#endif
