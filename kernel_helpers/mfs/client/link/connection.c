/* The connection to the peer, made: two streams, of requests and of replies. */
#define _GNU_SOURCE
#include "mfs/client/link/connection.h"
#include "mfs/members.h"
#include "common/pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ATTEMPT 3000 /* ms that one attempt to connect may take, and each handshake */

struct mfs_connection mfs_connection = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.needed = PTHREAD_COND_INITIALIZER,
	.sending = PTHREAD_MUTEX_INITIALIZER,
	.to.fd = -1,
	.from.fd = -1,
};

/* A socket that is connected to the peer; -errno. */
static int reach(void)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
	struct pollfd watched = {.events = POLLOUT};
	int error = 0;
	socklen_t size = sizeof error;

	if (getaddrinfo(mfs_options.address, mfs_options.port, &hints, &found))
		return -EHOSTUNREACH;
	watched.fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	farhome_unpaced(watched.fd);
	if (watched.fd < 0 || (connect(watched.fd, found->ai_addr, found->ai_addrlen) && errno != EINPROGRESS))
		error = errno;
	freeaddrinfo(found);
	if (!error && poll(&watched, 1, ATTEMPT) != 1)
		error = ETIMEDOUT;
	if (!error && getsockopt(watched.fd, SOL_SOCKET, SO_ERROR, &error, &size))
		error = errno;
	if (!error && fcntl(watched.fd, F_SETFL, 0)) /* from now on it waits in the kernel */
		error = errno;
	if (error && watched.fd >= 0)
		close(watched.fd);
	return error ? -error : watched.fd;
}

/* One of the two connections; 0 or -errno. */
static int meet(struct mfs_stream *stream, enum mfs_role role, bool *resumed)
{
	struct mfs_hello hello = {.magic = MFS_MAGIC, .version = MFS_VERSION, .role = role};
	hello.able = MFS_TAKES_BESIDE | (mfs_fuse_has_epochs() ? MFS_HAS_EPOCHS : 0);
	int fd = reach();
	SSL_CTX *context = mfs_members_context();
	int result = fd < 0 ? fd : mfs_stream_connect(stream, context, fd, mfs_options.plain, ATTEMPT);

	SSL_CTX_free(context);
	if (result)
		return result;
	memcpy(hello.session, mfs_kept->session, sizeof mfs_kept->session);
	if (strcmp(stream->peer, mfs_options.peer))
		result = -EPROTO;
	if (!result)
		result = mfs_stream_write(stream, &hello, sizeof hello);
	if (!result)
		result = mfs_stream_read(stream, &hello, sizeof hello);
	if (!result && (hello.magic != MFS_MAGIC || hello.version != MFS_VERSION))
		result = -EPROTO;
	if (result) {
		mfs_stream_close(stream);
		return result;
	}
	*resumed = hello.resumed;
	mfs_stream_patience(stream, 0, (int)(mfs_options.timeout ? mfs_options.timeout : SILENCE));
	return 0;
}

int mfs_connect(void)
{
	bool resumed;
	int result = meet(&mfs_connection.to, MFS_REQUESTS, &resumed);

	if (!result && (result = meet(&mfs_connection.from, MFS_REPLIES, &resumed)))
		mfs_stream_close(&mfs_connection.to);
	return result;
}
