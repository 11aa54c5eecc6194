/* Requests. The threads of a session take them in turn (turns.c). */
#define _GNU_SOURCE
#include "mfs/server/server.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EAGER 100000 /* ns */
#define HEADROOM sizeof(struct fuse_out_header)

static const mfs_handler handlers[] = {
	[FUSE_LOOKUP] = mfs_lookup,       [FUSE_GETATTR] = mfs_getattr,
	[FUSE_SETATTR] = mfs_setattr,     [FUSE_READLINK] = mfs_readlink,
	[FUSE_SYMLINK] = mfs_symlink,     [FUSE_MKNOD] = mfs_mknod,
	[FUSE_MKDIR] = mfs_mkdir,         [FUSE_UNLINK] = mfs_unlink,
	[FUSE_RMDIR] = mfs_rmdir,         [FUSE_RENAME] = mfs_rename,
	[FUSE_RENAME2] = mfs_rename2,     [FUSE_LINK] = mfs_link,
	[FUSE_OPEN] = mfs_open,           [FUSE_READ] = mfs_read,
	[FUSE_WRITE] = mfs_write,         [FUSE_STATFS] = mfs_statfs,
	[FUSE_RELEASE] = mfs_release,     [FUSE_FSYNC] = mfs_fsync,
	[FUSE_SETXATTR] = mfs_setxattr,   [FUSE_GETXATTR] = mfs_getxattr,
	[FUSE_LISTXATTR] = mfs_listxattr, [FUSE_REMOVEXATTR] = mfs_removexattr,
	[FUSE_FLUSH] = mfs_flush,         [FUSE_OPENDIR] = mfs_opendir,
	[FUSE_READDIR] = mfs_readdir,     [FUSE_READDIRPLUS] = mfs_readdirplus,
	[FUSE_RELEASEDIR] = mfs_release,  [FUSE_FSYNCDIR] = mfs_fsyncdir,
	[FUSE_GETLK] = mfs_getlk,         [FUSE_SETLK] = mfs_setlk,
	[FUSE_SETLKW] = mfs_setlkw,       [FUSE_ACCESS] = mfs_access,
	[FUSE_CREATE] = mfs_create,       [FUSE_FALLOCATE] = mfs_fallocate,
	[FUSE_LSEEK] = mfs_lseek,         [FUSE_COPY_FILE_RANGE] = mfs_copy_range,
	[FUSE_SYNCFS] = mfs_syncfs,       [FUSE_TMPFILE] = mfs_tmpfile,
};

void *mfs_argument(struct mfs_request *request, size_t size)
{
	return request->size >= size ? request->argument : NULL;
}

const char *mfs_word(struct mfs_request *request, size_t skip)
{
	size_t length;

	if (request->size <= skip)
		return NULL;
	length = strnlen(request->argument + skip, request->size - skip);
	return length && length < request->size - skip ? request->argument + skip : NULL;
}

const char *mfs_name(struct mfs_request *request, size_t skip)
{
	const char *name = mfs_word(request, skip);

	/* One step: no way up, and none further down. */
	return !name || !strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/') ? NULL : name;
}

const char *mfs_second_name(struct mfs_request *request, const char *first)
{
	const char *second = first + strlen(first) + 1;
	size_t left = (size_t)(request->argument + request->size - second);
	size_t length = second < request->argument + request->size ? strnlen(second, left) : 0;

	return length && length < left ? second : NULL;
}

static bool changes_names_or_attributes(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_SETATTR:
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
	case FUSE_CREATE:
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
		return true;
	}
	return false;
}

/* Whether others may have been promised that it does not happen without their knowing. */
static bool breaks_promises(const struct mfs_request *request)
{
	const struct fuse_open_in *asked = (const struct fuse_open_in *)request->argument;

	switch (request->in->opcode) {
	case FUSE_WRITE:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
		return true;
	case FUSE_OPEN:
		return request->size >= sizeof *asked && mfs_is_for_writing(asked->flags);
	}
	return changes_names_or_attributes(request->in->opcode);
}

long mfs_handle(struct mfs_request *request)
{
	long result = handlers[request->in->opcode](request);

	/* Other peers have forgotten what was before when this one hears that it is done. */
	if (result >= 0 && changes_names_or_attributes(request->in->opcode))
		mfs_watch_settle(request);
	return result;
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
		mfs_session_settle(request->session, request->in->nodeid);
	if (request->in->opcode == MFS_BYE) {
		request->session->ended = true;
		mfs_session_break(request->session);
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
		mfs_alone_interrupt(request);
		return;
	case MFS_PING:
	case MFS_ACK:
	case MFS_BYE:
		serve_own(request);
		return;
	}
	atomic_fetch_add(&request->session->counters->requests, 1);
	if (breaks_promises(request))
		mfs_wait_for_predecessor(request);
	if (mfs_ledger_settles(request->session->ledger, request))
		return;
	result = opcode < sizeof handlers / sizeof *handlers && handlers[opcode] ? mfs_handle(request) : -ENOSYS;
	if (result == MFS_ALONE) {
		result = mfs_alone_begin(request);
		if (!result)
			return; /* its own thread answers */
	}
	mfs_reply(request, result);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Who asks one thing after the other has sent the next request before this thread would be asleep and awake again: so it looks for it for a
 * moment, and gives way to whoever wants this processor. */
static void wait_eagerly(struct mfs_session *session)
{
	int64_t end = now_ns() + EAGER;

	while (session->hurries && !session->broken && !mfs_stream_is_ready(&session->in) && now_ns() < end)
		sched_yield();
}

static void *work(void *session);

void mfs_session_add_thread(struct mfs_session *session)
{
	pthread_t thread;

	session->threads++;
	if (pthread_create(&thread, NULL, work, session)) {
		mfs_place_give(session->owner, MFS_THREADS, 1);
		session->threads--;
	} else {
		pthread_detach(thread);
	}
}

void mfs_step_down(struct mfs_request *request)
{
	if (!request->leads)
		return;
	request->leads = false;
	mfs_turn_give(request->session, request->number);
}

/* The next request, at `frame`; its size or -errno. */
static long receive(struct mfs_stream *stream, char *frame)
{
	const size_t head = sizeof(struct fuse_in_header);
	long size = mfs_stream_head(stream, frame, head, MFS_FRAME_MOST);
	int result = size < 0 ? 0 : mfs_stream_read(stream, frame + head, (size_t)size - head);

	return result ? result : size;
}

static void *work(void *argument)
{
	struct mfs_session *session = argument;
	char *frame = malloc(MFS_FRAME_MOST + 1), *buffer = malloc(MFS_FRAME_MOST);
	bool fit = frame && buffer && !mfs_identity_begin(session->root_counts), leads = false;

	mfs_thread_begin(session);
	while (fit) {
		if (!leads && !mfs_turn_take(session))
			break;
		int64_t begun = now_ns();
		wait_eagerly(session);
		long size = session->broken ? -ECONNRESET : receive(&session->in, frame);
		if (size < 0) {
			mfs_turn_end(session);
			break;
		}
		session->hurries = now_ns() - begun < EAGER;
		frame[size] = 0;
		session->heard = mfs_now();
		struct mfs_request request = {
			.session = session,
			.in = (struct fuse_in_header *)frame,
			.argument = frame + sizeof(struct fuse_in_header),
			.size = (size_t)size - sizeof(struct fuse_in_header),
			.buffer = buffer,
			.reply = buffer + HEADROOM,
			.room = MFS_DATA_MOST,
			.leads = true,
			.number = mfs_turn_work(session),
			.news = mfs_session_news(session),
			.connection = session->connections,
		};
		request.squashed = mfs_squash(session->root_counts, &request.in->uid, &request.in->gid);
		session->busy++;
		serve(&request);
		session->busy--;
		leads = request.leads && mfs_turn_goes_on(session, request.number);
	}
	mfs_thread_end();
	mfs_session_break(session);
	free(frame);
	free(buffer);
	mfs_place_give(session->owner, MFS_THREADS, 1);
	session->threads--;
	return NULL;
}
