/* Bytes that leave by a stream. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static void pass(struct iovec **vector, size_t *count, size_t size)
{
	while (*count && size >= (*vector)->iov_len) {
		size -= (*vector)->iov_len;
		++*vector;
		--*count;
	}
	if (*count) {
		(*vector)->iov_base = (char *)(*vector)->iov_base + size;
		(*vector)->iov_len -= size;
	}
}

static int send_plain(struct stream *stream, struct iovec *vector, size_t count, int timeout_ms)
{
	while (count) {
		struct msghdr message = {.msg_iov = vector, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
		ssize_t sent = sendmsg(stream->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent >= 0) {
			pass(&vector, &count, sent);
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		int result = stream_await(stream, POLLOUT, timeout_ms);
		if (result)
			return result;
	}
	return 0;
}

/* The content of the next record: where it is, and how much. The vector is as it was, but for empty parts at its begin. */
static const void *next_content(struct stream *stream, struct iovec **vector, size_t *count, size_t *size)
{
	size_t have = 0;

	pass(vector, count, 0);
	if (*count && ((*vector)->iov_len >= RECORD || *count == 1)) {
		*size = (*vector)->iov_len < RECORD ? (*vector)->iov_len : RECORD;
		return (*vector)->iov_base;
	}
	for (size_t i = 0; i < *count && have < RECORD; i++) {
		size_t part = (*vector)[i].iov_len < RECORD - have ? (*vector)[i].iov_len : RECORD - have;
		memcpy(stream->record + have, (*vector)[i].iov_base, part);
		have += part;
	}
	*size = have;
	return stream->record;
}

/* The lock is held: a key that has served for long is replaced. The other side needs no word of it but the record that says so. */
static void renew_key(struct stream *stream)
{
	if (++stream->records < RECORDS_OF_A_KEY || SSL_version(stream->tls) < TLS1_3_VERSION)
		return;
	stream->records = 0;
	SSL_key_update(stream->tls, SSL_KEY_UPDATE_NOT_REQUESTED);
}

/* Records of what comes next, as many as there is room for; how much waits to be sent then, in *waiting. 0 or -errno. */
static int encrypt(struct stream *stream, struct iovec **vector, size_t *count, size_t *waiting)
{
	size_t size;
	const void *content = next_content(stream, vector, count, &size);

	*waiting = 0;
	while (size) {
		pthread_mutex_lock(&stream->lock);
		bool full = OUT_ROOM - stream->out_end < RECORD_ROOM;
		int encrypted = 0;
		if (!full) {
			renew_key(stream);
			encrypted = SSL_write(stream->tls, content, (int)size);
		}
		*waiting = stream->out_end - stream->out_begin;
		pthread_mutex_unlock(&stream->lock);
		if (full)
			return 0;
		if (encrypted != (int)size) {
			stream_forget_errors();
			return -ECONNRESET;
		}
		pass(vector, count, size);
		content = next_content(stream, vector, count, &size);
	}
	return 0;
}

/* Sends `waiting` bytes of records, and what has come behind them meanwhile. 0 or -errno. */
static int send_records(struct stream *stream, size_t waiting, int timeout_ms)
{
	while (waiting) {
		ssize_t sent = send(stream->socket, stream->out + stream->out_begin, waiting, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno != EAGAIN)
			return -errno;
		if (sent < 0) {
			int result = stream_await(stream, POLLOUT, timeout_ms);
			if (result)
				return result;
			continue;
		}
		pthread_mutex_lock(&stream->lock);
		stream->out_begin += sent;
		waiting = stream->out_end - stream->out_begin;
		if (!waiting)
			stream->out_begin = stream->out_end = 0;
		pthread_mutex_unlock(&stream->lock);
	}
	return 0;
}

int stream_send(struct stream *stream, struct iovec *vector, size_t count, int timeout_ms)
{
	if (stream->kind)
		return stream->kind->send(stream->owner, vector, count);
	if (stream_splices(stream))
		return send_plain(stream, vector, count, timeout_ms);
	do {
		size_t waiting;
		int result = encrypt(stream, &vector, &count, &waiting);
		if (!result)
			result = send_records(stream, waiting, timeout_ms);
		if (result)
			return result;
	} while (count);
	return 0;
}
