/* Bytes of data connections, as stream.h says. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct stream *stream_plain(int socket)
{
	struct stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	stream->socket = socket;
	pthread_mutex_init(&stream->lock, NULL);
	return stream;
}

struct stream *stream_of(const struct stream_kind *kind, void *owner)
{
	struct stream *stream = stream_plain(-1);

	if (stream) {
		stream->kind = kind;
		stream->owner = owner;
	}
	return stream;
}

void stream_release(struct stream *stream)
{
	SSL_free(stream->tls);
	free(stream->in);
	free(stream->out);
	free(stream->record);
	pthread_mutex_destroy(&stream->lock);
	free(stream);
}

void stream_close(struct stream *stream)
{
	int socket = stream->socket;

	if (stream->kind)
		stream->kind->close(stream->owner);
	stream_release(stream);
	if (socket >= 0)
		close(socket);
}

int stream_socket(const struct stream *stream)
{
	return stream->socket;
}

void stream_shut(struct stream *stream)
{
	if (stream->kind)
		stream->kind->shut(stream->owner);
	else
		shutdown(stream->socket, SHUT_RDWR);
}

bool stream_holds(const struct stream *stream)
{
	return stream->pending || stream->in_begin < stream->in_end;
}

bool stream_splices(const struct stream *stream)
{
	return !stream->tls || stream->kernel_sends;
}

size_t stream_least(const struct stream *stream, size_t size)
{
	if (!stream->tls)
		return size;
	return size > RECORD_ROOM && !stream->kernel_receives ? size - RECORD_ROOM : 1; /* part of a record may be here */
}

void stream_wait_in_kernel(struct stream *stream)
{
	int flags = fcntl(stream->socket, F_GETFL);

	if (flags >= 0 && !stream->kernel_receives && flags & O_NONBLOCK)
		fcntl(stream->socket, F_SETFL, flags & ~O_NONBLOCK);
}

int stream_await(const struct stream *stream, short events, int timeout_ms)
{
	struct pollfd entry = {.fd = stream->socket, .events = events};

	for (;;) {
		int count = poll(&entry, 1, timeout_ms);
		if (count > 0)
			return 0;
		if (count == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

/* SSL_get_error() is right if this thread's queue of errors was empty before. To empty it takes as long as to encrypt a small record,
 * even if there is nothing in it, so it is looked at first. */
void stream_forget_errors(void)
{
	if (ERR_peek_error())
		ERR_clear_error();
}
