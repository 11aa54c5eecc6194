/* What the kernel says of one process to another: its cpu clock to the nanosecond, a thread's in schedstat, and user and system time in ticks
 * of 10 ms only. As it does itself, the exact sum is divided in the ratio of the two. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "usage/account_inner.h"

#define MANY 64 /* threads that are worth one more of ours */

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
int account_read_clock(const struct account *a, const struct entry *e, uint64_t *total)
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
	struct used coarse; /* a kernel without schedstat */
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
	return account_read_clock(a, e, &u->total) || read_stat(u, a->host_pid, e->tid ? e->host_tid : 0) ? -1 : 0;
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

uint64_t account_since(uint64_t now, uint64_t then)
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

static uint64_t forward(uint64_t *last, uint64_t now)
{
	return *last = now > *last ? now : *last;
}

/* What was read of it becomes what is reported: since it came here, and before. */
void account_report(struct entry *e, struct used *u)
{
	const struct used *begun = &e->begun, *before = &e->before;
	u->total = account_since(u->total, begun->total);
	u->user = account_since(u->user, begun->user);
	u->system = account_since(u->system, begun->system);
	divide(e, u);
	u->total += before->total;
	u->user += before->user;
	u->system += before->system;
	u->minor = account_since(u->minor, begun->minor) + before->minor;
	u->major = account_since(u->major, begun->major) + before->major;
	u->voluntary = forward(&e->voluntary, account_since(u->voluntary, begun->voluntary)) + before->voluntary;
	u->involuntary = forward(&e->involuntary, account_since(u->involuntary, begun->involuntary)) + before->involuntary;
	if (before->peak > u->peak)
		u->peak = before->peak;
}

/* What takes a file for each thread only if `switches`. */
int account_all_used(const struct account *a, struct entry *e, struct used *u, int switches)
{
	if (read_all(a, e, u))
		return -1;
	if (switches)
		read_switches(a, e, u);
	account_report(e, u);
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
void account_read_everything(const struct account *a, struct used *found)
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
	if (read_all(a, &a->entries[0], &found[0])) /* last: it is no less than its threads together */
		found[0].total = UINT64_MAX;
	found[0].voluntary = voluntary, found[0].involuntary = involuntary, found[0].peak = peak;
}
