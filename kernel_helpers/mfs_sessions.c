/* Sessions: one for each mount that a peer has of this node. Its threads take requests in turn: whoever holds `reading` has the next one,
 * and does what is quick before it reads on; what may last is done after the turn has been given to another (mfs_step_down). What may have
 * to wait for others (locks, leases) gets a thread of its own. */
#define _GNU_SOURCE
#include "mfs_server.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MOST 32
#define ALONE_MOST 512
#define HEADROOM sizeof(struct fuse_out_header)
#define SMALL 8192            /* bytes of the reply of a request that waits alone */
#define LOCKS_KEPT 2000       /* ms for which a peer that says nothing keeps its locks */
#define SESSION_KEPT 600000   /* ms for which it finds its open files again */
#define SILENCE 15000         /* ms after which a peer that says nothing is gone */
#define ATTACHES_WITHIN 10000 /* ms between its two connections */

struct waiting {
	struct mfs_request request;
	pthread_t thread;
	struct waiting *next;
	char reply[SMALL];
	char frame[];
};

#define QUEUE_MOST (64 << 10)  /* bytes on their way to a peer, behind which no promise is sent: it might come late */

_Thread_local bool mfs_may_wait;
static struct mfs_session *sessions;
static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER; /* of their beginning and end */
static pthread_rwlock_t list_lock = PTHREAD_RWLOCK_INITIALIZER;   /* of who is in the list */
static struct waiting *waiting;
static unsigned waiting_count;
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;

static const mfs_handler handlers[] = {
	[FUSE_LOOKUP] = mfs_lookup, [FUSE_GETATTR] = mfs_getattr, [FUSE_SETATTR] = mfs_setattr, [FUSE_READLINK] = mfs_readlink,
	[FUSE_SYMLINK] = mfs_symlink, [FUSE_MKNOD] = mfs_mknod, [FUSE_MKDIR] = mfs_mkdir, [FUSE_UNLINK] = mfs_unlink,
	[FUSE_RMDIR] = mfs_rmdir, [FUSE_RENAME] = mfs_rename, [FUSE_RENAME2] = mfs_rename2, [FUSE_LINK] = mfs_link,
	[FUSE_OPEN] = mfs_open, [FUSE_READ] = mfs_read, [FUSE_WRITE] = mfs_write, [FUSE_STATFS] = mfs_statfs,
	[FUSE_RELEASE] = mfs_release, [FUSE_FSYNC] = mfs_fsync, [FUSE_SETXATTR] = mfs_setxattr, [FUSE_GETXATTR] = mfs_getxattr,
	[FUSE_LISTXATTR] = mfs_listxattr, [FUSE_REMOVEXATTR] = mfs_removexattr, [FUSE_FLUSH] = mfs_flush,
	[FUSE_OPENDIR] = mfs_opendir, [FUSE_READDIR] = mfs_readdir, [FUSE_READDIRPLUS] = mfs_readdirplus,
	[FUSE_RELEASEDIR] = mfs_release, [FUSE_FSYNCDIR] = mfs_fsyncdir, [FUSE_GETLK] = mfs_getlk, [FUSE_SETLK] = mfs_setlk,
	[FUSE_SETLKW] = mfs_setlkw, [FUSE_ACCESS] = mfs_access, [FUSE_CREATE] = mfs_create, [FUSE_FALLOCATE] = mfs_fallocate,
	[FUSE_LSEEK] = mfs_lseek, [FUSE_COPY_FILE_RANGE] = mfs_copy_range, [FUSE_SYNCFS] = mfs_syncfs, [FUSE_TMPFILE] = mfs_tmpfile,
};

/* ---- what handlers use ---- */

static void *work(void *argument);

/* One more thread that takes requests. */
static void start_thread(struct mfs_session *session)
{
	pthread_t thread;

	session->threads++;
	if (pthread_create(&thread, NULL, work, session))
		session->threads--;
	else
		pthread_detach(thread);
}

void mfs_step_down(struct mfs_request *request)
{
	struct mfs_session *session = request->session;

	if (!request->leads)
		return;
	request->leads = false;
	bool is_alone = !session->followers && session->threads < THREADS_MOST;
	pthread_mutex_unlock(&session->reading);
	if (is_alone)
		start_thread(session);
}

void *mfs_argument(struct mfs_request *request, size_t size)
{
	return request->size >= size ? request->argument : NULL;
}

const char *mfs_name(struct mfs_request *request, size_t skip)
{
	const char *name = request->argument + skip;
	size_t length;

	if (request->size <= skip)
		return NULL;
	length = strnlen(name, request->size - skip);
	if (!length || length == request->size - skip)
		return NULL;
	/* A name is one step: no way up, and none further down. (For attributes the kernel asks of this just what it asks of names.) */
	return !strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/') ? NULL : name;
}

const char *mfs_second_name(struct mfs_request *request, const char *first)
{
	const char *second = first + strlen(first) + 1;
	size_t left = (size_t)(request->argument + request->size - second);
	size_t length = second < request->argument + request->size ? strnlen(second, left) : 0;

	return length && length < left ? second : NULL;
}

static void break_off(struct mfs_session *session)
{
	session->broken = true;
	mfs_stream_shut(&session->in);
	mfs_stream_shut(&session->out);
}

int mfs_send(struct mfs_session *session, const void *frame, size_t size)
{
	pthread_mutex_lock(&session->writing);
	int result = session->broken ? -ECONNRESET : mfs_stream_write(&session->out, frame, size);
	pthread_mutex_unlock(&session->writing);
	if (result)
		break_off(session);
	return result;
}

/* ---- notifications ---- */

static struct timespec in_ms(long ms)
{
	struct timespec then;

	clock_gettime(CLOCK_REALTIME, &then);
	then.tv_sec += ms / 1000;
	then.tv_nsec += ms % 1000 * 1000000;
	if (then.tv_nsec >= 1000000000)
		then.tv_sec++, then.tv_nsec -= 1000000000;
	return then;
}

/* Under `writing`. */
static void send_notification(struct mfs_session *session, const void *frame, size_t size)
{
	if (session->serving && !session->broken && mfs_stream_write(&session->out, frame, size))
		break_off(session);
}

void mfs_notify(struct mfs_session *session, const void *frame, size_t size)
{
	struct timespec patience = in_ms(MFS_SETTLES_WITHIN);

	/* Counted first: a reply that is being made and sent before it loses its promises. */
	atomic_fetch_add(&session->notified, 1);
	atomic_fetch_add(&session->counters->invalidations, 1);
	if (pthread_mutex_timedlock(&session->writing, &patience))
		return; /* something large is on its way to it; what it remembered has run out by itself */
	send_notification(session, frame, size);
	pthread_mutex_unlock(&session->writing);
}

uint64_t mfs_fence(struct mfs_session *session)
{
	struct {
		struct fuse_out_header header;
		uint64_t number;
	} fence = {.header = {.len = sizeof fence, .error = MFS_FENCE}};
	struct timespec patience = in_ms(MFS_SETTLES_WITHIN);

	if (session->settled >= session->notified)
		return 0;
	if (pthread_mutex_timedlock(&session->writing, &patience))
		return session->notified;
	fence.number = session->notified;
	send_notification(session, &fence, sizeof fence);
	pthread_mutex_unlock(&session->writing);
	return fence.number;
}

void mfs_fence_wait(struct mfs_session *session, uint64_t number)
{
	struct timespec patience = in_ms(MFS_SETTLES_WITHIN);

	pthread_mutex_lock(&session->settling);
	while (session->settled < number && !pthread_cond_timedwait(&session->is_settled, &session->settling, &patience))
		;
	pthread_mutex_unlock(&session->settling);
}

static void settle(struct mfs_session *session, uint64_t number)
{
	pthread_mutex_lock(&session->settling);
	if (number > session->settled && number <= session->notified)
		session->settled = number;
	pthread_cond_broadcast(&session->is_settled);
	pthread_mutex_unlock(&session->settling);
	mfs_leases_settled(session);
}

void mfs_sessions_each(void (*visit)(struct mfs_session *, void *), void *argument)
{
	pthread_rwlock_rdlock(&list_lock);
	for (struct mfs_session *session = sessions; session; session = session->next)
		visit(session, argument);
	pthread_rwlock_unlock(&list_lock);
}

bool mfs_sessions_unsettled(const struct mfs_session *except)
{
	bool found = false;

	pthread_rwlock_rdlock(&list_lock);
	for (const struct mfs_session *session = sessions; session; session = session->next)
		found |= session != except && session->settled < session->notified;
	pthread_rwlock_unlock(&list_lock);
	return found;
}

void mfs_session_keep(struct mfs_session *session)
{
	session->kept++;
}

void mfs_session_let_go(struct mfs_session *session)
{
	session->kept--;
}

/* ---- requests ---- */

int mfs_open_patiently(int node, int flags)
{
	int fd = open(mfs_path_of(node).text, flags | O_CLOEXEC | (mfs_may_wait ? 0 : O_NONBLOCK));

	if (fd < 0 && errno == EWOULDBLOCK && !mfs_may_wait)
		errno = ERESTART;
	return fd;
}

/* Something has changed since the request was begun: what it is told holds now, and is not to be remembered. */
static void take_promises_back(struct mfs_request *request, size_t size)
{
	const size_t entry_size = sizeof(struct fuse_entry_out);

	switch (request->in->opcode) {
	case FUSE_GETATTR:
	case FUSE_SETATTR:
		((struct fuse_attr_out *)request->reply)->attr_valid = 0;
		break;
	case FUSE_READDIRPLUS:
		for (char *at = request->reply; at + entry_size <= request->reply + size;) {
			struct fuse_direntplus *one = (struct fuse_direntplus *)at;
			one->entry_out.entry_valid = one->entry_out.attr_valid = 0;
			at += FUSE_DIRENTPLUS_SIZE(one);
		}
		break;
	default:
		((struct fuse_entry_out *)request->reply)->entry_valid = 0;
		((struct fuse_entry_out *)request->reply)->attr_valid = 0;
	}
}

/* Whether much that was sent before has not arrived. */
static bool is_behind(const struct mfs_session *session)
{
	int queued = 0;

	return ioctl(session->out.fd, SIOCOUTQ, &queued) || queued > QUEUE_MOST;
}

static void reply(struct mfs_request *request, long result)
{
	struct fuse_out_header *header = (struct fuse_out_header *)request->buffer;
	size_t size = HEADROOM + (result > 0 ? (size_t)result : 0);

	*header = (struct fuse_out_header){.len = (uint32_t)size, .error = result < 0 ? (int32_t)result : 0, .unique = request->in->unique};
	mfs_ledger_note(request->session->ledger, request);
	struct mfs_session *session = request->session;
	pthread_mutex_lock(&session->writing);
	if (request->promises && result > 0 && (session->notified != request->notified || is_behind(session)))
		take_promises_back(request, (size_t)result);
	result = session->broken ? -ECONNRESET : mfs_stream_write(&session->out, request->buffer, size);
	pthread_mutex_unlock(&session->writing);
	if (result)
		break_off(session);
}

static bool changes_names_or_attributes(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_SETATTR: case FUSE_SYMLINK: case FUSE_MKNOD: case FUSE_MKDIR: case FUSE_UNLINK: case FUSE_RMDIR: case FUSE_RENAME:
	case FUSE_RENAME2: case FUSE_LINK: case FUSE_CREATE: case FUSE_SETXATTR: case FUSE_REMOVEXATTR:
		return true;
	}
	return false;
}

static long handle(struct mfs_request *request)
{
	long result = handlers[request->in->opcode](request);

	/* Other peers have forgotten what was before when this one hears that it is done. */
	if (result >= 0 && changes_names_or_attributes(request->in->opcode))
		mfs_watch_settle(request);
	return result;
}

static void *wait_alone(void *argument)
{
	struct waiting *own = argument;
	struct mfs_session *session = own->request.session;
	long result = mfs_identity_begin();

	mfs_may_wait = true;
	reply(&own->request, result ? result : handle(&own->request));
	pthread_mutex_lock(&waiting_lock);
	for (struct waiting **at = &waiting; *at; at = &(*at)->next)
		if (*at == own) {
			*at = own->next;
			break;
		}
	waiting_count--;
	pthread_mutex_unlock(&waiting_lock);
	free(own);
	session->threads--;
	return NULL;
}

/* Before anything else of its session is read: an interruption that follows finds it. */
static int begin_alone(struct mfs_request *request)
{
	size_t size = request->in->len;
	struct waiting *own = malloc(sizeof *own + size + 1);
	int result = 0;

	if (!own)
		return -ENOMEM;
	memcpy(own->frame, request->in, size);
	own->frame[size] = 0;
	own->request = (struct mfs_request){
		.session = request->session, .in = (struct fuse_in_header *)own->frame,
		.argument = own->frame + sizeof(struct fuse_in_header), .size = request->size,
		.buffer = own->reply, .reply = own->reply + HEADROOM, .room = SMALL - HEADROOM, .alone = true,
		.notified = request->session->notified,
	};
	request->session->threads++;
	pthread_mutex_lock(&waiting_lock);
	if (waiting_count >= ALONE_MOST || pthread_create(&own->thread, NULL, wait_alone, own)) {
		result = -EAGAIN;
	} else {
		pthread_detach(own->thread);
		waiting_count++;
		own->next = waiting;
		waiting = own;
	}
	pthread_mutex_unlock(&waiting_lock);
	if (result) {
		request->session->threads--;
		free(own);
	}
	return result;
}

/* Wakes those that are to give up; again and again, since one may not have begun to wait yet. */
static void interrupt_waiting(void)
{
	pthread_mutex_lock(&waiting_lock);
	for (struct waiting *one = waiting; one; one = one->next) {
		if (one->request.session->broken)
			one->request.interrupted = true;
		if (one->request.interrupted)
			pthread_kill(one->thread, SIGUSR1);
	}
	pthread_mutex_unlock(&waiting_lock);
}

static void interrupt(struct mfs_request *request)
{
	const struct fuse_interrupt_in *asked = mfs_argument(request, sizeof *asked);

	pthread_mutex_lock(&waiting_lock);
	for (struct waiting *one = waiting; asked && one; one = one->next)
		if (one->request.session == request->session && one->request.in->unique == asked->unique) {
			one->request.interrupted = true;
			pthread_kill(one->thread, SIGUSR1);
		}
	pthread_mutex_unlock(&waiting_lock);
}

static void forget_many(struct mfs_request *request)
{
	const struct fuse_batch_forget_in *asked = mfs_argument(request, sizeof *asked);
	const struct fuse_forget_one *one = asked ? (const struct fuse_forget_one *)(asked + 1) : NULL;

	for (uint32_t i = 0; asked && i < asked->count && (const char *)(one + 1) <= request->argument + request->size; i++, one++)
		mfs_node_forget(&request->session->table, one->nodeid, one->nlookup);
}

static void serve_own(struct mfs_request *request)
{
	static const struct fuse_out_header pong = {.len = sizeof pong, .error = MFS_PONG};

	if (request->in->opcode == MFS_PING)
		mfs_send(request->session, &pong, sizeof pong);
	if (request->in->opcode == MFS_ACK)
		settle(request->session, request->in->nodeid);
	if (request->in->opcode == MFS_BYE) {
		request->session->ended = true;
		break_off(request->session);
	}
}

static void serve(struct mfs_request *request)
{
	uint32_t opcode = request->in->opcode;
	const struct fuse_forget_in *forget;
	long result;

	switch (opcode) {
	case FUSE_FORGET:
		forget = mfs_argument(request, sizeof *forget);
		if (forget)
			mfs_node_forget(&request->session->table, request->in->nodeid, forget->nlookup);
		return;
	case FUSE_BATCH_FORGET:
		forget_many(request);
		return;
	case FUSE_INTERRUPT:
		interrupt(request);
		return;
	case MFS_PING:
	case MFS_ACK:
	case MFS_BYE:
		serve_own(request);
		return;
	}
	atomic_fetch_add(&request->session->counters->requests, 1);
	if (mfs_ledger_settles(request->session->ledger, request))
		return;
	result = opcode < sizeof handlers / sizeof *handlers && handlers[opcode] ? handle(request) : -ENOSYS;
	if (result == MFS_ALONE) {
		result = begin_alone(request);
		if (!result)
			return; /* its own thread answers */
	}
	reply(request, result);
}

static void *work(void *argument)
{
	struct mfs_session *session = argument;
	char *frame = malloc(MFS_FRAME_MOST + 1), *buffer = malloc(MFS_FRAME_MOST);
	bool fit = frame && buffer && !mfs_identity_begin(), leads = false;

	while (fit) {
		if (!leads) {
			session->followers++;
			pthread_mutex_lock(&session->reading);
			session->followers--;
		}
		long size = session->broken ? -ECONNRESET
					    : mfs_stream_frame(&session->in, frame, sizeof(struct fuse_in_header), MFS_FRAME_MOST);
		if (size < 0) {
			pthread_mutex_unlock(&session->reading);
			break;
		}
		frame[size] = 0;
		session->heard = mfs_now();
		struct mfs_request request = {
			.session = session, .in = (struct fuse_in_header *)frame, .argument = frame + sizeof(struct fuse_in_header),
			.size = (size_t)size - sizeof(struct fuse_in_header), .buffer = buffer, .reply = buffer + HEADROOM,
			.room = MFS_DATA_MOST, .leads = true, .notified = session->notified,
		};
		serve(&request);
		leads = request.leads;
	}
	break_off(session);
	free(frame);
	free(buffer);
	session->threads--;
	return NULL;
}

/* ---- sessions ---- */

static void path_of(const struct mfs_session *session, const char *what, char *path, size_t size)
{
	int at = snprintf(path, size, "%s/%s-", mfs_run_directory, session->peer);

	for (int i = 0; i < MFS_SESSION; i++)
		at += snprintf(path + at, size - (size_t)at, "%02x", session->id[i]);
	snprintf(path + at, size - (size_t)at, ".%s", what);
}

static struct mfs_session *new_session(const char *peer, const uint8_t *id, bool *resumed)
{
	struct mfs_session *session = calloc(1, sizeof *session);
	char path[4096];

	if (!session)
		return NULL;
	session->in.fd = session->out.fd = -1;
	snprintf(session->peer, sizeof session->peer, "%s", peer);
	memcpy(session->id, id, MFS_SESSION);
	pthread_mutex_init(&session->reading, NULL);
	pthread_mutex_init(&session->writing, NULL);
	pthread_mutex_init(&session->settling, NULL);
	pthread_mutex_init(&session->watching, NULL);
	pthread_cond_init(&session->is_settled, NULL);
	session->counters = mfs_counters_take(peer);
	session->locks = mfs_locks_new();
	path_of(session, "nodes", path, sizeof path);
	int result = session->counters && session->locks ? mfs_table_begin(&session->table, path, resumed) : -ENOMEM;
	path_of(session, "files", path, sizeof path);
	if (!result)
		result = mfs_handles_begin(&session->handles, path);
	path_of(session, "done", path, sizeof path);
	if (!result && !(session->ledger = mfs_ledger_begin(path)))
		result = -errno;
	if (result) {
		mfs_log("no session for %s: %s", peer, strerror(-result));
		free(session);
		return NULL;
	}
	pthread_rwlock_wrlock(&list_lock);
	session->next = sessions;
	sessions = session;
	pthread_rwlock_unlock(&list_lock);
	return session;
}

/* Ends what is still connected; whether all its threads have ended. */
static bool come_to_rest(struct mfs_session *session)
{
	break_off(session);
	for (int i = 0; session->threads && i < 400; i++) {
		interrupt_waiting();
		usleep(5000);
	}
	if (session->threads)
		return false;
	mfs_stream_close(&session->in);
	mfs_stream_close(&session->out);
	session->has_in = session->has_out = session->serving = false;
	session->broken = false;
	session->counters->connected = 0;
	return true;
}

static void start(struct mfs_session *session)
{
	session->serving = true;
	session->counters->connected = 1;
	start_thread(session);
}

void mfs_serve(struct mfs_stream *stream, const struct mfs_hello *hello)
{
	struct mfs_hello answer = {
		.magic = MFS_MAGIC, .version = MFS_VERSION, .role = hello->role, .encrypted = hello->encrypted || mfs_encrypts,
	};
	struct mfs_session *session;
	bool resumed = true;

	pthread_mutex_lock(&sessions_lock);
	for (session = sessions; session; session = session->next)
		if (!strcmp(session->peer, stream->peer) && !memcmp(session->id, hello->session, MFS_SESSION))
			break;
	if (!session)
		session = new_session(stream->peer, hello->session, &resumed);
	if (!session || (hello->role == MFS_REQUESTS && !come_to_rest(session)) || (hello->role == MFS_REPLIES && session->has_out))
		goto refused;
	answer.resumed = resumed;
	if (mfs_stream_write(stream, &answer, sizeof answer))
		goto refused;
	mfs_stream_patience(stream, 0, SILENCE);
	if (answer.encrypted)
		mfs_stream_keep_secret(stream);
	else
		mfs_stream_make_plain(stream);
	session->heard = mfs_now();
	session->epochs = hello->epochs;
	if (hello->role == MFS_REQUESTS) {
		session->in = *stream;
		session->has_in = true;
	} else {
		session->out = *stream;
		session->has_out = true;
	}
	if (session->has_in && session->has_out)
		start(session);
	pthread_mutex_unlock(&sessions_lock);
	return;
refused:
	pthread_mutex_unlock(&sessions_lock);
	mfs_stream_close(stream);
}

static void end(struct mfs_session *session)
{
	char path[4096];

	mfs_leases_drop_all(session);
	mfs_locks_drop_all(session->locks);
	free(session->locks);
	path_of(session, "done", path, sizeof path);
	mfs_ledger_end(session->ledger, path);
	path_of(session, "files", path, sizeof path);
	mfs_handles_end(&session->handles, path, true);
	mfs_table_end(&session->table, true);
	session->counters->peer[0] = 0;
	free(session);
}

void mfs_sessions_look(void)
{
	long long now = mfs_now();

	interrupt_waiting();
	pthread_mutex_lock(&sessions_lock);
	for (struct mfs_session **at = &sessions; *at;) {
		struct mfs_session *session = *at;
		long long silent = now - session->heard;
		if ((session->serving && silent > SILENCE) || (!session->serving && session->has_in && silent > ATTACHES_WITHIN))
			break_off(session);
		if (session->broken && !session->threads)
			come_to_rest(session);
		bool is_gone = !session->has_in && !session->threads;
		if (silent > LOCKS_KEPT) {
			mfs_locks_drop_all(session->locks);
			mfs_handles_lose_locks(&session->handles);
		}
		if (is_gone && !session->kept && (session->ended || silent > SESSION_KEPT)) {
			pthread_rwlock_wrlock(&list_lock);
			*at = session->next;
			pthread_rwlock_unlock(&list_lock);
			end(session);
			continue;
		}
		mfs_table_look(&session->table);
		session->counters->nodes = session->table.open;
		session->counters->files = session->handles.used - 1 - session->handles.free_count;
		at = &session->next;
	}
	pthread_mutex_unlock(&sessions_lock);
}
