/* Which threads of the guest there are, and the answers that they get. */
#define _GNU_SOURCE
#include "link/away/threads/away.h"
#include <sys/ioctl.h>

struct guest_thread *away_by_host_tid(struct away *a, int tid)
{
	unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count; i++)
		if (a->threads[i]->host_tid == tid)
			return a->threads[i];
	return NULL;
}

struct guest_thread *away_by_tid(struct away *a, uint32_t tid)
{
	unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count; i++)
		if (a->threads[i]->tid == tid)
			return a->threads[i];
	return NULL;
}

int away_is_single(struct away *a)
{
	unsigned live = 0, count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count && live < 2; i++)
		live += a->threads[i]->tid != 0;
	return live == 1;
}

int away_is_gone(struct away *a, uint32_t tid)
{
	unsigned count = __atomic_load_n(&a->count, __ATOMIC_ACQUIRE);
	for (unsigned i = 0; i < count && tid; i++)
		if (a->threads[i]->former == tid)
			return 1;
	return 0;
}

/* ENOENT is no error: the thread was killed meanwhile. */
void away_respond(struct away *a, uint64_t id, int64_t value, int native)
{
	struct seccomp_notif_resp response = {.id = id};
	if (native)
		response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	else if (value < 0 && value >= -4095)
		response.error = value;
	else
		response.val = value;
	__tsan_release(a);
	ioctl(a->listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}
