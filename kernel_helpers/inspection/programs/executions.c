/* Programs that processes execute, and what each has used when it ends: of the processes that are followed, and of those that descend from them.
 *
 * The kernel reports births, executions and ends (rings.h), and a counter of its own counts the processor time of each program, with all its
 * threads, whichever program waits for the process. Most programs are short: those that nothing is known of, and that have not used much, are not reported at
 * all. A program that ends before anybody has looked has no counter; it has used no more than the time that has passed. */
#define _GNU_SOURCE
#include "inspection/programs/rings.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FOLLOWED_MOST 8192u /* processes */
#define COUNTERS_MOST 1024u /* programs that are counted at a time: a descriptor each */
#define BUCKETS 1024u /* a power of two */
#define KNOWN_ROOM (1u << 16) /* a power of two, twice as many as there ever are */
#define CPU_CLOCK_SCHED 2 /* the low bits of a process's clock id: exact, in ns */
#define BATCH 4096u /* records that are put into order at once */
#define PATH_ROOM 256u /* of longer ones nothing is known */

enum kind { EXECUTED = 1, ENDED = 2 };

/* EXECUTED: only if it is known. ENDED: if it is known or has used more than the floor; replaced: by another program of the same process. */
struct execution {
	uint64_t cpu; /* ns; used, ENDED alone */
	uint32_t pid, uid, kind, replaced;
	char path[PATH_ROOM];
};

struct followed {
	struct followed *next;
	uint32_t pid, uid;
	int counter; /* a descriptor, or -1 */
	uint64_t begun; /* when it executed its program; 0: it has not */
	uint64_t spent; /* ns of processor time that its programs before this one have used */
	uint64_t before; /* and this one, before it was counted */
	char path[PATH_ROOM];
};

struct executions {
	int epoll;
	int is_on;
	uint64_t floor;
	unsigned followed_count, counters;
	struct followed *followed[BUCKETS];
	uint64_t known[KNOWN_ROOM];
	struct record records[BATCH];
	unsigned ring_count;
	struct ring rings[];
};

static uint64_t key_of(uint32_t uid, const char *path)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ uid;

	for (; *path; path++)
		hash = (hash ^ (unsigned char)*path) * 0x100000001b3ull;
	hash ^= hash >> 32;
	return hash ? hash : 1;
}

static uint64_t *slot_of(struct executions *e, uint64_t key)
{
	unsigned i = key & (KNOWN_ROOM - 1);

	while (e->known[i] && e->known[i] != key)
		i = (i + 1) & (KNOWN_ROOM - 1);
	return &e->known[i];
}

static struct followed **place_of(struct executions *e, uint32_t pid)
{
	struct followed **at = &e->followed[pid & (BUCKETS - 1)];

	while (*at && (*at)->pid != pid)
		at = &(*at)->next;
	return at;
}

static int count_from_now(uint32_t pid)
{
	struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE,
	                                     .size = sizeof attributes,
	                                     .config = PERF_COUNT_SW_TASK_CLOCK,
	                                     .inherit = 1,
	                                     .inherit_thread = 1};
	int fd = (int)syscall(SYS_perf_event_open, &attributes, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0 && errno == EINVAL) { /* Linux before 5.13: of the first thread alone */
		attributes.inherit = attributes.inherit_thread = 0;
		fd = (int)syscall(SYS_perf_event_open, &attributes, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
	}
	return fd;
}

static void report(struct executions *e, const struct followed *f, enum kind kind, uint64_t cpu, int replaced, struct execution *found,
                   unsigned room, unsigned *count)
{
	int is_known = f->path[0] && *slot_of(e, key_of(f->uid, f->path)) != 0;

	if (!f->path[0] || *count == room || !(is_known || (kind == ENDED && cpu >= e->floor)))
		return;
	struct execution *one = &found[(*count)++];
	*one = (struct execution){.cpu = cpu, .pid = f->pid, .uid = f->uid, .kind = kind, .replaced = (uint32_t)replaced};
	memcpy(one->path, f->path, PATH_ROOM);
}

/* Its program has ended, at that time: what it has used. */
static uint64_t stop(struct executions *e, struct followed *f, uint64_t time)
{
	uint64_t cpu = time > f->begun ? time - f->begun : 0;

	if (f->counter >= 0) {
		uint64_t counted;
		if (read(f->counter, &counted, sizeof counted) == sizeof counted)
			cpu = f->before + counted;
		close(f->counter);
		f->counter = -1;
		e->counters--;
	}
	f->spent += cpu;
	return cpu;
}

/* What a process has used until now, with all its threads; 0: it has ended. */
static uint64_t used_until_now(uint32_t pid)
{
	struct timespec used;
	clockid_t clock = (clockid_t)(~pid << 3 | CPU_CLOCK_SCHED);

	return clock_gettime(clock, &used) ? 0 : (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void executes(struct executions *e, struct followed *f, uint64_t time)
{
	char link[32];
	struct stat status;

	f->begun = time;
	snprintf(link, sizeof link, "/proc/%u/exe", f->pid);
	ssize_t length = readlink(link, f->path, PATH_ROOM);
	if (length <= 0 || length >= (ssize_t)PATH_ROOM) {
		f->path[0] = 0;
		return;
	}
	f->path[length] = 0;
	snprintf(link, sizeof link, "/proc/%u", f->pid);
	if (stat(link, &status)) {
		f->path[0] = 0;
		return;
	}
	f->uid = status.st_uid;
	if (e->counters < COUNTERS_MOST && (f->counter = count_from_now(f->pid)) >= 0) {
		uint64_t used = used_until_now(f->pid);
		f->before = used > f->spent ? used - f->spent : 0;
		e->counters++;
	}
}

static void drop(struct executions *e, struct followed **at)
{
	struct followed *f = *at;

	*at = f->next;
	if (f->counter >= 0) {
		close(f->counter);
		e->counters--;
	}
	free(f);
	e->followed_count--;
}

static void follow(struct executions *e, uint32_t pid)
{
	struct followed **first = &e->followed[pid & (BUCKETS - 1)], *f;

	if (*place_of(e, pid) || e->followed_count == FOLLOWED_MOST || !(f = calloc(1, sizeof *f)))
		return;
	*f = (struct followed){.next = *first, .pid = pid, .counter = -1};
	*first = f;
	e->followed_count++;
}

static void switch_rings(struct executions *e)
{
	int on = e->followed_count != 0;

	if (on == e->is_on)
		return;
	e->is_on = on;
	for (unsigned i = 0; i < e->ring_count; i++)
		ring_switch(&e->rings[i], on);
}

/* Records are missing: those that have ended unseen are let go of. */
static void sweep(struct executions *e)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct followed **at = &e->followed[i]; *at;) {
			if (kill((pid_t)(*at)->pid, 0) && errno == ESRCH)
				drop(e, at);
			else
				at = &(*at)->next;
		}
}

static void happened(struct executions *e, const struct record *r, struct execution *found, unsigned room, unsigned *count)
{
	struct followed **at = place_of(e, r->what == BIRTH ? r->parent : r->pid), *f = *at;

	if (!f)
		return;
	if (r->what == BIRTH) {
		struct followed **earlier = place_of(e, r->pid);
		if (*earlier) /* one of that number that has ended */
			drop(e, earlier);
		follow(e, r->pid);
		return;
	}
	if (f->begun)
		report(e, f, ENDED, stop(e, f, r->time), r->what == EXECUTION, found, room, count);
	if (r->what == END) {
		drop(e, at);
		return;
	}
	executes(e, f, r->time);
	report(e, f, EXECUTED, 0, 0, found, room, count);
}

static int by_time(const void *one, const void *other)
{
	const struct record *a = one, *b = other;
	return a->time < b->time ? -1 : a->time > b->time;
}

/* What has happened since the last time, at most `room` of it. How much. */
unsigned executions_take(struct executions *e, struct execution *found, unsigned room)
{
	struct epoll_event ready[16];
	unsigned n = 0, count = 0;
	int lost = 0;

	while (epoll_wait(e->epoll, ready, 16, 0) == 16)
		;
	for (unsigned i = 0; i < e->ring_count; i++)
		n += ring_take(&e->rings[i], e->records + n, BATCH - n, &lost);
	qsort(e->records, n, sizeof *e->records, by_time);
	for (unsigned i = 0; i < n; i++)
		happened(e, &e->records[i], found, room, &count);
	if (lost)
		sweep(e);
	switch_rings(e);
	return count;
}

/* Whether something has happened. */
int executions_fd(const struct executions *e)
{
	return e->epoll;
}

/* A process, from now on, and its descendants. */
void executions_follow(struct executions *e, uint32_t pid)
{
	follow(e, pid);
	switch_rings(e);
}

/* That program of that user is to be reported, or not any more. */
void executions_know(struct executions *e, uint32_t uid, const char *path, int is_known)
{
	uint64_t key = key_of(uid, path), *slot = slot_of(e, key);

	if (is_known) {
		*slot = key;
		return;
	}
	if (!*slot)
		return;
	*slot = 0;
	for (unsigned i = (unsigned)(slot - e->known + 1) & (KNOWN_ROOM - 1); e->known[i]; i = (i + 1) & (KNOWN_ROOM - 1)) {
		uint64_t moved = e->known[i]; /* those behind it have their places by it */
		e->known[i] = 0;
		*slot_of(e, moved) = moved;
	}
}

void executions_close(struct executions *e)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		while (e->followed[i])
			drop(e, &e->followed[i]);
	for (unsigned i = 0; i < e->ring_count; i++)
		ring_close(&e->rings[i]);
	if (e->epoll >= 0)
		close(e->epoll);
	free(e);
}

/* floor: ns of processor time from which on the end of an unknown program is reported. NULL with errno: the kernel does not report them here. */
struct executions *executions_open(uint64_t floor)
{
	long processors = sysconf(_SC_NPROCESSORS_CONF);
	struct executions *e = calloc(1, sizeof *e + (size_t)processors * sizeof *e->rings);
	int error = 0;

	if (!e)
		return NULL;
	e->floor = floor;
	e->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (e->epoll < 0)
		error = -errno;
	for (int i = 0; i < processors && !error; i++) {
		int opened = ring_open(&e->rings[e->ring_count], i, e->epoll);
		error = opened < 0 ? opened : 0;
		e->ring_count += opened > 0;
	}
	if (!error)
		return e;
	executions_close(e);
	errno = -error;
	return NULL;
}
