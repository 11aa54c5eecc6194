/* The kernel's side of a mount: requests are taken from /dev/fuse and forwarded as they are, replies written back. */
#define _GNU_SOURCE
#include "mfs/client/parts.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MINOR 45 /* of the kernel's protocol: what is newer is not asked for */
#define NOTIFY_INC_EPOCH 8
#define HAS_RESEND (1ull << 39)
#define DIRECT_IO_ALLOW_MMAP (1ull << 36)

static const uint64_t wanted = FUSE_ASYNC_READ | FUSE_POSIX_LOCKS | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_DONT_MASK |
                               FUSE_FLOCK_LOCKS | FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO |
                               FUSE_PARALLEL_DIROPS | FUSE_POSIX_ACL | FUSE_MAX_PAGES | FUSE_HANDLE_KILLPRIV_V2 | HAS_RESEND |
                               DIRECT_IO_ALLOW_MMAP;

static void obey(const struct mfs_notification *one)
{
	const struct fuse_out_header *header = (const struct fuse_out_header *)one->frame;
	struct fuse_in_header ack = {.len = sizeof ack, .opcode = MFS_ACK};
	int result;

	if (one->size >= sizeof *header + sizeof ack.nodeid)
		memcpy(&ack.nodeid, header + 1, sizeof ack.nodeid); /* of our own frames: a number, or a node's */
	if (header->error == MFS_FENCE) {
		mfs_unread_settle();
		mfs_link_send(&ack, sizeof ack);
	} else if (header->error == NOTIFY_INC_EPOCH)
		mfs_fuse_forget_names();
	else if (header->error == MFS_LOOK)
		mfs_pages_look_at(ack.nodeid);
	else if (header->error == MFS_LOOK_SOON)
		mfs_pages_look_soon(ack.nodeid);
	else if ((result = mfs_fuse_tell(header, one->size)) == -ENOENT) {
		mfs_fuse_forget_names(); /* it does not know the node yet: perhaps it is just about to take an answer about it */
		mfs_unread_repeat(header, one->size, ack.nodeid);
	} else if (result && result != -ENODEV)
		mfs_log("the kernel does not take notification %d: %s", header->error, strerror(-result));
}

/* A thread of its own: the kernel may hold it up until an answer has come that another thread delivers. */
static void *pass_notifications(void *unused)
{
	(void)unused;
	for (;;) {
		struct mfs_notification *one = mfs_next_notification();
		obey(one);
		free(one);
	}
	return NULL;
}

/* The kernel's first question; what follows has to hold with every server, so none is asked. */
static void agree(const struct fuse_in_header *in)
{
	const struct fuse_init_in *asked = (const struct fuse_init_in *)(in + 1);
	uint64_t flags = asked->flags | (asked->flags & FUSE_INIT_EXT ? (uint64_t)asked->flags2 << 32 : 0);
	struct {
		struct fuse_out_header header;
		struct fuse_init_out body;
	} reply = {
		.header = {.len = sizeof reply, .unique = in->unique},
		.body =
			{
				.major = FUSE_KERNEL_VERSION,
				.minor = asked->minor < MINOR ? asked->minor : MINOR,
				.max_readahead = MFS_READ_AHEAD << 10, /* no less, whether it has been set already or is set later */
				.flags = (uint32_t)(flags & wanted) | (asked->flags & FUSE_INIT_EXT),
				.flags2 = (uint32_t)((flags & wanted) >> 32),
				.max_background = 128,
				.congestion_threshold = 96,
				.max_write = MFS_DATA_MOST,
				.time_gran = 1,
				.max_pages = MFS_DATA_MOST / 4096,
			},
	};

	mfs_kept->minor = reply.body.minor;
	if (asked->major == FUSE_KERNEL_VERSION && asked->minor >= 31)
		mfs_fuse_answer(&reply, sizeof reply);
	else
		mfs_fuse_fail(in->unique, EPROTO);
}

static bool is_answered(const struct fuse_in_header *in)
{
	for (unsigned i = 0; i < MFS_MEMORIES; i++)
		if (mfs_memories[i].asked(in))
			return true;
	return false;
}

static void *take_requests(void *unused)
{
	char *buffer = malloc(MFS_FRAME_MOST);

	(void)unused;
	while (buffer) {
		ssize_t size = read(mfs_fuse_device, buffer, MFS_FRAME_MOST);
		const struct fuse_in_header *in = (const struct fuse_in_header *)buffer;
		if (size < 0 && (errno == ENOENT || errno == EINTR || errno == EAGAIN))
			continue;
		if (size < (ssize_t)sizeof *in)
			break; /* ENODEV: it has been unmounted */
		if (in->opcode == FUSE_INIT)
			agree(in);
		if (in->opcode == FUSE_READ || in->opcode == FUSE_WRITE)
			mfs_pages_seen(in->nodeid);
		if (in->opcode == FUSE_GETATTR)
			mfs_pages_asked(in->nodeid);
		mfs_unread_asked(in);
		if (in->opcode == FUSE_INIT || in->opcode == FUSE_DESTROY || is_answered(in))
			continue;
		mfs_link_forward(buffer, (size_t)size);
	}
	kill(getpid(), SIGTERM);
	return NULL;
}

int mfs_fuse_begin(int opened)
{
	pthread_t notifications, requests;

	mfs_fuse_device = opened;
	int result = mfs_unread_begin();
	if (!result)
		result = -pthread_create(&notifications, NULL, pass_notifications, NULL);
	if (!result && !(result = -pthread_create(&requests, NULL, take_requests, NULL)))
		pthread_detach(requests); /* it ends when the mount does, and nobody waits for it */
	return result;
}
