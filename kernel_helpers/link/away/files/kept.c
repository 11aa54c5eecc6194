/* Files that guests may map: see kept.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "link/away/files/kept.h"
#include "link/slot.h"
#include "link/away/files/giving.h"

#define MOST 128u

struct kept {
	uint64_t key, size; /* key 0: none */
	int file;
};

struct kept_files {
	pthread_mutex_t lock;
	unsigned users, turn;
	struct kept all[MOST];
};

struct kept_files *kept_files_new(void)
{
	struct kept_files *k = calloc(1, sizeof *k);
	if (!k)
		return NULL;
	pthread_mutex_init(&k->lock, NULL);
	k->users = 1;
	return k;
}

struct kept_files *kept_files_share(struct kept_files *k)
{
	pthread_mutex_lock(&k->lock);
	k->users++;
	pthread_mutex_unlock(&k->lock);
	return k;
}

void kept_files_release(struct kept_files *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	unsigned left = --k->users;
	pthread_mutex_unlock(&k->lock);
	if (left)
		return;
	for (unsigned i = 0; i < MOST; i++)
		if (k->all[i].key)
			close(k->all[i].file);
	free(k);
}

/* With the lock held. NULL: it is not there. */
static struct kept *find(struct kept_files *k, uint64_t key)
{
	for (unsigned i = 0; key && i < MOST; i++)
		if (k->all[i].key == key)
			return &k->all[i];
	return NULL;
}

void kept_files_put(struct kept_files *k, uint64_t key, int file, uint64_t size)
{
	pthread_mutex_lock(&k->lock);
	struct kept *one = find(k, key);
	if (!one)
		one = &k->all[k->turn++ % MOST];
	if (one->key)
		close(one->file);
	*one = (struct kept){key, size, file};
	pthread_mutex_unlock(&k->lock);
}

int kept_files_give(struct kept_files *k, uint64_t key, uint64_t offset, uint64_t length, int listener, uint64_t id, int number)
{
	uint64_t end;
	pthread_mutex_lock(&k->lock);
	const struct kept *one = find(k, key);
	int is_part = one && !__builtin_add_overflow(offset, length, &end) && end <= ((one->size + 4095) & ~4095ull) + ASIDE_BEYOND;
	int file = is_part ? fcntl(one->file, F_DUPFD_CLOEXEC, 0) : -1; /* the guest may be slow, and others wait */
	pthread_mutex_unlock(&k->lock);
	if (file < 0)
		return 0;
	int is = !give_file(listener, id, file, number);
	close(file);
	return is;
}
