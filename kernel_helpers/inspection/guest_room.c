/* The guest's mappings, by PROCMAP_QUERY (Linux 6.11); before that by the list in /proc/PID/maps, which is believed for a moment where
 * it says that there is room: a program that takes memory away from a buffer it has just given to a call gets EFAULT a little late. */
#define _GNU_SOURCE
#include "inspection/guest_room.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LIST_HOLDS_NS 20000000

/* linux/fs.h of 6.11 */
struct query {
	uint64_t size, flags, address, start, end, vma_flags, page_size, offset, inode;
	uint32_t major, minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define QUERY _IOWR('f', 17, struct query)
enum { VMA_READABLE = 1, VMA_WRITABLE = 2, COVERING_OR_NEXT = 0x10 };

struct span {
	uint64_t start, end;
};

struct guest_room {
	pthread_mutex_t lock;
	int maps;                   /* -1: not open */
	int lists;                  /* the kernel does not know QUERY */
	struct room_seen *list;
	unsigned count, room;
	int64_t listed_at;
	int64_t keys_changed_at;    /* 0: no memory has a protection key */
	struct span *keyed;         /* memory that has one, in order of addresses, */
	unsigned keyed_count, keyed_room;
	int64_t keyed_listed_at;    /* as it was then */
};

struct guest_room *guest_room_new(void)
{
	struct guest_room *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->maps = -1;
	pthread_mutex_init(&r->lock, NULL);
	return r;
}

void guest_room_free(struct guest_room *r)
{
	if (!r)
		return;
	if (r->maps >= 0)
		close(r->maps);
	free(r->list);
	free(r->keyed);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static FILE *open_text(int tid, const char *name)
{
	char path[40];
	snprintf(path, sizeof path, "/proc/%d/%s", tid, name);
	return fopen(path, "re");
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Reads the list anew, unless an older one will do. 0, or a negative errno. */
static int list(struct guest_room *r, int tid, int fresh)
{
	if (!fresh && r->listed_at && now() - r->listed_at < LIST_HOLDS_NS)
		return 0;
	FILE *file = open_text(tid, "maps");
	char line[4400], permissions[5];
	unsigned long start, end;
	r->count = 0;
	r->listed_at = 0;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx %4s", &start, &end, permissions) != 3)
			continue;
		if (r->count == r->room) {
			unsigned more = r->room ? r->room * 2 : 64;
			struct room_seen *longer = realloc(r->list, more * sizeof *longer);
			if (!longer)
				break;
			r->list = longer;
			r->room = more;
		}
		r->list[r->count++] = (struct room_seen){start, end, permissions[1] == 'w'};
	}
	if (!file)
		return -ESRCH;
	fclose(file);
	r->listed_at = now();
	return r->count ? 0 : -ESRCH;
}

static int listed(struct guest_room *r, int tid, uint64_t address, struct room_seen *found, int fresh)
{
	int error = list(r, tid, fresh);
	unsigned low = 0, high = r->count;
	while (low < high) {
		unsigned middle = (low + high) / 2;
		if (r->list[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (error || low == r->count)
		return error ? error : -ENOENT;
	*found = r->list[low];
	return 0;
}

/* The mapping that holds an address, or the next one. 0, -ENOENT: none is there, or another errno. Called with the lock held. */
static int mapping(struct guest_room *r, int tid, uint64_t address, struct room_seen *found, int fresh)
{
	for (int again = 0; !r->lists && again < 2; again++) {
		char path[40];
		snprintf(path, sizeof path, "/proc/%d/maps", tid);
		if (r->maps < 0 && (r->maps = open(path, O_RDONLY | O_CLOEXEC)) < 0)
			return -errno;
		struct query q = {.size = sizeof q, .flags = COVERING_OR_NEXT, .address = address};
		if (!ioctl(r->maps, QUERY, &q)) {
			*found = (struct room_seen){q.start, q.end, (q.vma_flags & VMA_WRITABLE) != 0};
			return 0;
		}
		if (errno == ENOENT)
			return -ENOENT;
		r->lists = errno == ENOTTY;
		close(r->maps);         /* ESRCH: that memory is gone, the thread has executed another program */
		r->maps = -1;
	}
	return r->lists ? listed(r, tid, address, found, fresh) : -ESRCH;
}

/* Whether a mapping is one that the kernel makes longer downwards (MAP_GROWSDOWN, the first thread's stack). */
static int grows_down(int tid, uint64_t start)
{
	FILE *file = open_text(tid, "smaps");
	char line[4400];
	unsigned long from, to;
	int found = 0, yes = 0;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			if (found)
				break;
			found = from == start;
		} else if (found && !strncmp(line, "VmFlags:", 8))
			yes = strstr(line, " gd") != NULL;
	}
	if (file)
		fclose(file);
	return yes;
}

/* Whether what is touched at `address`, below the mapping, becomes part of it. A stack never gets longer than its limit. */
static int is_grown_into(int tid, uint64_t address, const struct room_seen *next)
{
	struct rlimit limit;
	if (!next->writable || address < 65536 || prlimit(tid, RLIMIT_STACK, NULL, &limit) || next->end - address > limit.rlim_cur)
		return 0;
	return grows_down(tid, next->start);
}

static enum room look(struct guest_room *r, struct room_seen *seen, int tid, uint64_t address, uint64_t length, int fresh)
{
	uint64_t at = address, end = address + length;
	int some = 0, lacks = end < address;
	while (at < end) {
		if (at < seen->start || at >= seen->end) {
			int error = mapping(r, tid, at, seen, fresh);
			if (error)
				seen->end = 0;
			if (error && error != -ENOENT)
				return ROOM_ALL;
			if (error) {
				lacks = 1;
				break;
			}
		}
		if (at < seen->start) {
			if (is_grown_into(tid, at, seen))
				return ROOM_PART;
			lacks = 1;
			at = seen->start;
			continue;
		}
		if (seen->writable)
			some = 1;
		else
			lacks = 1;
		if (some && lacks)
			return ROOM_PART;
		at = seen->end;
	}
	return !lacks ? ROOM_ALL : some ? ROOM_PART : ROOM_NONE;
}

enum room guest_room_look(struct guest_room *r, struct room_seen *seen, int tid, uint64_t address, uint64_t length)
{
	if (seen->writable && address >= seen->start && address < seen->end && length <= seen->end - address)
		return ROOM_ALL;
	pthread_mutex_lock(&r->lock);
	enum room room = look(r, seen, tid, address, length, 0);
	if (room != ROOM_ALL && r->lists) {
		seen->end = 0;
		room = look(r, seen, tid, address, length, 1);
	}
	pthread_mutex_unlock(&r->lock);
	return room;
}

int guest_room_grows(struct guest_room *r, int tid, uint64_t address)
{
	struct room_seen next = {0};
	pthread_mutex_lock(&r->lock);
	int yes = !mapping(r, tid, address, &next, 1) && address < next.start && is_grown_into(tid, address, &next);
	pthread_mutex_unlock(&r->lock);
	return yes;
}

void guest_room_keys_change(struct guest_room *r)
{
	pthread_mutex_lock(&r->lock);
	__atomic_store_n(&r->keys_changed_at, now(), __ATOMIC_RELAXED);
	pthread_mutex_unlock(&r->lock);
}

int guest_room_may_have_keys(const struct guest_room *r)
{
	return __atomic_load_n(&r->keys_changed_at, __ATOMIC_RELAXED) != 0;
}

/* Notes that memory, unless there is no room for it. */
static void add_keyed(struct guest_room *r, struct span found)
{
	if (r->keyed_count == r->keyed_room) {
		unsigned more = r->keyed_room ? r->keyed_room * 2 : 16;
		struct span *longer = realloc(r->keyed, more * sizeof *longer);
		if (!longer)
			return;
		r->keyed = longer;
		r->keyed_room = more;
	}
	r->keyed[r->keyed_count++] = found;
}

static void list_keyed(struct guest_room *r, int tid)
{
	int64_t began = now();
	FILE *file = open_text(tid, "smaps");
	char line[4400];
	unsigned long start, end;
	struct span span = {0};
	int key;
	r->keyed_count = 0;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			span = (struct span){start, end};
		else if (sscanf(line, "ProtectionKey: %d", &key) == 1 && key)
			add_keyed(r, span);
	}
	if (file)
		fclose(file);
	r->keyed_listed_at = file ? began : 0;
}

int guest_room_is_keyed(struct guest_room *r, int tid, uint64_t address, uint64_t length)
{
	if (!guest_room_may_have_keys(r) || !length)
		return 0;
	int found = 0;
	pthread_mutex_lock(&r->lock);
	/* The call that changes them is made a moment after it is noted. */
	if (r->keyed_listed_at < r->keys_changed_at + LIST_HOLDS_NS)
		list_keyed(r, tid);
	for (unsigned i = 0; i < r->keyed_count && !found; i++)
		found = address < r->keyed[i].end && r->keyed[i].start < address + length;
	pthread_mutex_unlock(&r->lock);
	return found;
}
