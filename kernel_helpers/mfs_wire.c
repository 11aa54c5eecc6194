/* Connections between mfs-client and mfs-server; see mfs_wire.h. */
#define _GNU_SOURCE
#include "mfs_wire.h"
#include "mfs_members.h"
#include "pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define AHEAD (64u << 10)
#define GATHERED (256u << 10) /* bytes of TLS records that go to the kernel, and come from it, at once */

void mfs_stream_patience(struct mfs_stream *stream, int receive, int send)
{
	struct timeval in = {.tv_sec = receive / 1000, .tv_usec = receive % 1000 * 1000};
	struct timeval out = {.tv_sec = send / 1000, .tv_usec = send % 1000 * 1000};

	setsockopt(stream->fd, SOL_SOCKET, SO_RCVTIMEO, &in, sizeof in);
	setsockopt(stream->fd, SOL_SOCKET, SO_SNDTIMEO, &out, sizeof out);
}

static SSL_CTX *fail(SSL_CTX *context, const char *what, const char *path, char *why, size_t size)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	snprintf(why, size, "%s %s: %s", what, path, reason ? reason : "unknown error");
	ERR_clear_error();
	SSL_CTX_free(context);
	return NULL;
}

SSL_CTX *mfs_context(const char *directory, int is_server, char *why, size_t size)
{
	char key[4096], certificate[4096], authority[4096];
	SSL_CTX *context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());

	if (!context)
		return fail(NULL, "no TLS", "", why, size);
	snprintf(key, sizeof key, "%s/node.key", directory);
	snprintf(certificate, sizeof certificate, "%s/node.pem", directory);
	snprintf(authority, sizeof authority, "%s/authority.pem", directory);
	SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
	SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
	SSL_CTX_set_num_tickets(context, 0);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	if (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1)
		return fail(context, "certificate", certificate, why, size);
	if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(context) != 1)
		return fail(context, "key", key, why, size);
	if (SSL_CTX_load_verify_locations(context, authority, NULL) != 1)
		return fail(context, "authority", authority, why, size);
	return context;
}

/* The node that the certificate names, checked already by TLS to be of the cluster. */
static int take_name(struct mfs_stream *stream)
{
	X509 *certificate = SSL_get1_peer_certificate(stream->tls);
	int length = -1;

	if (certificate) {
		length = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, stream->peer, sizeof stream->peer);
		stream->since = mfs_valid_since(certificate);
		X509_free(certificate);
	}
	/* The name becomes part of file names. */
	if (length <= 0 || (size_t)length != strlen(stream->peer) || stream->peer[0] == '.' || strchr(stream->peer, '/'))
		return -EPROTO;
	return mfs_is_removed(stream->peer, stream->since) ? -EPROTO : 0;
}

/* Records are small; a system call for each would be what large messages cost. */
static int gather_records(SSL *tls)
{
	BIO *gather = BIO_new(BIO_f_buffer()), *socket = SSL_get_wbio(tls);

	if (!gather || BIO_set_write_buffer_size(gather, GATHERED) != 1) {
		BIO_free(gather);
		return -ENOMEM;
	}
	BIO_up_ref(socket);
	SSL_set0_wbio(tls, BIO_push(gather, socket));
	return 0;
}

static int begin(struct mfs_stream *stream, SSL_CTX *context, int fd, int timeout, int is_server)
{
	int one = 1, most = 20000, result = 0;

	memset(stream, 0, sizeof *stream);
	stream->fd = fd;
	mfs_stream_patience(stream, timeout, timeout);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
	stream->tls = SSL_new(context);
	if (!result && (!stream->tls || SSL_set_fd(stream->tls, fd) != 1))
		result = -ENOMEM;
	if (!result)
		SSL_set_default_read_buffer_len(stream->tls, GATHERED);
	if (!result && (is_server ? SSL_accept(stream->tls) : SSL_connect(stream->tls)) != 1)
		result = -EPROTO;
	if (!result) {
		farhome_settle_pace(fd);
		result = take_name(stream);
	}
	if (!result)
		result = gather_records(stream->tls);
	ERR_clear_error();
	if (result)
		mfs_stream_close(stream);
	return result;
}

int mfs_stream_connect(struct mfs_stream *stream, SSL_CTX *context, int fd, int timeout)
{
	return begin(stream, context, fd, timeout, 0);
}

int mfs_stream_accept(struct mfs_stream *stream, SSL_CTX *context, int fd, int timeout)
{
	return begin(stream, context, fd, timeout, 1);
}

void mfs_stream_keep_secret(struct mfs_stream *stream)
{
	/* Not before: what is plain must not be taken for a part of the handshake. */
	SSL_set_read_ahead(stream->tls, 1);
}

void mfs_stream_make_plain(struct mfs_stream *stream)
{
	SSL_free(stream->tls);
	stream->tls = NULL;
	stream->ahead = malloc(AHEAD); /* without it each read is a call of its own */
}

static int receive_some(int fd, void *data, size_t size)
{
	for (;;) {
		ssize_t count = recv(fd, data, size, 0);
		if (count > 0)
			return (int)count;
		if (count == 0)
			return -ECONNRESET;
		if (errno != EINTR)
			return -errno;
	}
}

static int read_plain(struct mfs_stream *stream, char *data, size_t size)
{
	while (size) {
		size_t have = stream->end - stream->begin;
		if (have) {
			size_t part = have < size ? have : size;
			memcpy(data, stream->ahead + stream->begin, part);
			stream->begin += part;
			data += part;
			size -= part;
			continue;
		}
		int direct = !stream->ahead || size >= AHEAD / 2;
		int count = receive_some(stream->fd, direct ? (void *)data : stream->ahead, direct ? size : AHEAD);
		if (count < 0)
			return count;
		if (direct) {
			data += count;
			size -= (size_t)count;
		} else {
			stream->begin = 0;
			stream->end = (size_t)count;
		}
	}
	return 0;
}

static int tls_error(SSL *tls, int result)
{
	int saved = errno, kind = SSL_get_error(tls, result);

	ERR_clear_error();
	return kind == SSL_ERROR_SYSCALL && saved ? -saved : -ECONNRESET;
}

int mfs_stream_read(struct mfs_stream *stream, void *data, size_t size)
{
	if (!stream->tls)
		return read_plain(stream, data, size);
	while (size) {
		errno = 0;
		int count = SSL_read(stream->tls, data, (int)size);
		if (count <= 0)
			return tls_error(stream->tls, count);
		data = (char *)data + count;
		size -= (size_t)count;
	}
	return 0;
}

static int write_all(struct mfs_stream *stream, const void *data, size_t size, int flags)
{
	if (stream->tls) {
		errno = 0;
		int count = SSL_write(stream->tls, data, (int)size);
		if (count > 0 && BIO_flush(SSL_get_wbio(stream->tls)) <= 0)
			count = -1;
		return count > 0 ? 0 : tls_error(stream->tls, count);
	}
	while (size) {
		ssize_t count = send(stream->fd, data, size, MSG_NOSIGNAL | flags);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return count < 0 ? -errno : -ECONNRESET;
		data = (const char *)data + count;
		size -= (size_t)count;
	}
	return 0;
}

int mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size)
{
	return write_all(stream, data, size, 0);
}

int mfs_stream_write_first(struct mfs_stream *stream, const void *data, size_t size)
{
	return write_all(stream, data, size, MSG_MORE);
}

long mfs_stream_head(struct mfs_stream *stream, void *buffer, size_t least, size_t most)
{
	uint32_t length;
	int result = mfs_stream_read(stream, buffer, least);

	if (result)
		return result;
	memcpy(&length, buffer, sizeof length);
	return length < least || length > most ? -EPROTO : (long)length;
}

bool mfs_stream_is_ready(struct mfs_stream *stream)
{
	char byte;

	if (stream->tls ? SSL_has_pending(stream->tls) : stream->begin < stream->end)
		return true;
	return recv(stream->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

void mfs_stream_shut(struct mfs_stream *stream)
{
	if (stream->fd >= 0)
		shutdown(stream->fd, SHUT_RDWR);
}

void mfs_stream_close(struct mfs_stream *stream)
{
	SSL_free(stream->tls);
	free(stream->ahead);
	if (stream->fd >= 0)
		close(stream->fd);
	stream->tls = NULL;
	stream->ahead = NULL;
	stream->begin = stream->end = 0;
	stream->fd = -1;
}

bool mfs_is_for_writing(uint32_t flags)
{
	return (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
}
