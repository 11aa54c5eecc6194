/* Bytes of the connections between mfs-client and mfs-server. Both sides show a certificate of the cluster: TLS 1.3, or, where both say that
 * it need not be secret, TLS 1.2 without a cipher, whose records have a MAC all the same. */
#define _GNU_SOURCE
#include "mfs/tls.h"
#include "common/pacing.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GATHERED (256u << 10) /* bytes of records that go to the kernel, and come from it, at once */
#define PLAIN "ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0"
#define SIGNED "ECDSA+SHA256:ECDSA+SHA384:ECDSA+SHA512" /* by nothing weaker, though the level above counts for signatures, too */

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

static bool allow_plain(SSL *tls)
{
	return SSL_set_min_proto_version(tls, TLS1_2_VERSION) == 1 && SSL_set_cipher_list(tls, PLAIN) == 1 &&
	       SSL_set1_sigalgs_list(tls, SIGNED) == 1;
}

static int begin(struct mfs_stream *stream, SSL_CTX *context, int fd, bool plain, int timeout, int is_server)
{
	int one = 1, most = 20000, result = 0;

	memset(stream, 0, sizeof *stream);
	stream->fd = fd;
	mfs_stream_patience(stream, timeout, timeout);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
	stream->tls = SSL_new(context);
	if (!stream->tls || SSL_set_fd(stream->tls, fd) != 1 || (plain && !allow_plain(stream->tls)))
		result = -ENOMEM;
	if (!result) {
		SSL_set_default_read_buffer_len(stream->tls, GATHERED);
		SSL_set_read_ahead(stream->tls, 1);
		SSL_set_app_data(stream->tls, &plain);
	}
	if (!result && (is_server ? SSL_accept(stream->tls) : SSL_connect(stream->tls)) != 1)
		result = -EPROTO;
	if (!result) {
		SSL_set_app_data(stream->tls, NULL);
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

int mfs_stream_connect(struct mfs_stream *stream, SSL_CTX *context, int fd, bool plain, int timeout)
{
	return begin(stream, context, fd, plain, timeout, 0);
}

int mfs_stream_accept(struct mfs_stream *stream, SSL_CTX *context, int fd, bool plain, int timeout)
{
	return begin(stream, context, fd, plain, timeout, 1);
}

void mfs_stream_patience(struct mfs_stream *stream, int receive, int send)
{
	struct timeval in = {.tv_sec = receive / 1000, .tv_usec = receive % 1000 * 1000};
	struct timeval out = {.tv_sec = send / 1000, .tv_usec = send % 1000 * 1000};

	setsockopt(stream->fd, SOL_SOCKET, SO_RCVTIMEO, &in, sizeof in);
	setsockopt(stream->fd, SOL_SOCKET, SO_SNDTIMEO, &out, sizeof out);
}

static int tls_error(SSL *tls, int result)
{
	int saved = errno, kind = SSL_get_error(tls, result);

	ERR_clear_error();
	return kind == SSL_ERROR_SYSCALL && saved ? -saved : -ECONNRESET;
}

int mfs_stream_read(struct mfs_stream *stream, void *data, size_t size)
{
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

int mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size)
{
	errno = 0;
	int count = SSL_write(stream->tls, data, (int)size);

	if (count > 0 && BIO_flush(SSL_get_wbio(stream->tls)) <= 0)
		count = -1;
	return count > 0 ? 0 : tls_error(stream->tls, count);
}

bool mfs_stream_is_ready(struct mfs_stream *stream)
{
	char byte;

	if (SSL_has_pending(stream->tls))
		return true;
	return recv(stream->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

void mfs_stream_close(struct mfs_stream *stream)
{
	SSL_free(stream->tls);
	if (stream->fd >= 0)
		close(stream->fd);
	stream->tls = NULL;
	stream->fd = -1;
}
