/* The connection to the peer. While it is there, requests go straight to it. While it is not, they wait, but no longer than the time-out;
 * then they fail, as does all that follows, until the peer is back. What the peer may have done already when it was lost is asked again
 * under the same number: the server knows which of them it has done. */
#define _GNU_SOURCE
#include "mfs/client/parts.h"
#include "mfs/members.h"
#include "common/pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define PING_EVERY 200    /* ms */
#define PINGS 64          /* of which it is known when they were sent */
#define FRESH 1000        /* ms; who has not been answered for so long does not know what has changed meanwhile */
#define ATTEMPT 3000      /* ms that one attempt to connect may take, and each handshake */
#define PAUSE 200         /* ms between two attempts; as long as nobody waits: */
#define IDLE_PAUSE 1000
#define GOODBYE 1000      /* ms that it may take to say it */
#define WAITING_MOST 4096 /* requests; more fail at once */
#define SILENCE 10000     /* ms after which a peer that says nothing is lost, if there is no time-out */

struct held {
	struct held *next;
	long long since;
	size_t size;
	char frame[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* of what follows */
static pthread_cond_t needed = PTHREAD_COND_INITIALIZER;    /* somebody asks for the peer */
static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER; /* of the stream to the peer; taken before `lock` */
static struct mfs_stream to, from;
static bool connected, wanted;
static long long lost_at, heard_at, pinged_at;
static atomic_llong pings[PINGS]; /* when they were sent */
static atomic_uint ping_count, pong_count;
static struct held *first, **last = &first;
static unsigned held_count;

static bool is_too_late(long long now)
{
	return mfs_options.timeout && lost_at && now - lost_at > mfs_options.timeout;
}

/* Half of the time is left to find it again. */
static long long silence(void)
{
	return mfs_options.timeout ? mfs_options.timeout / 2 : SILENCE;
}

static bool is_forget(uint32_t opcode)
{
	return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_INTERRUPT;
}

/* Under `lock`. Whether it is kept for when the peer is there. */
static bool hold(const void *frame, size_t size)
{
	struct held *one;

	if (held_count >= WAITING_MOST || is_too_late(mfs_now()))
		return false;
	one = malloc(sizeof *one + size);
	if (!one)
		return false;
	one->next = NULL;
	one->since = mfs_now();
	one->size = size;
	memcpy(one->frame, frame, size);
	*last = one;
	last = &one->next;
	held_count++;
	mfs_figures->waiting = held_count;
	wanted = true;
	pthread_cond_signal(&needed);
	return true;
}

static struct held *take_held(void)
{
	struct held *one = first;

	if (one) {
		first = one->next;
		if (!first)
			last = &first;
		held_count--;
		mfs_figures->waiting = held_count;
	}
	return one;
}

void mfs_link_forward(const void *frame, size_t size)
{
	const struct fuse_in_header *in = frame;
	bool kept = true;

	atomic_fetch_add(&mfs_figures->requests, 1);
	pthread_mutex_lock(&sending);
	pthread_mutex_lock(&lock);
	bool now = connected;
	if (!now)
		kept = hold(frame, size);
	pthread_mutex_unlock(&lock);
	/* If this fails the connection is lost, and the kernel is made to ask again. */
	if (now && mfs_stream_write(&to, frame, size))
		mfs_stream_shut(&from);
	pthread_mutex_unlock(&sending);
	if (now)
		atomic_fetch_add(&mfs_figures->bytes_out, size);
	else if (!kept && !is_forget(in->opcode))
		mfs_fuse_fail(in->unique, ENOTCONN);
}

void mfs_link_send(const void *frame, size_t size)
{
	pthread_mutex_lock(&sending);
	if (connected && mfs_stream_write(&to, frame, size))
		mfs_stream_shut(&from);
	pthread_mutex_unlock(&sending);
}

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

static int come_up(void)
{
	bool resumed;
	int result = meet(&to, MFS_REQUESTS, &resumed);

	if (!result && (result = meet(&from, MFS_REPLIES, &resumed)))
		mfs_stream_close(&to);
	if (result)
		return result;
	pthread_mutex_lock(&sending);
	pthread_mutex_lock(&lock);
	connected = true;
	lost_at = 0;
	heard_at = pinged_at = mfs_now();
	pings[0] = heard_at;
	ping_count = 1;
	pong_count = 0;
	/* What has waited goes first, in its order. If that fails the connection is lost, and the kernel is made to ask again. */
	for (struct held *one; (one = take_held()); free(one))
		if (!result && (result = mfs_stream_write(&to, one->frame, one->size)))
			mfs_stream_shut(&from);
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&sending);
	mfs_figures->connected = 1;
	atomic_fetch_add(&mfs_figures->connections, 1);
	return 0;
}

/* Until the connection breaks. */
static void receive(char *buffer)
{
	struct fuse_out_header *header = (struct fuse_out_header *)buffer;
	struct mfs_beside beside;

	for (;;) {
		long size = mfs_stream_head(&from, buffer, sizeof *header, MFS_FRAME_MOST);
		if (size < 0 || mfs_stream_read(&from, header + 1, (size_t)size - sizeof *header))
			return;
		atomic_fetch_add(&mfs_figures->bytes_in, (unsigned long long)size);
		__atomic_store_n(&heard_at, mfs_now(), __ATOMIC_RELAXED);
		if (header->unique) {
			bool has_beside = header->unique & MFS_BESIDE && size >= (long)(sizeof *header + sizeof beside);
			if (has_beside) {
				size -= (long)sizeof beside;
				memcpy(&beside, buffer + size, sizeof beside);
				header->len = (uint32_t)size;
				header->unique &= ~MFS_BESIDE;
			}
			mfs_known_learns(buffer, (size_t)size);
			mfs_promises_come(buffer, (size_t)size, has_beside ? &beside : NULL);
			mfs_fuse_answer(buffer, (size_t)size);
		} else if (header->error == MFS_PONG) {
			pong_count++;
		} else {
			mfs_fuse_notify(buffer, (size_t)size);
		}
	}
}

static void come_down(void)
{
	mfs_stream_shut(&to);
	mfs_stream_shut(&from);
	pthread_mutex_lock(&sending);
	pthread_mutex_lock(&lock);
	connected = false;
	lost_at = heard_at;
	pthread_mutex_unlock(&lock);
	mfs_stream_close(&to);
	mfs_stream_close(&from);
	pthread_mutex_unlock(&sending);
	mfs_figures->connected = 0;
	mfs_promises_forget(); /* what has changed has perhaps been told to nobody */
	mfs_pages_drop();
	int result = mfs_fuse_ask_again();
	if (result && result != -ENODEV) {
		mfs_log("%s is lost, and this kernel cannot ask again what it has not answered: %s", mfs_options.peer, strerror(-result));
		exit(1); /* whoever waits is told that the mount is gone; mosd makes it anew */
	}
}

static void wait_until_wanted(void)
{
	pthread_mutex_lock(&lock);
	while (!wanted)
		pthread_cond_wait(&needed, &lock);
	pthread_mutex_unlock(&lock);
}

static void *keep_link(void *unused)
{
	char *buffer = malloc(MFS_FRAME_MOST);
	int told = 0;

	(void)unused;
	while (buffer) {
		wait_until_wanted();
		int result = come_up();
		if (!result) {
			told = 0;
			receive(buffer);
			come_down();
			continue;
		}
		if (result != told)
			mfs_log("%s cannot be reached: %s", mfs_options.peer,
			        result == -EPROTO ? "it is not who it should be" : strerror(-result));
		told = result;
		pthread_mutex_lock(&lock);
		if (!lost_at)
			lost_at = mfs_now();
		unsigned pause = held_count ? PAUSE : IDLE_PAUSE;
		pthread_mutex_unlock(&lock);
		usleep(pause * 1000);
	}
	return NULL;
}

void mfs_link_look(void)
{
	static const struct fuse_in_header ping = {.len = sizeof ping, .opcode = MFS_PING};
	long long now = mfs_now();
	struct held *late = NULL, **end = &late;
	bool has_changed = mfs_members_look();

	pthread_mutex_lock(&lock);
	if (has_changed && connected && mfs_is_removed(mfs_options.peer, to.since)) {
		mfs_stream_shut(&to);
		mfs_stream_shut(&from);
	}
	bool is_silent = connected && now - __atomic_load_n(&heard_at, __ATOMIC_RELAXED) > silence();
	bool is_due = connected && now - pinged_at >= PING_EVERY;
	if (is_due)
		pinged_at = now;
	if (is_silent) {
		mfs_stream_shut(&to);
		mfs_stream_shut(&from);
	}
	if (!connected && is_too_late(now)) {
		*end = first;
		first = NULL;
		last = &first;
		held_count = 0;
		mfs_figures->waiting = 0;
	}
	bool is_fresh = !connected || now - pings[pong_count % PINGS] < FRESH;
	pthread_mutex_unlock(&lock);
	if (!is_fresh)
		mfs_pages_drop();
	for (struct held *next; late; late = next) {
		struct fuse_in_header *in = (struct fuse_in_header *)late->frame;
		next = late->next;
		if (!is_forget(in->opcode))
			mfs_fuse_fail(in->unique, ENOTCONN);
		free(late);
	}
	/* Whoever is sending shows that the link works, or waits for it as long as is allowed. */
	if (is_due && !is_silent && !pthread_mutex_trylock(&sending)) {
		pings[ping_count++ % PINGS] = now;
		if (connected && mfs_stream_write(&to, &ping, sizeof ping))
			mfs_stream_shut(&from);
		pthread_mutex_unlock(&sending);
	}
}

void mfs_link_end(void)
{
	static const struct fuse_in_header bye = {.len = sizeof bye, .opcode = MFS_BYE};

	if (!mfs_lock_until(&sending, mfs_now() + GOODBYE))
		return;
	if (connected) { /* else a connection is perhaps just being made */
		mfs_stream_patience(&to, 0, 500);
		mfs_stream_write(&to, &bye, sizeof bye);
	}
	pthread_mutex_unlock(&sending);
}

int mfs_link_begin(void)
{
	pthread_t thread;
	char why[512];

	to.fd = from.fd = -1;
	if (!mfs_members_begin(mfs_options.pki, 0, why, sizeof why)) {
		mfs_log("%s", why);
		return -EINVAL;
	}
	if (!mfs_kept->has_session && getrandom(mfs_kept->session, sizeof mfs_kept->session, 0) != sizeof mfs_kept->session)
		return -errno;
	mfs_kept->has_session = true;
	return -pthread_create(&thread, NULL, keep_link, NULL);
}
