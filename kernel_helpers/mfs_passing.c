/* Large data between the connection and files, by reference: what is read goes from where the kernel has it, what is written is copied once, into
 * the file. What somebody writes meanwhile may be in what is read. Each thread has one pipe for it. */
#define _GNU_SOURCE
#include "mfs_server.h"

#include <fcntl.h>
#include <unistd.h>

#define WRITE_HEAD (sizeof(struct fuse_in_header) + sizeof(struct fuse_write_in)) /* bytes of a write before its data */

static _Thread_local struct mfs_pipe own;

void mfs_passing_end(void)
{
	mfs_pipe_close(&own);
}

long mfs_lend(struct mfs_request *request, int file, off_t offset, size_t size)
{
	if (request->session->out.tls || offset % 4096 || !mfs_pipe_is_ready(&own, MFS_DATA_MOST))
		return -EINVAL;
	while (own.holds < size) {
		ssize_t count = splice(file, &offset, own.in, NULL, size - own.holds, SPLICE_F_NONBLOCK);
		if (!count)
			break;
		if (count < 0) {
			int error = errno;
			mfs_pipe_close(&own);
			return -error;
		}
		own.holds += (size_t)count;
	}
	request->lends = own.holds > 0;
	return (long)own.holds;
}

int mfs_lent_send(struct mfs_stream *stream)
{
	return mfs_pipe_send(&own, stream);
}

/* Of a request of which that much is at `frame`: whether it is a write of all that follows, and that is so much that it is worth it. */
static bool is_large_write(const struct mfs_stream *stream, const char *frame, size_t size)
{
	const struct fuse_write_in *asked = (const struct fuse_write_in *)(frame + sizeof(struct fuse_in_header));

	return asked->size >= MFS_LARGE && asked->size == size - WRITE_HEAD && stream->end - stream->begin < asked->size;
}

long mfs_take(struct mfs_stream *stream, char *frame)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)frame;
	long size = mfs_stream_head(stream, frame, sizeof *in, MFS_FRAME_MOST);
	size_t had = sizeof *in;
	int result = 0;

	mfs_pipe_clear(&own);
	if (size < 0)
		return size;
	if (!stream->tls && in->opcode == FUSE_WRITE && (size_t)size > WRITE_HEAD) {
		result = mfs_stream_read(stream, frame + had, WRITE_HEAD - had);
		had = WRITE_HEAD;
		if (!result && is_large_write(stream, frame, (size_t)size) && mfs_pipe_is_ready(&own, MFS_DATA_MOST)) {
			result = mfs_pipe_receive(&own, stream, frame + had, (size_t)size - had);
			had = (size_t)size;
		}
	}
	if (!result && had < (size_t)size)
		result = mfs_stream_read(stream, frame + had, (size_t)size - had);
	return result < 0 ? result : size;
}

ssize_t mfs_taken_write(int file, const struct fuse_write_in *asked)
{
	off_t offset = (off_t)asked->offset;
	size_t done = 0;

	if (!own.holds || own.holds != asked->size)
		return pwrite(file, asked + 1, asked->size, offset);
	while (own.holds) {
		ssize_t count = splice(own.out, NULL, file, &offset, own.holds, 0);
		if (count < 0 && !done && errno == EINVAL) { /* where the file says itself what is written where */
			if (mfs_pipe_read(&own, (void *)(asked + 1), asked->size))
				return -1;
			return pwrite(file, asked + 1, asked->size, offset);
		}
		if (count <= 0)
			return done ? (ssize_t)done : count;
		own.holds -= (size_t)count;
		done += (size_t)count;
	}
	return (ssize_t)done;
}
