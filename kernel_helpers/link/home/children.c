/* Calls by which a process hears of what its children have used: what these have used away is added to what home's kernel reports. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include "usage/account.h"
#include "usage/children.h"
#include "link/home/threads/parts.h"

#define USED_MOST (1ull << 60)      /* of each figure: sums stay what they are */

/* What an argument of the call points to in the slot, if it is so long; else NULL. */
static void *behind(struct home_thread *t, int argument, size_t length)
{
	uint64_t at = t->call.arguments[argument];
	return t->call.offsets >> argument & 1 && at + length <= t->call.area ? data_of(t) + at : NULL;
}

static void add_to_usage(struct rusage *usage, const struct used *more)
{
	if (usage)
		account_add_to_usage(usage, more);
}

void home_note_end(struct home *h, struct home_thread *t)
{
	struct used used;
	if (t->call.number != SYS_exit_group && t->call.number != SYS_exit)
		return;
	if (t->call.image != sizeof used)       /* not the last thread, or of a node that does not say */
		return;
	memcpy(&used, data_of(t), sizeof used);
	uint64_t figures[sizeof used / 8];
	memcpy(figures, &used, sizeof used);
	for (size_t i = 0; i < sizeof used / 8; i++)
		if (figures[i] > USED_MOST)
			return;
	children_end(h->stub_pid, &used);
}

void home_add_children(struct home *h, struct home_thread *t, int64_t value)
{
	struct used used;
	if (t->call.number == SYS_wait4 && value > 0) {
		if (children_used(h->stub_pid, value, 1, &used))
			add_to_usage(behind(t, 3, sizeof(struct rusage)), &used);
	} else if (t->call.number == SYS_waitid && !value) {
		siginfo_t *info = behind(t, 2, 28);
		int code = info ? info->si_code : 0;
		if ((code == CLD_EXITED || code == CLD_KILLED || code == CLD_DUMPED) &&
		    children_used(h->stub_pid, info->si_pid, !(t->call.arguments[3] & WNOWAIT), &used))
			add_to_usage(behind(t, 4, sizeof(struct rusage)), &used);
	} else if (t->call.number == SYS_getrusage && !value && (int)t->call.arguments[0] == RUSAGE_CHILDREN) {
		children_in_all(h->stub_pid, &used);
		add_to_usage(behind(t, 1, sizeof(struct rusage)), &used);
	} else if (t->call.number == SYS_times && value >= 0) {
		struct tms *times = behind(t, 0, sizeof *times);
		children_in_all(h->stub_pid, &used);
		if (times) {
			times->tms_cutime += used.user / 10000000;      /* USER_HZ is 100 on x86 */
			times->tms_cstime += used.system / 10000000;
		}
	}
}
