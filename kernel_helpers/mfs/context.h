/* Keys of the cluster, and what of TLS they are used with. */
#ifndef MFS_CONTEXT_H
#define MFS_CONTEXT_H

#include <openssl/ssl.h>
#include <stddef.h>

/* A context with the keys in that directory; NULL, and the reason in `why`. The application's data of a connection that a server accepts by
 * it is a bool: it need not be secret. */
SSL_CTX *mfs_context(const char *directory, int is_server, char *why, size_t size);

#endif
