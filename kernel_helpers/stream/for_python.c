/* What stream.py calls beside what stream.h offers. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <poll.h>
#include <stddef.h>

/* Some bytes within timeout_ms (-1: for ever): how many, 0 at the end, or -errno, -EINTR among them. */
long farhome_stream_read(struct stream *stream, void *to, size_t size, int timeout_ms)
{
	struct pollfd entry = {.fd = stream->socket, .events = POLLIN};

	for (;;) {
		ssize_t count = stream_receive(stream, to, size, false);
		if (count != -EAGAIN)
			return count;
		int ready = poll(&entry, 1, timeout_ms);
		if (ready <= 0)
			return ready ? -errno : -ETIMEDOUT;
	}
}

/* The key of what is written has served for as long as one may: another one encrypts the next record. */
void farhome_stream_wear_key(struct stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	stream->records = RECORDS_OF_A_KEY;
	pthread_mutex_unlock(&stream->lock);
}

/* All of it. 0 or -errno. */
int farhome_stream_write(struct stream *stream, const void *from, size_t size, int timeout_ms)
{
	struct iovec vector = {(void *)from, size};
	return size ? stream_send(stream, &vector, 1, timeout_ms) : 0;
}
