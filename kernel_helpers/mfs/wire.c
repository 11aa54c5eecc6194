/* What mfs-client and mfs-server share of frames and connections, whatever these go through; see wire.h. */
#define _GNU_SOURCE
#include "mfs/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

long mfs_stream_head(struct mfs_stream *stream, void *buffer, size_t least, size_t most)
{
	uint32_t length;
	int result = mfs_stream_read(stream, buffer, least);

	if (result)
		return result;
	memcpy(&length, buffer, sizeof length);
	return length < least || length > most ? -EPROTO : (long)length;
}

void mfs_stream_shut(struct mfs_stream *stream)
{
	if (stream->fd >= 0)
		shutdown(stream->fd, SHUT_RDWR);
}

bool mfs_is_for_writing(uint32_t flags)
{
	return (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
}
