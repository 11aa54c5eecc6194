/* Bytes of the connections between mfs-client and mfs-server. */
#ifndef MFS_TLS_H
#define MFS_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include "mfs/members.h"

struct mfs_stream {
	int fd;
	SSL *tls;
	char peer[MFS_NAME_MOST];        /* the node that the certificate names */
	long long since;                 /* the second from which on that is valid */
};

/* Both make the handshake on the socket, within timeout (ms); 0 or -errno, -EPROTO when the peer has no certificate of the cluster. plain:
 * it need not be secret if the other side does not want it either. */
int mfs_stream_connect(struct mfs_stream *stream, SSL_CTX *context, int fd, bool plain, int timeout);
int mfs_stream_accept(struct mfs_stream *stream, SSL_CTX *context, int fd, bool plain, int timeout);
/* All of it; 0 or -errno, -ECONNRESET at the end of the stream, or where something is not as it was sent. One thread at a time. */
int mfs_stream_read(struct mfs_stream *stream, void *data, size_t size);
int mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size);
/* Whether a read would not have to wait. */
bool mfs_stream_is_ready(struct mfs_stream *stream);
/* How long a read or a write may wait, in ms; 0: for ever. */
void mfs_stream_patience(struct mfs_stream *stream, int receive, int send);
void mfs_stream_close(struct mfs_stream *stream);

#endif
