/* Large answers go from the connection to the kernel through a pipe, by reference: they are copied once, into the kernel's own pages. */
#define _GNU_SOURCE
#include "mfs_client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <unistd.h>

#define PAUSE 1000 /* answers that are read after one that the pipe had no room for: what comes in small parts goes on to do so */

/* Of the one thread that receives. */
static int out = -1, in = -1;
static unsigned pause_left;

static void close_pipe(void)
{
	close(out);
	close(in);
	out = in = -1;
}

/* A place for each page, and, as far as we may, as many again: what comes may be parts of pages. */
static bool have_pipe(void)
{
	int ends[2];

	if (in >= 0)
		return true;
	if (pipe2(ends, O_CLOEXEC))
		return false;
	out = ends[0];
	in = ends[1];
	if (fcntl(in, F_SETPIPE_SZ, 4 * MFS_PASSED_MOST) >= 0 || fcntl(in, F_SETPIPE_SZ, 2 * MFS_PASSED_MOST) >= 0)
		return true;
	close_pipe();
	return false;
}

/* Some of what comes next, at most `size` bytes; 0: the pipe is full; -errno. */
static long take_some(struct mfs_stream *stream, size_t size)
{
	struct pollfd watched = {.fd = stream->fd, .events = POLLIN};

	for (bool is_there = false;;) {
		ssize_t count = splice(stream->fd, NULL, in, NULL, size, SPLICE_F_NONBLOCK);
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

/* What the pipe holds of it, and what is still to come. */
static long read_rest(struct mfs_stream *stream, char *frame, size_t piped, size_t size)
{
	for (size_t had = 0; had < piped;) {
		ssize_t count = read(out, frame + had, piped - had);
		if (count <= 0)
			return -EIO;
		had += (size_t)count;
	}
	int result = mfs_stream_read(stream, frame + piped, size - piped);
	if (result)
		return result;
	mfs_fuse_answer(frame, size);
	return (long)size;
}

long mfs_pass(struct mfs_stream *stream, char *frame)
{
	const size_t head = sizeof(struct fuse_out_header), size = ((struct fuse_out_header *)frame)->len;
	size_t ahead = stream->end - stream->begin, piped = head + ahead;

	if (stream->tls || piped >= size || size > head + MFS_PASSED_MOST || (pause_left && pause_left--) || !have_pipe())
		return 0;
	/* The pipe is empty, and this is little. */
	if (write(in, frame, head) != (ssize_t)head || write(in, stream->ahead + stream->begin, ahead) != (ssize_t)ahead) {
		close_pipe();
		return 0;
	}
	stream->begin = stream->end;
	while (piped < size) {
		long count = take_some(stream, size - piped);
		if (count < 0) {
			close_pipe();
			return count;
		}
		if (!count) {
			pause_left = PAUSE;
			return read_rest(stream, frame, piped, size);
		}
		piped += (size_t)count;
	}
	if (mfs_fuse_answer_from(out, size) != (long)size)
		close_pipe(); /* nobody wants it any more */
	return (long)size;
}
