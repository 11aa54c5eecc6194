/* Handshakes of data connections: TLS 1.3, both sides proven by a secret that they have from elsewhere (an external PSK with a fresh
 * Diffie-Hellman exchange, psk_dhe_ke), AES-128-GCM. Where both sides say that it need not be secret: TLS 1.2, ECDHE-PSK-NULL-SHA256, whose
 * records have a MAC all the same. The identity of the secret is the role of the connection. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECRET "TLS_AES_128_GCM_SHA256"
#define PLAIN "ECDHE-PSK-NULL-SHA256:@SECLEVEL=0"
static const unsigned char plain_code[2] = {0xc0, 0x3a}; /* RFC 5489 */

/* What a handshake is about; the SSL object has it as its app data meanwhile. */
struct hello {
	char role[STREAM_ROLE];
	const unsigned char *secret;
	unsigned size; /* bytes of the secret */
	bool plain;    /* it need not be secret */
};

static unsigned caller_secret(SSL *tls, const char *hint, char *identity, unsigned room, unsigned char *secret, unsigned most)
{
	const struct hello *hello = SSL_get_app_data(tls);

	(void)hint;
	if (!hello || hello->size > most || strlen(hello->role) >= room)
		return 0;
	strcpy(identity, hello->role);
	memcpy(secret, hello->secret, hello->size);
	return hello->size;
}

static unsigned listener_secret(SSL *tls, const char *identity, unsigned char *secret, unsigned most)
{
	struct hello *hello = SSL_get_app_data(tls);

	if (!hello || !identity || hello->size > most || strlen(identity) >= sizeof hello->role)
		return 0;
	strcpy(hello->role, identity);
	memcpy(secret, hello->secret, hello->size);
	return hello->size;
}

/* A caller that need not be secret says so by what it offers; a listener that need not be takes it. The offer is part of what both prove. */
static int choose(SSL *tls, int *alert, void *unused)
{
	const struct hello *hello = SSL_get_app_data(tls);
	const unsigned char *codes;
	size_t size = SSL_client_hello_get0_ciphers(tls, &codes);

	(void)alert, (void)unused;
	for (size_t i = 0; hello && hello->plain && i + 1 < size; i += 2)
		if (!memcmp(codes + i, plain_code, sizeof plain_code))
			SSL_set_max_proto_version(tls, TLS1_2_VERSION);
	return SSL_CLIENT_HELLO_SUCCESS;
}

static SSL_CTX *contexts[2]; /* of callers and of listeners */

static void make_contexts(void)
{
	for (int listens = 0; listens < 2; listens++) {
		SSL_CTX *context = SSL_CTX_new(listens ? TLS_server_method() : TLS_client_method());
		if (!context || SSL_CTX_set_ciphersuites(context, SECRET) != 1 ||
		    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
			SSL_CTX_free(context);
			continue;
		}
		SSL_CTX_set_num_tickets(context, 0);
		SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
		SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS);
		if (listens) {
			SSL_CTX_set_psk_server_callback(context, listener_secret);
			SSL_CTX_set_client_hello_cb(context, choose, NULL);
		} else {
			SSL_CTX_set_psk_client_callback(context, caller_secret);
			SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL); /* a certificate proves nothing: there is no authority */
		}
		contexts[listens] = context;
	}
}

static SSL *make_tls(int socket, bool listens, struct hello *hello)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_contexts);
	SSL *tls = contexts[listens] ? SSL_new(contexts[listens]) : NULL;
	if (!tls)
		return NULL;
	bool whole = SSL_set_fd(tls, socket) == 1;
	if (whole && hello->plain)
		whole = SSL_set_min_proto_version(tls, TLS1_2_VERSION) == 1 && SSL_set_cipher_list(tls, PLAIN) == 1;
	if (!whole) {
		SSL_free(tls);
		return NULL;
	}
	SSL_set_app_data(tls, hello);
	if (listens)
		SSL_set_accept_state(tls);
	else
		SSL_set_connect_state(tls);
	return tls;
}

/* Whether the other side has the secret, whatever else it may have shown. */
static bool is_proven(const SSL *tls)
{
	if (SSL_version(tls) == TLS1_3_VERSION)
		return SSL_session_reused(tls);
	return SSL_CIPHER_get_auth_nid(SSL_get_current_cipher(tls)) == NID_auth_psk;
}

static long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int shake(const struct stream *stream, int timeout_ms)
{
	long end = milliseconds() + timeout_ms;

	for (;;) {
		ERR_clear_error();
		errno = 0;
		int result = SSL_do_handshake(stream->tls), saved = errno;
		if (result == 1)
			return is_proven(stream->tls) ? 0 : -EPROTO;
		int kind = SSL_get_error(stream->tls, result);
		if (kind == SSL_ERROR_SYSCALL)
			return saved ? -saved : -ECONNRESET;
		if (kind != SSL_ERROR_WANT_READ && kind != SSL_ERROR_WANT_WRITE)
			return ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ECONNRESET : -EPROTO;
		long left = end - milliseconds();
		int waited = left > 0 ? stream_await(stream, kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, (int)left) : -ETIMEDOUT;
		if (waited)
			return waited;
	}
}

/*
 * A stream over a connected socket, which waits for nothing from now on (O_NONBLOCK); the socket is the caller's in any case. role (of
 * STREAM_ROLE bytes, with its NUL): what the caller wants, or, of a listener, what the caller wants. plain: it need not be secret if the
 * other side does not want it either. Returns 0 or -errno: -EPROTO, the other side does not hold the secret, or speaks something else.
 */
int farhome_stream_open(int socket, int listens, char *role, const void *secret, size_t size, int plain, int timeout_ms,
                        struct stream **made)
{
	struct hello hello = {.secret = secret, .size = size, .plain = plain};
	struct stream *stream = stream_plain(socket);
	int result = 0;

	*made = NULL;
	if (!stream)
		return -ENOMEM;
	if (!listens)
		memcpy(hello.role, role, sizeof hello.role);
	fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
	stream->tls = make_tls(socket, listens, &hello);
	if (!stream->tls)
		result = -ENOMEM;
	if (!result)
		result = shake(stream, timeout_ms);
	if (!result)
		result = stream_take_records(stream);
	if (stream->tls)
		SSL_set_app_data(stream->tls, NULL);
	ERR_clear_error();
	if (result) {
		stream_release(stream);
		return result;
	}
	memcpy(role, hello.role, sizeof hello.role);
	*made = stream;
	return 0;
}

/* Whether nobody can read what goes through. */
int farhome_stream_is_secret(const struct stream *stream)
{
	return stream->tls && SSL_CIPHER_get_cipher_nid(SSL_get_current_cipher(stream->tls)) != NID_undef;
}
