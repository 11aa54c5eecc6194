/* The bytes of the file tree's connections without the TLS around them: what is in a record is what a hostile peer chooses. */
#define _GNU_SOURCE
#include "mfs/wire.h"
#include <errno.h>
#include <sys/socket.h>

int __wrap_mfs_stream_read(struct mfs_stream *stream, void *data, size_t size);
int __wrap_mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size);
bool __wrap_mfs_stream_is_ready(struct mfs_stream *stream);

int __wrap_mfs_stream_read(struct mfs_stream *stream, void *data, size_t size)
{
	return recv(stream->fd, data, size, MSG_WAITALL) == (ssize_t)size ? 0 : -ECONNRESET;
}

int __wrap_mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size)
{
	return send(stream->fd, data, size, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -ECONNRESET;
}

bool __wrap_mfs_stream_is_ready(struct mfs_stream *stream)
{
	char byte;

	return recv(stream->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}
