/* Cpu clocks. The guest's time is what its processes here have used and what their stubs at home have; home is asked for its share,
 * which is known as long as nothing is called there. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "process/guest_memory.h"

/* What is known of the clock that a call asks about; NULL: it is no such question. */
static struct reported *reported_of(struct guest_thread *t, long number, uint64_t argument)
{
	if (number != SYS_clock_gettime)
		return NULL;
	int clock = (int)argument;
	return clock == CLOCK_PROCESS_CPUTIME_ID ? &t->process_clock : clock == CLOCK_THREAD_CPUTIME_ID ? &t->thread_clock : NULL;
}

/* For as long as it does not change, home's share of that clock does not: a thread's own calls, or those of all. */
static uint64_t moment(struct away *a, struct guest_thread *t, uint64_t clock)
{
	return (int)clock == CLOCK_THREAD_CPUTIME_ID ? t->calls : __atomic_load_n(&a->frames, __ATOMIC_SEQ_CST);
}

void away_count_call(struct away *a, struct guest_thread *t)
{
	if (reported_of(t, t->m.call.number, t->m.call.arguments[0]))
		t->asked_at = moment(a, t, t->m.call.arguments[0]);
	else {
		t->calls++;
		__atomic_add_fetch(&a->frames, 1, __ATOMIC_SEQ_CST);
	}
}

void away_count_reply(struct away *a, struct guest_thread *t)
{
	if (!reported_of(t, t->m.call.number, t->m.call.arguments[0]))
		__atomic_add_fetch(&a->frames, 1, __ATOMIC_SEQ_CST);
}

int away_answer_clock(struct away *a, struct guest_thread *t, const struct seccomp_notif *n, const uint64_t arguments[6])
{
	struct reported *reported = reported_of(t, n->data.nr, arguments[0]);
	if (!reported || reported->as_of != moment(a, t, arguments[0]) || !a->account)
		return 0;
	struct timespec value = reported->time;
	account_add(a->account, t->host_tid, n->data.nr, arguments, (unsigned char *)&value, sizeof value);
	struct iovec here = {&value, sizeof value}, there = {(void *)arguments[1], sizeof value};
	if (guest_memory_writev(t->host_tid, &here, 1, &there, 1) != sizeof value)
		return 0;
	away_respond(a, n->id, 0, 0);
	return 1;
}

void away_add_used(struct away *a, struct guest_thread *t, uint32_t length)
{
	struct reported *reported = reported_of(t, t->m.call.number, t->m.call.arguments[0]);
	if (reported && length == sizeof reported->time) {
		memcpy(&reported->time, a->results, sizeof reported->time);
		reported->as_of = t->asked_at;
	}
	account_add(a->account, t->host_tid, t->m.call.number, t->m.call.arguments, a->results, length);
}
