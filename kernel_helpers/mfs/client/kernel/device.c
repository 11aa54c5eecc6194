/* The kernel's side of a mount, as far as messages to it go: by the device from which kernel_requests.c takes what it asks. */
#define _GNU_SOURCE
#include "mfs/client/kernel/kernel.h"

#include <errno.h>
#include <linux/fuse.h>
#include <unistd.h>

#define NOTIFY_RESEND 7
#define EPOCHS_SINCE 44
int mfs_fuse_device = -1;

int mfs_fuse_tell(const void *frame, size_t size)
{
	return write(mfs_fuse_device, frame, size) < 0 ? -errno : 0;
}

int mfs_fuse_forget_attributes(uint64_t node)
{
	struct {
		struct fuse_out_header header;
		struct fuse_notify_inval_inode_out body;
	} attributes = {.header = {.len = sizeof attributes, .error = FUSE_NOTIFY_INVAL_INODE}, .body = {.ino = node, .off = -1}};

	return mfs_fuse_tell(&attributes, sizeof attributes);
}

void mfs_fuse_answer(const void *frame, size_t size)
{
	/* Refused are answers to what has been given up meanwhile. */
	if (write(mfs_fuse_device, frame, size) < 0 && errno != ENOENT && errno != ENODEV && errno != EINVAL)
		mfs_log("the kernel does not take an answer: %s", strerror(errno));
}

void mfs_fuse_fail(uint64_t unique, int error)
{
	struct fuse_out_header header = {.len = sizeof header, .error = -error, .unique = unique};

	atomic_fetch_add(&mfs_figures->failed, 1);
	mfs_fuse_answer(&header, sizeof header);
}

int mfs_fuse_ask_again(void)
{
	struct fuse_out_header header = {.len = sizeof header, .error = NOTIFY_RESEND};

	return mfs_fuse_tell(&header, sizeof header);
}

bool mfs_fuse_has_epochs(void)
{
	return mfs_kept->minor >= EPOCHS_SINCE;
}
