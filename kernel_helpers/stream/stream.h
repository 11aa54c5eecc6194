/* A data connection: the bytes of a socket, by TLS or plain. stream.c moves them, tls.c makes the handshake.
 *
 * One thread reads and one writes, at the same time. An SSL object takes only one of them at once: a lock is around it, and around nothing
 * that waits. Records lie in buffers of ours between it and the socket, so that a peer who does not read keeps nobody from reading. */
#ifndef FARHOME_STREAM_H
#define FARHOME_STREAM_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#define STREAM_ROLE 16 /* bytes of a connection's role, with its NUL */

struct stream;

/* Of a connected socket, which is the stream's; without TLS. NULL: no memory. */
struct stream *stream_plain(int socket);
/* One whose bytes go another way than by a socket: what is done with it is done by these, with the owner. It is asked for no more than
 * to receive, send, be shut and be closed; of `send` the vector is as stream_send() has it. */
struct stream_kind {
	ssize_t (*receive)(void *owner, void *to, size_t size, bool wait);
	int (*send)(void *owner, struct iovec *vector, size_t count);
	void (*shut)(void *owner);
	void (*close)(void *owner);
};
struct stream *stream_of(const struct stream_kind *kind, void *owner);
/* Its socket stays open. */
void stream_release(struct stream *stream);
void stream_close(struct stream *stream);
int stream_socket(const struct stream *stream);
/* Of so much content that is still to come, how many bytes the socket is sure to have. */
size_t stream_least(const struct stream *stream, size_t size);
/* Threads that read or write return. */
void stream_shut(struct stream *stream);
/* The socket, too, waits from now on where it is asked to. */
void stream_wait_in_kernel(struct stream *stream);
/* Whether something has been taken from the socket and not been read. */
bool stream_holds(const struct stream *stream);
/* Whether what is written to the socket itself goes through: plain, or encrypted by the kernel. */
bool stream_splices(const struct stream *stream);
/* Some bytes; 0 at the end of the stream, or -errno: -EAGAIN (!wait: there is nothing yet), -EBADMSG (somebody has changed what came). */
ssize_t stream_receive(struct stream *stream, void *to, size_t size, bool wait);
/* All of the vector, which is used up; in as few records and calls as can be. Never without progress for longer than timeout_ms, -1: for ever.
 * 0 or -errno. */
int stream_send(struct stream *stream, struct iovec *vector, size_t count, int timeout_ms);
/* Until the socket is ready for these events of poll(2). 0 or -errno. */
int stream_await(const struct stream *stream, short events, int timeout_ms);

#endif
