/* Changes that the peer has reported, until the kernel is notified: nobody who reads from the peer waits for the kernel. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct mfs_notification *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_there = PTHREAD_COND_INITIALIZER;

void mfs_fuse_notify(const void *frame, size_t size)
{
	const struct fuse_out_header *header = frame;

	if (header->error == FUSE_NOTIFY_INVAL_INODE) {
		mfs_beside_forget(((const struct fuse_notify_inval_inode_out *)(header + 1))->ino);
		mfs_known_forget(((const struct fuse_notify_inval_inode_out *)(header + 1))->ino);
	}
	struct mfs_notification *one = malloc(sizeof *one + size);

	if (!one)
		return; /* nothing is reported to the peer, which waits until our kernel has forgotten by itself */
	one->next = NULL;
	one->size = size;
	memcpy(one->frame, frame, size);
	pthread_mutex_lock(&lock);
	*last = one;
	last = &one->next;
	pthread_cond_signal(&is_there);
	pthread_mutex_unlock(&lock);
	atomic_fetch_add(&mfs_figures->notifications, 1);
}

struct mfs_notification *mfs_next_notification(void)
{
	pthread_mutex_lock(&lock);
	while (!first)
		pthread_cond_wait(&is_there, &lock);
	struct mfs_notification *one = first;
	first = one->next;
	if (!first)
		last = &first;
	pthread_mutex_unlock(&lock);
	return one;
}
