/* What the files of this folder share. */
#ifndef FARHOME_STREAM_INNER_H
#define FARHOME_STREAM_INNER_H
#include "stream/stream.h"
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdint.h>

#define RECORD 16384u              /* bytes of content in a record, at most */
#define RECORD_ROOM (RECORD + 512) /* and what is around it */
#define RECORDS_OF_A_KEY (1u << 23) /* RFC 8446, 5.5: AES-GCM wants another after 2^24.5 */
#define IN_ROOM (64u << 10)
#define OUT_ROOM (8 * RECORD_ROOM)

struct stream {
	const struct stream_kind *kind;   /* NULL: it has a socket */
	void *owner;
	int socket;
	SSL *tls;                         /* NULL: plain */
	bool kernel_sends, kernel_receives; /* kTLS */
	pthread_mutex_t lock;             /* tls, and records that leave */
	unsigned char *in, *out, *record; /* records that came and that leave; content of one, put together */
	size_t in_begin, in_end;          /* the reader's */
	bool pending;                     /* the reader's: part of a record that was opened is unread */
	size_t out_begin, out_end;
	uint32_t records;                 /* under this key */
};

/* From here on records go through the buffers of the stream. 0 or -ENOMEM. */
int stream_take_records(struct stream *stream);

/* Before a call of TLS whose error is to be asked for. */
void stream_forget_errors(void);

#endif
