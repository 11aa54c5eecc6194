/* Data on its way through a pipe, by reference: where the kernel has it is where it stays. */
#define _GNU_SOURCE
#include "mfs_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#define PAUSE 1000 /* times that are not tried after the pipe had no room: what comes in small parts goes on to do so */

void mfs_pipe_close(struct mfs_pipe *pipe)
{
	if (pipe->is_there) {
		close(pipe->out);
		close(pipe->in);
	}
	pipe->is_there = false;
	pipe->holds = 0;
}

void mfs_pipe_clear(struct mfs_pipe *pipe)
{
	if (pipe->holds)
		mfs_pipe_close(pipe);
}

bool mfs_pipe_is_ready(struct mfs_pipe *pipe, size_t least)
{
	int ends[2];

	mfs_pipe_clear(pipe);
	if (pipe->pause) {
		pipe->pause--;
		return false;
	}
	if (pipe->is_there)
		return true;
	if (pipe2(ends, O_CLOEXEC))
		return false;
	*pipe = (struct mfs_pipe){.is_there = true, .out = ends[0], .in = ends[1]};
	if (fcntl(pipe->in, F_SETPIPE_SZ, MFS_PIPE_MOST) >= 0 || fcntl(pipe->in, F_SETPIPE_SZ, (int)least) >= (int)least)
		return true;
	mfs_pipe_close(pipe);
	return false;
}

int mfs_pipe_write(struct mfs_pipe *pipe, const void *data, size_t size)
{
	ssize_t count = size ? write(pipe->in, data, size) : 0;

	if (count > 0)
		pipe->holds += (size_t)count;
	return count == (ssize_t)size ? 0 : -EIO;
}

int mfs_pipe_read(struct mfs_pipe *pipe, void *data, size_t size)
{
	while (size) {
		ssize_t count = read(pipe->out, data, size);
		if (count <= 0)
			return -EIO;
		pipe->holds -= (size_t)count;
		data = (char *)data + count;
		size -= (size_t)count;
	}
	return 0;
}

/* Some of what comes next, at most `size` bytes; 0: the pipe is full; -errno. */
static long receive_some(struct mfs_pipe *pipe, const struct mfs_stream *stream, size_t size)
{
	struct pollfd watched = {.fd = stream->fd, .events = POLLIN};

	for (bool is_there = false;;) {
		ssize_t count = splice(stream->fd, NULL, pipe->in, NULL, size, SPLICE_F_NONBLOCK);
		if (count > 0)
			return count;
		if (!count)
			return -ECONNRESET;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (is_there && errno == EAGAIN)
			return 0;
		is_there = poll(&watched, 1, 0) > 0;
		if (!is_there)
			poll(&watched, 1, -1);
	}
}

int mfs_pipe_receive(struct mfs_pipe *pipe, struct mfs_stream *stream, char *data, size_t size)
{
	size_t held = pipe->holds, ahead = stream->end - stream->begin, all = held + size;

	/* The pipe is as good as empty, and this is little. */
	if (ahead > size || mfs_pipe_write(pipe, stream->ahead + stream->begin, ahead))
		return -EIO;
	stream->begin = stream->end;
	while (pipe->holds < all) {
		long count = receive_some(pipe, stream, all - pipe->holds);
		if (count < 0)
			return (int)count;
		pipe->holds += (size_t)count;
		if (!count) {
			size_t taken = pipe->holds;
			int result = mfs_pipe_read(pipe, data - held, taken);
			pipe->pause = PAUSE;
			return result ? result : mfs_stream_read(stream, data - held + taken, all - taken);
		}
	}
	return 1;
}

int mfs_pipe_send(struct mfs_pipe *pipe, const struct mfs_stream *stream)
{
	while (pipe->holds) {
		ssize_t count = splice(pipe->out, NULL, stream->fd, NULL, pipe->holds, 0);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return count ? -errno : -ECONNRESET;
		pipe->holds -= (size_t)count;
	}
	return 0;
}
