/* Which thread serves whom: what a request has changed need not be reported to the peer that has made it. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

#include <sys/syscall.h>
#include <unistd.h>

#define KNOWN \
	4096 /* by the lower bits of their numbers; of two that have these in common one is not known, and its peer notified too often */

static struct {
	atomic_int thread;
	_Atomic(struct mfs_session *) session;
} known[KNOWN];

void mfs_thread_begin(struct mfs_session *session)
{
	int own = (int)syscall(SYS_gettid);

	known[own % KNOWN].thread = 0;
	known[own % KNOWN].session = session;
	known[own % KNOWN].thread = own;
}

void mfs_thread_end(void)
{
	int own = (int)syscall(SYS_gettid);

	atomic_compare_exchange_strong(&known[own % KNOWN].thread, &own, 0);
}

struct mfs_session *mfs_thread_serves(int thread)
{
	struct mfs_session *session = thread > 0 ? known[thread % KNOWN].session : NULL;

	return session && known[thread % KNOWN].thread == thread ? session : NULL;
}
