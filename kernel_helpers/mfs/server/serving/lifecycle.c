/* Sessions: one for each mount that a peer has of this node. It outlives its connections, and this program: a peer that comes back finds
 * what it knew and had open. */
#define _GNU_SOURCE
#include "mfs/members.h"
#include "mfs/server/serving/serving.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCKS_KEPT 2000       /* ms for which a peer that says nothing keeps its locks */
#define SESSION_KEPT 600000   /* ms for which it finds its open files again */
#define SILENCE 15000         /* ms after which a peer that says nothing is gone */
#define ATTACHES_WITHIN 10000 /* ms between its two connections */
#define REST 2000             /* ms in which threads leave connections that are broken */
#define STUCK_AFTER 400       /* ms after which those that are at requests are not waited for */

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER; /* of their beginning and end */

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
	mfs_turn_begin(&session->turn);
	pthread_mutex_init(&session->writing, NULL);
	pthread_mutex_init(&session->ends, NULL);
	pthread_mutex_init(&session->settling, NULL);
	pthread_mutex_init(&session->watching, NULL);
	pthread_cond_init(&session->is_settled, NULL);
	session->root_counts = mfs_root_counts(peer);
	session->owner = mfs_peer_keep(peer);
	if (!session->owner || !mfs_place_take(session->owner, MFS_SESSIONS)) {
		if (session->owner)
			mfs_peer_let_go(session->owner);
		free(session);
		return NULL;
	}
	session->counters = mfs_counters_take(peer);
	session->locks = mfs_locks_new(session->owner);
	path_of(session, "nodes", path, sizeof path);
	int result = session->counters && session->locks ? mfs_table_begin(&session->table, session->owner, path, resumed) : -ENOMEM;
	path_of(session, "files", path, sizeof path);
	if (!result)
		result = mfs_handles_begin(&session->handles, &session->table, path);
	path_of(session, "done", path, sizeof path);
	if (!result && !(session->ledger = mfs_ledger_begin(path)))
		result = -errno;
	if (result) {
		mfs_log("no session for %s: %s", peer, strerror(-result));
		if (session->counters)
			session->counters->peer[0] = 0;
		mfs_place_give(session->owner, MFS_SESSIONS, 1);
		mfs_peer_let_go(session->owner);
		free(session->locks);
		free(session);
		return NULL;
	}
	mfs_watch_session(session);
	pthread_rwlock_wrlock(&mfs_list_lock);
	session->next = mfs_sessions;
	mfs_sessions = session;
	pthread_rwlock_unlock(&mfs_list_lock);
	return session;
}

/* Ends what is still connected; whether nobody is in the connections any more. Who is at a request that lasts stays at it: it answers by the
 * next connection. */
static bool come_to_rest(struct mfs_session *session)
{
	mfs_session_break(session);
	for (int i = 0; session->threads && !(i > STUCK_AFTER / 5 && session->threads == session->busy) && i < REST / 5; i++) {
		mfs_alone_look();
		usleep(5000);
	}
	if (session->threads != session->busy || !(session->held || mfs_turn_hold(session)))
		return false;
	session->held = true;
	session->connections++;
	pthread_mutex_lock(&session->writing);
	pthread_mutex_lock(&session->ends);
	mfs_stream_close(&session->in);
	mfs_stream_close(&session->out);
	pthread_mutex_unlock(&session->ends);
	session->has_in = session->has_out = session->serving = false;
	session->broken = false;
	pthread_mutex_unlock(&session->writing);
	session->counters->connected = 0;
	return true;
}

static void start(struct mfs_session *session)
{
	pthread_mutex_lock(&session->writing);
	session->serving = true;
	pthread_mutex_unlock(&session->writing);
	session->counters->connected = 1;
	mfs_pages_resume(session);
	session->held = false;
	mfs_turn_end(session);
	mfs_place_count(session->owner, MFS_THREADS, 1); /* without one it would hang */
	mfs_session_add_thread(session);
}

void mfs_serve(struct mfs_stream *stream, const struct mfs_hello *hello)
{
	struct mfs_hello answer = {.magic = MFS_MAGIC, .version = MFS_VERSION, .role = hello->role};
	struct mfs_session *session;
	bool resumed = true;

	pthread_mutex_lock(&sessions_lock);
	for (session = mfs_sessions; session; session = session->next)
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
	session->heard = mfs_now();
	session->epochs = hello->able & MFS_HAS_EPOCHS;
	session->takes_beside = hello->able & MFS_TAKES_BESIDE;
	pthread_mutex_lock(&session->ends);
	if (hello->role == MFS_REQUESTS) {
		session->in = *stream;
		session->has_in = true;
	} else {
		session->out = *stream;
		session->has_out = true;
	}
	pthread_mutex_unlock(&session->ends);
	if (session->has_in && session->has_out)
		start(session);
	pthread_mutex_unlock(&sessions_lock);
	return;
refused:
	pthread_mutex_unlock(&sessions_lock);
	mfs_stream_close(stream);
}

/* A thread of its own: to close what is on a file system that hangs may last. */
static void *tidy_up(void *argument)
{
	struct mfs_session *session = argument;

	mfs_locks_drop_all(session->locks);
	free(session->locks);
	mfs_handles_end(&session->handles);
	mfs_table_end(&session->table);
	mfs_place_give(session->owner, MFS_SESSIONS, 1);
	mfs_peer_let_go(session->owner);
	free(session);
	return NULL;
}

/* Whether nobody uses it, and nobody will: it has neither connections nor leases. Who has found it in the list may have given it a thread. */
static bool leave_list(struct mfs_session **at)
{
	struct mfs_session *session = *at;

	mfs_leases_drop_all(session);
	pthread_rwlock_wrlock(&mfs_list_lock);
	bool may_end = !session->threads && !session->kept;
	if (may_end)
		*at = session->next;
	pthread_rwlock_unlock(&mfs_list_lock);
	return may_end;
}

/* Nobody finds it any more. */
static void end(struct mfs_session *session)
{
	static const char *kept[] = {"done", "files", "nodes"};
	char path[4096];
	pthread_t thread;

	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
		path_of(session, kept[i], path, sizeof path);
		unlink(path);
	}
	mfs_ledger_end(session->ledger);
	session->counters->peer[0] = 0;
	if (pthread_create(&thread, NULL, tidy_up, session))
		tidy_up(session);
	else
		pthread_detach(thread);
}

void mfs_sessions_drop_removed(void)
{
	pthread_mutex_lock(&sessions_lock);
	for (struct mfs_session *session = mfs_sessions; session; session = session->next)
		if ((session->has_in && mfs_is_removed(session->peer, session->in.since)) ||
		    (session->has_out && mfs_is_removed(session->peer, session->out.since))) {
			session->ended = true; /* what it had open is not kept for it */
			mfs_session_break(session);
		}
	pthread_mutex_unlock(&sessions_lock);
}

void mfs_sessions_look(void)
{
	long long now = mfs_now();

	mfs_alone_look();
	pthread_mutex_lock(&sessions_lock);
	for (struct mfs_session **at = &mfs_sessions; *at;) {
		struct mfs_session *session = *at;
		long long silent = now - session->heard;
		if ((session->serving && silent > SILENCE) || (!session->serving && session->has_in && silent > ATTACHES_WITHIN))
			mfs_session_break(session);
		if (session->broken && !session->threads)
			come_to_rest(session);
		bool is_gone = !session->has_in && !session->threads;
		if (silent > LOCKS_KEPT) {
			mfs_handles_lose_locks(&session->handles); /* first: who gets them next must not be read beside */
			mfs_locks_drop_all(session->locks);
		}
		if (is_gone && (session->ended || silent > SESSION_KEPT) && leave_list(at)) {
			end(session);
			continue;
		}
		session->counters->nodes = mfs_table_look(&session->table);
		mfs_pages_look(session);
		session->counters->files = mfs_handles_count(&session->handles);
		at = &session->next;
	}
	pthread_mutex_unlock(&sessions_lock);
}
