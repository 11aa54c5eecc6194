/* Pages of files that the kernel has. While the peer is there it says when they change; when it is lost nobody does, and who reads by a mapping
 * asks nobody: so they are taken away.
 *
 * How long a file is after it has grown the kernel learns when somebody looks at it. A process of its own does: anyone who serves a mount must
 * not wait for it, as he could not be ended then. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES (1u << 21) /* the server's numbers end below */
#define DROPPERS 4 /* threads: the kernel holds up who takes a page that is being read, until it has been answered */
#define PATIENCE 100 /* ms for which they are waited for */
#define KERNELS_HANDLE 0x81
#define SOON 10 /* ms; a peer that was notified of a change looks by itself before */
#define LOOKING 1000 /* ms for which a look is waited for; its answer comes over the link */

static _Atomic uint64_t seen[NODES]; /* by the lower half of the node's number */
static atomic_uint highest, cursor;
static atomic_int droppers;
static struct due {
	struct due *next;
	uint64_t node;
	long long at; /* ms */
	bool seen; /* somebody has looked meanwhile */
} *first, **last = &first; /* to be looked at, in this order; */
static atomic_uint dues; /* so many */
static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_due = PTHREAD_COND_INITIALIZER;
static int to_looker = -1, from_looker = -1;

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
	/* Counted before: who has nothing to drop has ended before the next is there. */
	for (int missing = DROPPERS - droppers; missing > 0; missing--) {
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

/* Looks at a file of the mount, as any program does. */
static void look_at(uint64_t node)
{
	static int mounted = -1; /* it cannot be had before the peer has answered */
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + 12];
	} one = {.handle = {.handle_bytes = 12, .handle_type = KERNELS_HANDLE}};
	const uint32_t words[3] = {(uint32_t)(node >> 32), (uint32_t)node, 0}; /* as fuse has it: the number, its generation */
	struct statx about;

	if (mounted < 0)
		mounted = open(mfs_options.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	memcpy(one.handle.f_handle, words, sizeof words);
	int fd = open_by_handle_at(mounted, &one.handle, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return; /* nobody has it open any more */
	statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, &about);
	close(fd);
}

/* The life of the process that looks: numbers of nodes come, and go back when they have been looked at. */
static void look(pid_t client)
{
	uint64_t node;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "mfs-looker");
	while (getppid() == client && read(STDIN_FILENO, &node, sizeof node) == sizeof node) {
		look_at(node);
		if (write(STDOUT_FILENO, &node, sizeof node) != sizeof node)
			break;
	}
	_exit(0);
}

void mfs_pages_look_at(uint64_t node)
{
	static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
	struct pollfd answered = {.fd = from_looker, .events = POLLIN};
	uint64_t seen_now = 0;

	pthread_mutex_lock(&turn);
	if (write(to_looker, &node, sizeof node) == sizeof node)
		while (seen_now != node && poll(&answered, 1, LOOKING) > 0 && read(from_looker, &seen_now, sizeof seen_now) > 0)
			;
	pthread_mutex_unlock(&turn);
}

void mfs_pages_look_soon(uint64_t node)
{
	struct due *one = malloc(sizeof *one);

	if (!one) {
		mfs_pages_look_at(node);
		return;
	}
	*one = (struct due){.node = node, .at = mfs_now() + SOON};
	pthread_mutex_lock(&waiting);
	*last = one;
	last = &one->next;
	dues++;
	pthread_cond_signal(&is_due);
	pthread_mutex_unlock(&waiting);
}

void mfs_pages_asked(uint64_t node)
{
	if (!dues)
		return;
	pthread_mutex_lock(&waiting);
	for (struct due *one = first; one; one = one->next)
		if (one->node == node)
			one->seen = true;
	pthread_mutex_unlock(&waiting);
}

static void *look_when_due(void *unused)
{
	(void)unused;
	for (;;) {
		pthread_mutex_lock(&waiting);
		while (!first)
			pthread_cond_wait(&is_due, &waiting);
		struct due *one = first;
		pthread_mutex_unlock(&waiting);
		long long left = one->at - mfs_now();
		if (left > 0)
			usleep((useconds_t)left * 1000);
		pthread_mutex_lock(&waiting);
		bool seen = one->seen;
		pthread_mutex_unlock(&waiting);
		if (!seen)
			mfs_pages_look_at(one->node);
		pthread_mutex_lock(&waiting);
		first = one->next;
		if (!first)
			last = &first;
		dues--;
		pthread_mutex_unlock(&waiting);
		free(one);
	}
	return NULL;
}

int mfs_pages_begin(void)
{
	pid_t client = getpid();
	int theirs[2], ours[2];
	pthread_t thread;

	if (pipe2(theirs, O_CLOEXEC) || pipe2(ours, O_CLOEXEC))
		return -errno;
	pid_t looker = fork();
	if (looker < 0)
		return -errno;
	if (!looker) {
		/* Without the kernel's end of the mount: when all who have that are gone, it is let go from wherever it waits. */
		if (dup2(theirs[0], STDIN_FILENO) < 0 || dup2(ours[1], STDOUT_FILENO) < 0 || close_range(STDERR_FILENO + 1, ~0u, 0))
			_exit(1);
		look(client);
	}
	close(theirs[0]);
	close(ours[1]);
	to_looker = theirs[1];
	from_looker = ours[0];
	return -pthread_create(&thread, NULL, look_when_due, NULL);
}
