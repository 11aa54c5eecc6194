/* Bytes of the connections between mfs-client and mfs-server. Both sides show a certificate of the cluster: TLS 1.3, or, where both say that
 * it need not be secret, TLS 1.2 without a cipher, whose records have a MAC all the same. */
#define _GNU_SOURCE
#include "mfs/wire.h"
#include "mfs/members.h"
#include "common/pacing.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GATHERED (256u << 10) /* bytes of records that go to the kernel, and come from it, at once */
#define SECRET "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define PLAIN "ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0"
#define SIGNED "ECDSA+SHA256:ECDSA+SHA384:ECDSA+SHA512" /* by nothing weaker, though the level above counts for signatures, too */
static const unsigned char plain_code[2] = {0xc0, 0x06}; /* RFC 8422 */

static SSL_CTX *fail(SSL_CTX *context, const char *what, const char *path, char *why, size_t size)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	snprintf(why, size, "%s %s: %s", what, path, reason ? reason : "unknown error");
	ERR_clear_error();
	SSL_CTX_free(context);
	return NULL;
}

/* A client that need not be secret says so by what it offers; a server that need not be takes it. The offer is part of what both prove. */
static int choose(SSL *tls, int *alert, void *unused)
{
	bool *plain = SSL_get_app_data(tls);
	const unsigned char *codes;
	size_t size = SSL_client_hello_get0_ciphers(tls, &codes);

	(void)alert, (void)unused;
	for (size_t i = 0; plain && *plain && i + 1 < size; i += 2)
		if (!memcmp(codes + i, plain_code, sizeof plain_code))
			SSL_set_max_proto_version(tls, TLS1_2_VERSION);
	return SSL_CLIENT_HELLO_SUCCESS;
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
	SSL_CTX_set_ciphersuites(context, SECRET);
	SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	SSL_CTX_set_client_hello_cb(context, choose, NULL); /* of a server */
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
