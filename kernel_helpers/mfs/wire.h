/* What mfs-client and mfs-server share: their connections, and the frames on them.
 *
 * A mount has two connections, each of which carries frames in one direction only: requests to the server, replies from it. Frames are FUSE
 * messages as the kernel has them (their first word is their length). Both begin with a TLS handshake in which each side shows a certificate
 * of the cluster, and a hello inside it. All of it is encrypted, or, if neither side wants that, has a MAC alone (tls.c). */
#ifndef MFS_WIRE_H
#define MFS_WIRE_H

#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "mfs/tls.h"

#define MFS_MAGIC 0x314d4846u /* "FHM1" */
#define MFS_VERSION 4
#define MFS_DATA_MOST (1u << 20)                     /* bytes of one read or write */
#define MFS_FRAME_MOST (MFS_DATA_MOST + (64u << 10)) /* bytes of one frame */
#define MFS_SESSION 16                               /* bytes that name a mount */

/* Frames of our own. Towards the server they are opcodes, from it they stand where notifications have their code. */
#define MFS_PING 0x4d460001u /* answered by MFS_PONG */
#define MFS_PONG 0x4d460002
#define MFS_FENCE 0x4d460004 /* from the server, with a number (64 bits): answered, when the kernel has obeyed what came before, by */
#define MFS_ACK 0x4d460005u  /* with that number as its node */
#define MFS_LOOK_SOON 0x4d460007 /* the same, when a peer that others have notified of the change has looked by itself */
#define MFS_LOOK 0x4d460006 /* from the server, with a node: the kernel is to ask for its attributes, as if somebody looked at it */
#define MFS_BYE 0x4d460003u  /* the mount ends, and with it all that the server keeps for it */

/* In the number of a reply: struct mfs_beside follows it. */
#define MFS_BESIDE (1ull << 62)

/* Attributes of a node that the request has changed or opened, beside what its reply reports about. */
struct mfs_beside {
	uint64_t node;
	uint64_t order;   /* what has the higher one is not older */
	uint64_t gone[2]; /* nodes that have lost a name, or have another one: what is known of them does not hold; or 0 */
	struct fuse_attr_out attributes; /* of the node; attr_valid 0: they are not sent */
};

enum mfs_role { MFS_REQUESTS = 1, MFS_REPLIES = 2 };

struct mfs_hello {
	uint32_t magic, version, role;
	uint32_t resumed;   /* from the server: it knows this mount's nodes and open files */
	uint32_t able;      /* from the client: */
	uint8_t session[MFS_SESSION];
};

#define MFS_HAS_EPOCHS 1u /* its kernel can be asked to look all names up anew (protocol 7.44) */
#define MFS_TAKES_BESIDE 2u

/* Ends both directions; threads that read or write return. */
void mfs_stream_shut(struct mfs_stream *stream);
/* The first `least` bytes of a frame, which begins with its length; that length, which is at least that, or -errno. */
long mfs_stream_head(struct mfs_stream *stream, void *buffer, size_t least, size_t most);

/* Whether an open with these flags allows changes of the file. */
bool mfs_is_for_writing(uint32_t flags);

#endif
