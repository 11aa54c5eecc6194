/* Keys of the cluster, and what of TLS they are used with. */
#define _GNU_SOURCE
#include "mfs/context.h"

#include <openssl/err.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SECRET "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
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
