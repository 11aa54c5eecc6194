/* Pages of files that the kernel has. While the peer is there it says when they change; when it is lost nobody does, and who reads by a mapping
 * asks nobody: so they are taken away. */
#define _GNU_SOURCE
#include "mfs_client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES (1u << 21) /* the server's numbers end below */
#define DROPPERS 4       /* threads: the kernel holds up who takes a page that is being read, until it has been answered */
#define PATIENCE 100     /* ms for which they are waited for */
#define KERNELS_HANDLE 0x81

static _Atomic uint64_t seen[NODES]; /* by the lower half of the node's number */
static atomic_uint highest, cursor;
static atomic_int droppers;

void mfs_pages_seen(uint64_t node)
{
	uint32_t index = (uint32_t)node, top = highest;

	if (index >= NODES)
		return;
	seen[index] = node;
	while (top <= index && !atomic_compare_exchange_weak(&highest, &top, index + 1))
		;
}

static void *drop(void *unused)
{
	(void)unused;
	for (uint32_t index; (index = cursor++) < highest;) {
		uint64_t node = seen[index] ? atomic_exchange(&seen[index], 0) : 0;
		struct {
			struct fuse_out_header header;
			struct fuse_notify_inval_inode_out body;
		} inode = {.header = {.len = sizeof inode, .error = FUSE_NOTIFY_INVAL_INODE}, .body = {.ino = node}};
		if (node)
			mfs_fuse_tell(&inode, sizeof inode);
	}
	droppers--;
	return NULL;
}

void mfs_pages_drop(void)
{
	pthread_t thread;

	cursor = 0;
	while (droppers < DROPPERS) {
		droppers++;
		if (pthread_create(&thread, NULL, drop, NULL)) {
			droppers--;
			break;
		}
		pthread_detach(thread);
	}
	for (int ms = 0; droppers && ms < PATIENCE; ms++)
		usleep(1000);
}

/* A descriptor of the mount; it cannot be had before the peer has answered. */
static int mounted(void)
{
	static int fd = -1;

	if (fd < 0)
		fd = open(mfs_options.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd;
}

void mfs_pages_look_at(uint64_t node)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + 12];
	} one = {.handle = {.handle_bytes = 12, .handle_type = KERNELS_HANDLE}};
	const uint32_t words[3] = {(uint32_t)(node >> 32), (uint32_t)node, 0}; /* as fuse has it: the number, its generation */
	struct statx about;

	memcpy(one.handle.f_handle, words, sizeof words);
	int fd = open_by_handle_at(mounted(), &one.handle, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return; /* nobody has it open any more */
	statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &about);
	close(fd);
}
