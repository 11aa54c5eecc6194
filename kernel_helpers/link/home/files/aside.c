/* Files that are mapped aside as they are opened: see aside.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "link/home/files/aside.h"

#define PAGE 4096u

struct known {
	struct known_file file; /* inode 0: none */
	uint64_t key;
	int64_t size;
	struct timespec modified, changed;
};

/* Of all processes of this program, and the lists of each. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct known all[KNOWN_FILES];
static unsigned turn;
static uint64_t version = 1;

/* ---- with the lock held ---- */

static struct known *find(uint64_t device, uint64_t inode)
{
	for (unsigned i = 0; i < KNOWN_FILES; i++)
		if (all[i].file.inode == inode && all[i].file.device == device && all[i].key)
			return &all[i];
	return NULL;
}

static int is_same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static int is_unchanged(const struct known *k, const struct stat *s)
{
	return k->size == s->st_size && is_same_time(&k->modified, &s->st_mtim) && is_same_time(&k->changed, &s->st_ctim);
}

static int has(const struct asides *a, uint64_t key)
{
	for (unsigned i = 0; i < a->count; i++)
		if (a->all[i].key == key)
			return 1;
	return 0;
}

static void add(struct asides *a, uint64_t address, uint64_t length, uint64_t key)
{
	if (a->count < ASIDES)
		a->all[a->count++] = (struct aside){address, length, key};
}

/* What the process has not yet mapped, for its loops to find. */
static void list_unmapped(const struct asides *a, struct control_page *control)
{
	unsigned count = 0;
	for (unsigned i = 0; i < KNOWN_FILES; i++)
		if (all[i].key && !has(a, all[i].key))
			control->known[count++] = all[i].file;
	control->known_count = count;
}

/* ---- without it ---- */

/* Whether nobody has it open for writing: a read lease is refused then (engine/memory/written.py). By an open file of our own, for a lease
 * changes what the process could see of its own. */
static int is_only_read(int file)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	int own = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (own < 0)
		return 0;
	fcntl(own, F_SETSIG, SIGURG); /* of a lease that is broken; ignored */
	int is = !fcntl(own, F_SETLEASE, F_RDLCK) || errno != EAGAIN;
	fcntl(own, F_SETLEASE, F_UNLCK);
	close(own);
	return is;
}

void aside_offer(struct asides *a, struct control_page *control, struct slot *slot)
{
	a->next += slot->aside_length ? slot->aside_length + PAGE : 0; /* of which nothing was said */
	slot->aside_length = 0;
	if (!a->next)
		return;
	pthread_mutex_lock(&lock);
	if (a->listed_version != version || a->listed_count != a->count) {
		list_unmapped(a, control);
		a->listed_version = version;
		a->listed_count = a->count;
	}
	pthread_mutex_unlock(&lock);
	slot->aside = control->known_count && a->count < ASIDES ? a->next : 0;
}

uint64_t aside_key(struct asides *a, struct slot *slot, int file, const struct stat *status)
{
	uint64_t length = slot->aside_length, address = slot->aside, key = 0;
	slot->aside_length = 0;
	if (!a->next)
		return 0;
	pthread_mutex_lock(&lock);
	if (length)
		a->next += length + PAGE;
	struct known *k = find(status->st_dev, status->st_ino);
	if (k && is_unchanged(k, status)) {
		if (length == ((uint64_t)k->size + PAGE - 1) / PAGE * PAGE + ASIDE_BEYOND)
			add(a, address, length, k->key);
		if (has(a, k->key))
			key = k->key;
	}
	pthread_mutex_unlock(&lock);
	return key && is_only_read(file) ? key : 0;
}

int aside_know(struct asides *a, int descriptor, uint64_t key)
{
	struct stat status;
	if (!key || fstat(descriptor, &status))
		return key ? -errno : -EINVAL;
	pthread_mutex_lock(&lock);
	struct known *k = find(status.st_dev, status.st_ino);
	if (!k)
		k = &all[turn++ % KNOWN_FILES];
	*k = (struct known){{status.st_dev, status.st_ino}, key, status.st_size, status.st_mtim, status.st_ctim};
	version++;
	if (!has(a, key))
		add(a, 0, 0, key);
	pthread_mutex_unlock(&lock);
	return 0;
}

void aside_forget(uint64_t key)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < KNOWN_FILES; i++)
		if (all[i].key == key)
			all[i] = (struct known){0};
	version++;
	pthread_mutex_unlock(&lock);
}

unsigned aside_take(struct asides *a, struct aside *list, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&lock);
	for (; a->taken < a->count && n < room; a->taken++)
		if (a->all[a->taken].address)
			list[n++] = a->all[a->taken];
	pthread_mutex_unlock(&lock);
	return n;
}
