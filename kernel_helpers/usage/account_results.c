/* What is added to the results of calls that ask how much time a process or thread has used. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include "usage/account_inner.h"

#define CPU_CLOCK_MASK 3                /* the low bits of a negative clock id: which of the four, and of a thread? */

#define CPU_CLOCK_PROF 0

#define CPU_CLOCK_VIRT 1

#define CPU_CLOCK_OF_THREAD 4

static void add_time(struct timespec *to, uint64_t ns)
{
	ns += to->tv_nsec;
	to->tv_sec += ns / SECOND;
	to->tv_nsec = ns % SECOND;
}

static void add_interval(struct timeval *to, uint64_t ns)
{
	uint64_t us = to->tv_usec + ns / 1000;
	to->tv_sec += us / 1000000;
	to->tv_usec = us % 1000000;
}

/* Whose clock that is: NULL if neither the process's nor a thread's of it (another process; a descriptor, all three bits set). */
static struct entry *owner(struct account *a, struct entry *caller, int clock)
{
	if (clock == CLOCK_PROCESS_CPUTIME_ID)
		return a->entries;
	if (clock == CLOCK_THREAD_CPUTIME_ID)
		return caller;
	if (clock >= 0 || (clock & CPU_CLOCK_MASK) == CPU_CLOCK_MASK)
		return NULL;
	uint32_t tid = ~(clock >> 3);
	if (clock & CPU_CLOCK_OF_THREAD)
		return tid ? account_by_tid(a, tid) : caller;
	struct entry *leader = account_by_host_tid(a, a->host_pid);
	return !tid || (leader && tid == leader->tid) || tid == caller->tid ? a->entries : NULL;
}

static void add_to_clock(struct account *a, struct entry *caller, int clock, struct timespec *result)
{
	struct entry *e = owner(a, caller, clock);
	struct used u;
	uint64_t total;
	if (!e)
		return;
	if (clock >= 0 || (clock & CPU_CLOCK_MASK) == 2) {
		if (!account_read_clock(a, e, &total))
			add_time(result, account_since(total, e->begun.total) + e->before.total);
	} else if (!account_all_used(a, e, &u, 0))
		add_time(result, (clock & CPU_CLOCK_MASK) == CPU_CLOCK_VIRT ? u.user : u.total);
}

void account_add_to_usage(struct rusage *usage, const struct used *used)
{
	add_interval(&usage->ru_utime, used->user);
	add_interval(&usage->ru_stime, used->system);
	usage->ru_minflt += used->minor;
	usage->ru_majflt += used->major;
	usage->ru_nvcsw += used->voluntary;
	usage->ru_nivcsw += used->involuntary;
	if ((long)used->peak > usage->ru_maxrss)
		usage->ru_maxrss = used->peak;
}

static void add_to_usage(struct account *a, struct entry *e, struct rusage *result)
{
	struct used u;
	if (!account_all_used(a, e, &u, 1))
		account_add_to_usage(result, &u);
}

void account_add(struct account *a, int host_tid, long number, const uint64_t arguments[6], unsigned char *result, size_t length)
{
	union {
		struct timespec time;
		struct tms times;
		struct rusage usage;
	} value;
	struct used u;
	if (length > sizeof value)
		return;
	memcpy(&value, result, length);
	pthread_mutex_lock(&a->lock);
	struct entry *caller = account_by_host_tid(a, host_tid);
	if (!caller)
		;
	else if (number == SYS_clock_gettime && length == sizeof value.time)
		add_to_clock(a, caller, (int)arguments[0], &value.time);
	else if (number == SYS_times && length == sizeof value.times) {
		if (!account_all_used(a, a->entries, &u, 0)) {
			value.times.tms_utime += u.user / TICK;
			value.times.tms_stime += u.system / TICK;
		}
	} else if (number == SYS_getrusage && length == sizeof value.usage && (int)arguments[0] != RUSAGE_CHILDREN)
		add_to_usage(a, (int)arguments[0] == RUSAGE_THREAD ? caller : a->entries, &value.usage);
	pthread_mutex_unlock(&a->lock);
	memcpy(result, &value, length);
}
