/* Bytes that come by a stream. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

/* More from the socket. As stream_receive(), of bytes as they are there. */
static ssize_t from_socket(struct stream *stream, void *to, size_t size, bool wait)
{
	for (;;) {
		ssize_t count = recv(stream->socket, to, size, wait ? 0 : MSG_DONTWAIT);
		if (count >= 0)
			return count;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN || !wait)
			return -errno;
		int result = stream_await(stream, POLLIN, -1);
		if (result)
			return result;
	}
}

/* Content of a record that is here. As stream_receive(), never waiting; 1 in *over: the peer has said that nothing follows. */
static ssize_t open_record(struct stream *stream, void *to, size_t size, bool *over)
{
	pthread_mutex_lock(&stream->lock);
	stream_forget_errors();
	int count = SSL_read(stream->tls, to, size > INT_MAX ? INT_MAX : (int)size);
	int kind = count > 0 ? SSL_ERROR_NONE : SSL_get_error(stream->tls, count);
	stream->pending = SSL_pending(stream->tls) > 0;
	pthread_mutex_unlock(&stream->lock);
	*over = kind == SSL_ERROR_ZERO_RETURN;
	if (count > 0)
		return count;
	if (kind == SSL_ERROR_WANT_READ)
		return -EAGAIN;
	stream_forget_errors();
	if (kind == SSL_ERROR_SYSCALL && stream->kernel_receives)
		*over = true;
	return *over ? 0 : -EBADMSG;
}

ssize_t stream_receive(struct stream *stream, void *to, size_t size, bool wait)
{
	if (stream->kind)
		return stream->kind->receive(stream->owner, to, size, wait);
	if (!stream->tls)
		return from_socket(stream, to, size, wait);
	for (;;) {
		if (stream->kernel_receives || stream_holds(stream)) {
			bool over;
			ssize_t count = open_record(stream, to, size, &over);
			if (count != -EAGAIN || (stream->kernel_receives && !wait))
				return count;
		}
		if (stream->kernel_receives) {
			int result = stream_await(stream, POLLIN, -1);
			if (result)
				return result;
			continue;
		}
		ssize_t count = from_socket(stream, stream->in, IN_ROOM, wait);
		if (count <= 0)
			return count;
		stream->in_begin = 0;
		stream->in_end = count;
	}
}
