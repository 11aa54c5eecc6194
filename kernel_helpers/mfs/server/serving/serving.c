/* Requests taken from the peer, and done. The threads of a session take them in turn (turns.c). */
#define _GNU_SOURCE
#include "mfs/server/serving/serving.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define EAGER 100000 /* ns */
#define HEADROOM sizeof(struct fuse_out_header)

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
	if (mfs_breaks_promises(request))
		mfs_wait_for_predecessor(request);
	if (mfs_ledger_settles(request->session->ledger, request))
		return;
	result = mfs_handle(request);
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

/* A program that sends one request after the other has sent the next request before this thread would be asleep and awake again: so it looks for it for a
 * moment, and yields the processor. */
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

/* The next request, at `frame`; its size or -errno. */
static long receive(struct mfs_stream *stream, char *frame)
{
	const size_t head = sizeof(struct fuse_in_header);
	long size = mfs_stream_head(stream, frame, head, MFS_FRAME_MOST);
	int result = size < 0 ? 0 : mfs_stream_read(stream, frame + head, (size_t)size - head);

	return result ? result : size;
}

static void step_down(struct mfs_request *request)
{
	request->leads = false;
	mfs_turn_give(request->session, request->number);
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
			.steps_down = step_down,
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
