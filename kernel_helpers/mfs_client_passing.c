/* Large answers go from the connection to the kernel through a pipe, by reference: they are copied once, into the kernel's own pages. */
#define _GNU_SOURCE
#include "mfs_client.h"

#include <linux/fuse.h>

long mfs_pass(struct mfs_stream *stream, char *frame)
{
	static struct mfs_pipe pipe; /* of the one thread that receives */
	const size_t head = sizeof(struct fuse_out_header), size = ((struct fuse_out_header *)frame)->len;

	if (stream->tls || head + stream->end - stream->begin >= size || size > head + MFS_PASSED_MOST ||
	    !mfs_pipe_is_ready(&pipe, 2 * MFS_PASSED_MOST) || mfs_pipe_write(&pipe, frame, head))
		return 0;
	int result = mfs_pipe_receive(&pipe, stream, frame + head, size - head);
	if (result < 0)
		return result;
	if (!result)
		mfs_fuse_answer(frame, size);
	else
		mfs_fuse_answer_from(&pipe, size); /* what it still holds then nobody wants any more */
	return (long)size;
}
