/* Records of TLS go through the buffers of a stream, where the kernel does not make them itself. */
#define _GNU_SOURCE
#include "stream/inner.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int take_bytes(BIO *bio, char *to, int size)
{
	struct stream *stream = BIO_get_data(bio);
	size_t have = stream->in_end - stream->in_begin;

	BIO_clear_retry_flags(bio);
	if (!have) {
		BIO_set_retry_read(bio);
		return -1;
	}
	if (have > (size_t)size)
		have = size;
	memcpy(to, stream->in + stream->in_begin, have);
	stream->in_begin += have;
	return (int)have;
}

static int give_bytes(BIO *bio, const char *from, int size)
{
	struct stream *stream = BIO_get_data(bio);

	BIO_clear_retry_flags(bio);
	if ((size_t)size > OUT_ROOM - stream->out_end)
		return -1; /* the reader's answers to a peer that wants too many */
	memcpy(stream->out + stream->out_end, from, size);
	stream->out_end += size;
	return size;
}

static long control(BIO *bio, int command, long number, void *pointer)
{
	(void)bio, (void)number, (void)pointer;
	return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;

static void make_method(void)
{
	method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "farhome stream");
	if (!method)
		return;
	BIO_meth_set_read(method, take_bytes);
	BIO_meth_set_write(method, give_bytes);
	BIO_meth_set_ctrl(method, control);
}

static BIO *end_for(struct stream *stream)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_method);
	BIO *bio = method ? BIO_new(method) : NULL;
	if (bio) {
		BIO_set_data(bio, stream);
		BIO_set_init(bio, 1);
	}
	return bio;
}

int stream_take_records(struct stream *stream)
{
	stream->kernel_sends = BIO_get_ktls_send(SSL_get_wbio(stream->tls)) > 0;
	stream->kernel_receives = BIO_get_ktls_recv(SSL_get_rbio(stream->tls)) > 0;
	if (!stream->kernel_receives) {
		BIO *end = end_for(stream);
		stream->in = malloc(IN_ROOM);
		if (!end || !stream->in) {
			BIO_free(end);
			return -ENOMEM;
		}
		SSL_set0_rbio(stream->tls, end);
	}
	if (!stream->kernel_sends) {
		BIO *end = end_for(stream);
		stream->out = malloc(OUT_ROOM);
		stream->record = malloc(RECORD);
		if (!end || !stream->out || !stream->record) {
			BIO_free(end);
			return -ENOMEM;
		}
		SSL_set0_wbio(stream->tls, end);
	}
	return 0;
}
