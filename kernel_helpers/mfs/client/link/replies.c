/* What comes from the peer: answers, which the kernel gets, and notifications. */
#define _GNU_SOURCE
#include "mfs/client/link/connection.h"

#include <linux/fuse.h>
#include <string.h>

void mfs_link_receive(char *buffer)
{
	struct fuse_out_header *header = (struct fuse_out_header *)buffer;
	struct mfs_beside beside;

	for (;;) {
		long size = mfs_stream_head(&mfs_connection.from, buffer, sizeof *header, MFS_FRAME_MOST);
		if (size < 0 || mfs_stream_read(&mfs_connection.from, header + 1, (size_t)size - sizeof *header))
			return;
		atomic_fetch_add(&mfs_figures->bytes_in, (unsigned long long)size);
		__atomic_store_n(&mfs_connection.heard_at, mfs_now(), __ATOMIC_RELAXED);
		if (header->unique) {
			bool has_beside = header->unique & MFS_BESIDE && size >= (long)(sizeof *header + sizeof beside);
			if (has_beside) {
				size -= (long)sizeof beside;
				memcpy(&beside, buffer + size, sizeof beside);
				header->len = (uint32_t)size;
				header->unique &= ~MFS_BESIDE;
			}
			for (unsigned i = 0; i < MFS_MEMORIES; i++)
				if (mfs_memories[i].answered)
					mfs_memories[i].answered(buffer, (size_t)size, has_beside ? &beside : NULL);
			mfs_fuse_answer(buffer, (size_t)size);
		} else if (header->error == MFS_PONG) {
			mfs_connection.pong_count++;
		} else {
			mfs_fuse_notify(buffer, (size_t)size);
		}
	}
}
