/* What mfs-client and mfs-server share: their connections, and the frames on them.
 *
 * A mount has two connections, each of which carries frames in one direction only: requests to the server, replies from it. Frames are FUSE
 * messages as the kernel has them (their first word is their length). Both begin with a TLS 1.3 handshake in which each side shows a
 * certificate of the cluster, and a hello inside it; if neither side wants encryption, what follows the hellos is plain. */
#ifndef MFS_WIRE_H
#define MFS_WIRE_H

#include <linux/fuse.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MFS_MAGIC 0x314d4846u /* "FHM1" */
#define MFS_VERSION 3
#define MFS_DATA_MOST (1u << 20)                     /* bytes of one read or write */
#define MFS_FRAME_MOST (MFS_DATA_MOST + (64u << 10)) /* bytes of one frame */
#define MFS_NAME_MOST 64                             /* bytes of a node's name, with its NUL */
#define MFS_SESSION 16                               /* bytes that name a mount */

/* Frames of our own. Towards the server they are opcodes, from it they stand where notifications have their code. */
#define MFS_PING 0x4d460001u /* answered by MFS_PONG */
#define MFS_PONG 0x4d460002
#define MFS_FENCE 0x4d460004 /* from the server, with a number (64 bits): answered, when the kernel has obeyed what came before, by */
#define MFS_ACK 0x4d460005u  /* with that number as its node */
#define MFS_LOOK_SOON 0x4d460007 /* the same, when who was told of the change by others has looked by himself */
#define MFS_LOOK 0x4d460006 /* from the server, with a node: the kernel is to ask for its attributes, as if somebody looked at it */
#define MFS_BYE 0x4d460003u  /* the mount ends, and with it all that the server keeps for it */

/* In the number of a reply: struct mfs_beside follows it. */
#define MFS_BESIDE (1ull << 62)
/* It is data of a file, and large. */
#define MFS_DATA (1ull << 61)

/* Attributes of a node that the request has changed or opened, beside what its reply tells of. */
struct mfs_beside {
	uint64_t node;
	uint64_t order;   /* what has the higher one is not older */
	uint64_t gone[2]; /* nodes that have lost a name, or have another one: what is known of them does not hold; or 0 */
	struct fuse_attr_out attributes; /* of the node; attr_valid 0: they are not told */
};

enum mfs_role { MFS_REQUESTS = 1, MFS_REPLIES = 2 };

struct mfs_hello {
	uint32_t magic, version, role;
	uint32_t encrypted; /* from the client: it wants it; from the server: it is */
	uint32_t resumed;   /* from the server: it knows this mount's nodes and open files */
	uint32_t able;      /* from the client: */
	uint8_t session[MFS_SESSION];
};

#define MFS_HAS_EPOCHS 1u /* its kernel can be told to look all names up anew (protocol 7.44) */
#define MFS_TAKES_BESIDE 2u
#define MFS_TAKES_DATA 4u

struct mfs_stream {
	int fd;
	SSL *tls;                        /* NULL: plain */
	char peer[MFS_NAME_MOST];        /* the node that the certificate names */
	long long since;                 /* the second from which on that is valid */
	unsigned char *ahead;            /* plain only: bytes that were received and not asked for yet */
	size_t begin, end;
};

/* A context with the keys in that directory; NULL, and the reason in `why`. */
SSL_CTX *mfs_context(const char *directory, int is_server, char *why, size_t size);
/* Both make the handshake on the socket, within timeout (ms); 0 or -errno, -EPROTO when the peer has no certificate of the cluster. */
int mfs_stream_connect(struct mfs_stream *stream, SSL_CTX *context, int fd, int timeout);
int mfs_stream_accept(struct mfs_stream *stream, SSL_CTX *context, int fd, int timeout);
/* After the hellos: it stays encrypted, or goes on without. Nothing may be under way. */
void mfs_stream_keep_secret(struct mfs_stream *stream);
void mfs_stream_make_plain(struct mfs_stream *stream);
/* All of it; 0 or -errno, -ECONNRESET at the end of the stream. One thread at a time. */
int mfs_stream_read(struct mfs_stream *stream, void *data, size_t size);
int mfs_stream_write(struct mfs_stream *stream, const void *data, size_t size);
/* The same of what more follows at once: it may go together with that. */
int mfs_stream_write_first(struct mfs_stream *stream, const void *data, size_t size);
/* Whether a read would not have to wait. */
bool mfs_stream_is_ready(struct mfs_stream *stream);
/* How long a read or a write may wait, in ms; 0: for ever. */
void mfs_stream_patience(struct mfs_stream *stream, int receive, int send);
/* Ends both directions; whoever reads or writes returns. */
void mfs_stream_shut(struct mfs_stream *stream);
void mfs_stream_close(struct mfs_stream *stream);
/* The first `least` bytes of a frame, which begins with its length; that length, which is at least that, or -errno. */
long mfs_stream_head(struct mfs_stream *stream, void *buffer, size_t least, size_t most);

/* A pipe of one thread's, in which data is on its way by reference; all zero at first. */
struct mfs_pipe {
	bool is_there;
	int out, in;
	size_t holds;   /* bytes */
	unsigned pause; /* times that it is not used for now */
};

#define MFS_PIPE_MOST (2 * MFS_DATA_MOST) /* bytes: a place for each page, and as many again, since what comes may be parts of pages */

/* Whether it is there, empty, with places for pages of `least` bytes at the least. */
bool mfs_pipe_is_ready(struct mfs_pipe *pipe, size_t least);
/* Nobody wants any more what it holds. */
void mfs_pipe_clear(struct mfs_pipe *pipe);
void mfs_pipe_close(struct mfs_pipe *pipe);
/* Both copy: 0 or -EIO. */
int mfs_pipe_write(struct mfs_pipe *pipe, const void *data, size_t size);
int mfs_pipe_read(struct mfs_pipe *pipe, void *data, size_t size);
/* The next `size` bytes of a plain stream. 1: the pipe holds them, behind what it held; 0: they came in too many parts, and are at `data`, and
 * what the pipe held before them; -errno. */
int mfs_pipe_receive(struct mfs_pipe *pipe, struct mfs_stream *stream, char *data, size_t size);
/* All that it holds, to a plain stream; 0 or -errno. */
int mfs_pipe_send(struct mfs_pipe *pipe, const struct mfs_stream *stream);

/* Whether whoever opens a file with these flags may change it. */
bool mfs_is_for_writing(uint32_t flags);

#endif
