/* Large data of files that goes to a peer from where the kernel has it: a pipe holds it by reference, until the socket does. What somebody
 * writes meanwhile may be in it. Each thread that answers has one pipe. */
#define _GNU_SOURCE
#include "mfs_server.h"

#include <fcntl.h>
#include <unistd.h>

static _Thread_local struct {
	bool is_there;
	int out, in;
	size_t holds;
} own;

void mfs_lent_end(void)
{
	if (own.is_there) {
		close(own.out);
		close(own.in);
	}
	own.is_there = false;
	own.holds = 0;
}

/* One page of it for each of the data's. */
static bool have_pipe(void)
{
	int ends[2];

	if (own.is_there)
		return true;
	if (pipe2(ends, O_CLOEXEC))
		return false;
	own.out = ends[0];
	own.in = ends[1];
	own.is_there = fcntl(own.in, F_SETPIPE_SZ, MFS_DATA_MOST) >= (int)MFS_DATA_MOST;
	if (!own.is_there) {
		close(own.out);
		close(own.in);
	}
	return own.is_there;
}

long mfs_lend(struct mfs_request *request, int file, off_t offset, size_t size)
{
	if (request->session->out.tls || offset % 4096 || !have_pipe())
		return -EINVAL;
	while (own.holds < size) {
		ssize_t count = splice(file, &offset, own.in, NULL, size - own.holds, SPLICE_F_NONBLOCK);
		if (!count)
			break;
		if (count < 0) {
			int error = errno;
			mfs_lent_end(); /* and all that is in it */
			return -error;
		}
		own.holds += (size_t)count;
	}
	request->lends = own.holds > 0;
	return (long)own.holds;
}

int mfs_lent_send(struct mfs_stream *stream)
{
	while (own.holds) {
		ssize_t count = splice(own.out, NULL, stream->fd, NULL, own.holds, 0);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0) {
			int error = count ? errno : ECONNRESET;
			mfs_lent_end();
			return -error;
		}
		own.holds -= (size_t)count;
	}
	return 0;
}
