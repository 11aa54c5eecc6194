/* Bytes of data connections, as stream.h says. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECORDS_OF_A_KEY (1u << 23) /* RFC 8446, 5.5: AES-GCM wants another after 2^24.5 */

struct stream *stream_plain(int socket)
{
	struct stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	stream->socket = socket;
	pthread_mutex_init(&stream->lock, NULL);
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

	stream_release(stream);
	close(socket);
}

int stream_socket(const struct stream *stream)
{
	return stream->socket;
}

void stream_shut(struct stream *stream)
{
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

	if (!stream->kernel_receives && flags & O_NONBLOCK)
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

/* -- records ---------------------------------------------------------------------------------------------------------------- */

static int take_bytes(BIO *bio, char *to, int size)
{
	struct stream *stream = BIO_get_data(bio);
	size_t have = stream->in_end - stream->in_begin;

	BIO_clear_retry_flags(bio);
	if (!have) {
		BIO_set_retry_read(bio);
		return -1;
	}
	if (have > (size_t)size)
		have = size;
	memcpy(to, stream->in + stream->in_begin, have);
	stream->in_begin += have;
	return (int)have;
}

static int give_bytes(BIO *bio, const char *from, int size)
{
	struct stream *stream = BIO_get_data(bio);

	BIO_clear_retry_flags(bio);
	if ((size_t)size > OUT_ROOM - stream->out_end)
		return -1; /* the reader's answers to a peer that wants too many */
	memcpy(stream->out + stream->out_end, from, size);
	stream->out_end += size;
	return size;
}

static long control(BIO *bio, int command, long number, void *pointer)
{
	(void)bio, (void)number, (void)pointer;
	return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;

static void make_method(void)
{
	method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "farhome stream");
	if (!method)
		return;
	BIO_meth_set_read(method, take_bytes);
	BIO_meth_set_write(method, give_bytes);
	BIO_meth_set_ctrl(method, control);
}

static BIO *end_for(struct stream *stream)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_method);
	BIO *bio = method ? BIO_new(method) : NULL;
	if (bio) {
		BIO_set_data(bio, stream);
		BIO_set_init(bio, 1);
	}
	return bio;
}

int stream_take_records(struct stream *stream)
{
	stream->kernel_sends = BIO_get_ktls_send(SSL_get_wbio(stream->tls)) > 0;
	stream->kernel_receives = BIO_get_ktls_recv(SSL_get_rbio(stream->tls)) > 0;
	if (!stream->kernel_receives) {
		BIO *end = end_for(stream);
		stream->in = malloc(IN_ROOM);
		if (!end || !stream->in) {
			BIO_free(end);
			return -ENOMEM;
		}
		SSL_set0_rbio(stream->tls, end);
	}
	if (!stream->kernel_sends) {
		BIO *end = end_for(stream);
		stream->out = malloc(OUT_ROOM);
		stream->record = malloc(RECORD);
		if (!end || !stream->out || !stream->record) {
			BIO_free(end);
			return -ENOMEM;
		}
		SSL_set0_wbio(stream->tls, end);
	}
	return 0;
}

/* -- in ------------------------------------------------------------------------------------------------------------------------- */

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

/* SSL_get_error() tells the truth if this thread's queue of errors was empty before. To empty it takes as long as to seal a small record,
 * even if there is nothing in it, so it is looked at first. */
static void forget_errors(void)
{
	if (ERR_peek_error())
		ERR_clear_error();
}

/* Content of a record that is here. As stream_receive(), never waiting; 1 in *over: the peer has said that nothing follows. */
static ssize_t open_record(struct stream *stream, void *to, size_t size, bool *over)
{
	pthread_mutex_lock(&stream->lock);
	forget_errors();
	int count = SSL_read(stream->tls, to, size > INT_MAX ? INT_MAX : (int)size);
	int kind = count > 0 ? SSL_ERROR_NONE : SSL_get_error(stream->tls, count);
	stream->pending = SSL_pending(stream->tls) > 0;
	pthread_mutex_unlock(&stream->lock);
	*over = kind == SSL_ERROR_ZERO_RETURN;
	if (count > 0)
		return count;
	if (kind == SSL_ERROR_WANT_READ)
		return -EAGAIN;
	forget_errors();
	if (kind == SSL_ERROR_SYSCALL && stream->kernel_receives)
		*over = true;
	return *over ? 0 : -EBADMSG;
}

ssize_t stream_receive(struct stream *stream, void *to, size_t size, bool wait)
{
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

/* -- out ------------------------------------------------------------------------------------------------------------------------ */

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
static int seal(struct stream *stream, struct iovec **vector, size_t *count, size_t *waiting)
{
	size_t size;
	const void *content = next_content(stream, vector, count, &size);

	*waiting = 0;
	while (size) {
		pthread_mutex_lock(&stream->lock);
		bool full = OUT_ROOM - stream->out_end < RECORD_ROOM;
		int sealed = 0;
		if (!full) {
			renew_key(stream);
			sealed = SSL_write(stream->tls, content, (int)size);
		}
		*waiting = stream->out_end - stream->out_begin;
		pthread_mutex_unlock(&stream->lock);
		if (full)
			return 0;
		if (sealed != (int)size) {
			forget_errors();
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
	if (stream_splices(stream))
		return send_plain(stream, vector, count, timeout_ms);
	do {
		size_t waiting;
		int result = seal(stream, &vector, &count, &waiting);
		if (!result)
			result = send_records(stream, waiting, timeout_ms);
		if (result)
			return result;
	} while (count);
	return 0;
}

/* -- for the Python face -------------------------------------------------------------------------------------------------------- */

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

/* The key of what is written has served for as long as one may: another one seals the next record. */
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
