/* See account.h. The kernel tells one process of another: its cpu clock to the nanosecond, a thread's in schedstat, and
 * user and system time in ticks of 10 ms only. As it does itself, the exact sum is divided in the ratio of the two. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>
#include "usage/account.h"

#define SECOND 1000000000ull
#define TICK 10000000ull                /* ns; USER_HZ is 100 on x86 */
#define CPU_CLOCK_MASK 3                /* the low bits of a negative clock id: which of the four, and of a thread? */
#define CPU_CLOCK_PROF 0
#define CPU_CLOCK_VIRT 1
#define CPU_CLOCK_OF_THREAD 4

struct entry {
	int host_tid;                       /* of the process: its host pid */
	uint32_t tid;                       /* 0: the process */
	struct used begun, before;
	uint64_t user, system;              /* as last told: nothing ever goes back */
	uint64_t voluntary, involuntary;
};

struct account {
	int host_pid;
	pthread_mutex_t lock;
	unsigned count, room;
	struct entry *entries;              /* the process, then its threads */
};

#define MANY 64                         /* threads that are worth one more of ours */
#define ENDED UINT32_MAX                /* in place of a thread's id: the entry is free */

static int read_file(char *text, size_t room, int pid, int tid, const char *name)
{
	char path[64];
	if (tid)
		snprintf(path, sizeof path, "/proc/%d/task/%d/%s", pid, tid, name);
	else
		snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t length = read(fd, text, room - 1);
	close(fd);
	if (length <= 0)
		return -1;
	text[length] = 0;
	return 0;
}

static uint64_t field(const char *text, const char *name)
{
	const char *found = strstr(text, name);
	return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

/* Times and faults as the kernel rounds them. 0, -1: it is gone. */
static int read_stat(struct used *u, int pid, int tid)
{
	char text[1024], *at;
	unsigned long minor, major, user, system;
	if (read_file(text, sizeof text, pid, tid, "stat") || !(at = strrchr(text, ')')))
		return -1;
	if (sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu", &minor, &major, &user, &system) != 4)
		return -1;
	u->minor = minor;
	u->major = major;
	u->user = user * TICK;
	u->system = system * TICK;
	return 0;
}

/* The cpu clock alone. 0, -1: it is gone. */
static int read_clock(const struct account *a, const struct entry *e, uint64_t *total)
{
	struct timespec now;
	char text[128];
	if (!e->tid) {
		if (clock_gettime((clockid_t)(~(unsigned)a->host_pid << 3 | 2), &now))
			return -1;
		*total = now.tv_sec * SECOND + now.tv_nsec;
		return 0;
	}
	if (!read_file(text, sizeof text, a->host_pid, e->host_tid, "schedstat")) {
		*total = strtoull(text, NULL, 10);
		return 0;
	}
	struct used coarse;                 /* a kernel without schedstat */
	if (read_stat(&coarse, a->host_pid, e->host_tid))
		return -1;
	*total = coarse.user + coarse.system;
	return 0;
}

static void add_switches(struct used *u, int pid, int tid)
{
	char text[4096];
	if (read_file(text, sizeof text, pid, tid, "status"))
		return;
	u->voluntary += field(text, "\nvoluntary_ctxt_switches:");
	u->involuntary += field(text, "\nnonvoluntary_ctxt_switches:");
	if (field(text, "\nVmHWM:") > u->peak)
		u->peak = field(text, "\nVmHWM:");
}

/* All that the kernel says; user and system time in ticks. 0, -1: it is gone. */
static int read_all(const struct account *a, const struct entry *e, struct used *u)
{
	memset(u, 0, sizeof *u);
	return read_clock(a, e, &u->total) || read_stat(u, a->host_pid, e->tid ? e->host_tid : 0) ? -1 : 0;
}

/* Context switches and the peak. No file has those of all threads; those of threads that have ended are lost. */
static void read_switches(const struct account *a, const struct entry *e, struct used *u)
{
	if (e->tid)
		add_switches(u, a->host_pid, e->host_tid);
	else
		for (unsigned i = 1; i < a->count; i++)
			if (a->entries[i].tid != ENDED)
				add_switches(u, a->host_pid, a->entries[i].host_tid);
}

static uint64_t since(uint64_t now, uint64_t then)
{
	return now > then ? now - then : 0;
}

/* Divides the time since arrival: cputime_adjust() of kernel/sched/cputime.c. */
static void divide(struct entry *e, struct used *u)
{
	if (u->total > e->user + e->system) {
		uint64_t ticks = u->user + u->system;
		uint64_t system = ticks ? (uint64_t)((unsigned __int128)u->total * u->system / ticks) : 0;
		if (system < e->system)
			system = e->system;
		if (u->total - system < e->user)
			system = u->total - e->user;
		e->system = system;
		e->user = u->total - system;
	}
	u->user = e->user;
	u->system = e->system;
	u->total = e->user + e->system;
}

static uint64_t forward(uint64_t *told, uint64_t now)
{
	return *told = now > *told ? now : *told;
}

/* What was read of it becomes what is told: since it came here, and before. */
static void tell(struct entry *e, struct used *u)
{
	const struct used *begun = &e->begun, *before = &e->before;
	u->total = since(u->total, begun->total);
	u->user = since(u->user, begun->user);
	u->system = since(u->system, begun->system);
	divide(e, u);
	u->total += before->total;
	u->user += before->user;
	u->system += before->system;
	u->minor = since(u->minor, begun->minor) + before->minor;
	u->major = since(u->major, begun->major) + before->major;
	u->voluntary = forward(&e->voluntary, since(u->voluntary, begun->voluntary)) + before->voluntary;
	u->involuntary = forward(&e->involuntary, since(u->involuntary, begun->involuntary)) + before->involuntary;
	if (before->peak > u->peak)
		u->peak = before->peak;
}

/* What takes a file for each thread only if `switches`. */
static int all_used(const struct account *a, struct entry *e, struct used *u, int switches)
{
	if (read_all(a, e, u))
		return -1;
	if (switches)
		read_switches(a, e, u);
	tell(e, u);
	return 0;
}

/* Every second entry, from that one on, but the process. */
struct half {
	const struct account *a;
	struct used *found;
	unsigned first;
};

static void *read_half(void *argument)
{
	struct half *half = argument;
	const struct account *a = half->a;
	for (unsigned i = half->first; i < a->count; i += 2) {
		struct entry *e = &a->entries[i];
		if (e->tid == ENDED || read_all(a, e, &half->found[i]))
			half->found[i].total = UINT64_MAX;
		else
			read_switches(a, e, &half->found[i]);
	}
	return NULL;
}

/* All that the kernel says of process and threads, each file read once, of many threads by two of ours: `found` has room for as many as
 * there are entries, and those that are gone have total UINT64_MAX. */
static void read_everything(const struct account *a, struct used *found)
{
	struct half odd = {a, found, 1}, even = {a, found, 2};
	uint64_t voluntary = 0, involuntary = 0, peak = 0;
	pthread_t other;
	int has_other = a->count > MANY && !pthread_create(&other, NULL, read_half, &even);
	read_half(&odd);
	if (has_other)
		pthread_join(other, NULL);
	else
		read_half(&even);
	for (unsigned i = 1; i < a->count; i++) {
		if (found[i].total == UINT64_MAX)
			continue;
		voluntary += found[i].voluntary;
		involuntary += found[i].involuntary;
		peak = found[i].peak > peak ? found[i].peak : peak;
	}
	if (read_all(a, &a->entries[0], &found[0]))     /* last: it is no less than its threads together */
		found[0].total = UINT64_MAX;
	found[0].voluntary = voluntary, found[0].involuntary = involuntary, found[0].peak = peak;
}

static struct entry *by_tid(struct account *a, uint32_t tid)
{
	for (unsigned i = 0; i < a->count; i++)
		if (a->entries[i].tid == tid)
			return &a->entries[i];
	return NULL;
}

static struct entry *by_host_tid(struct account *a, int tid)
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
	struct entry *e = by_tid(a, ENDED);
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
	struct entry *e = by_host_tid(a, host_tid);
	if (e)
		*e = (struct entry){.tid = ENDED};
	pthread_mutex_unlock(&a->lock);
}

int account_begin(struct account *a)
{
	pthread_mutex_lock(&a->lock);
	struct used *found = calloc(a->count, sizeof *found);
	if (found)
		read_everything(a, found);
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
	struct entry *e = by_tid(a, tid);
	int result = e && !all_used(a, e, used, 1) ? 0 : -ESRCH;
	pthread_mutex_unlock(&a->lock);
	return result;
}

int account_used_by_each(struct account *a, struct row *rows, unsigned room)
{
	unsigned count = 0;
	pthread_mutex_lock(&a->lock);
	struct used *found = calloc(a->count, sizeof *found);
	if (found)
		read_everything(a, found);
	for (unsigned i = 0; found && i < a->count && count < room; i++)
		if (found[i].total != UINT64_MAX) {
			tell(&a->entries[i], &found[i]);
			rows[count++] = (struct row){a->entries[i].tid, found[i]};
		}
	pthread_mutex_unlock(&a->lock);
	free(found);
	return found ? (int)count : -ENOMEM;
}

void account_carry(struct account *a, uint32_t tid, const struct used *before)
{
	pthread_mutex_lock(&a->lock);
	struct entry *e = by_tid(a, tid);
	if (e)
		e->before = *before;
	pthread_mutex_unlock(&a->lock);
}

/* ---- results of calls ---- */

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
		return tid ? by_tid(a, tid) : caller;
	struct entry *leader = by_host_tid(a, a->host_pid);
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
		if (!read_clock(a, e, &total))
			add_time(result, since(total, e->begun.total) + e->before.total);
	} else if (!all_used(a, e, &u, 0))
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
	if (!all_used(a, e, &u, 1))
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
	struct entry *caller = by_host_tid(a, host_tid);
	if (!caller)
		;
	else if (number == SYS_clock_gettime && length == sizeof value.time)
		add_to_clock(a, caller, (int)arguments[0], &value.time);
	else if (number == SYS_times && length == sizeof value.times) {
		if (!all_used(a, a->entries, &u, 0)) {
			value.times.tms_utime += u.user / TICK;
			value.times.tms_stime += u.system / TICK;
		}
	} else if (number == SYS_getrusage && length == sizeof value.usage && (int)arguments[0] != RUSAGE_CHILDREN)
		add_to_usage(a, (int)arguments[0] == RUSAGE_THREAD ? caller : a->entries, &value.usage);
	pthread_mutex_unlock(&a->lock);
	memcpy(result, &value, length);
}
