/* Who has a session, and what is known of all of them. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

struct mfs_session *mfs_sessions;
pthread_rwlock_t mfs_list_lock = PTHREAD_RWLOCK_INITIALIZER;   /* of who is in the list */

void mfs_session_break(struct mfs_session *session)
{
	session->broken = true;
	pthread_mutex_lock(&session->ends);
	mfs_stream_shut(&session->in);
	mfs_stream_shut(&session->out);
	pthread_mutex_unlock(&session->ends);
	mfs_turn_break(session);
}

void mfs_sessions_each(void (*visit)(struct mfs_session *, void *), void *argument)
{
	pthread_rwlock_rdlock(&mfs_list_lock);
	for (struct mfs_session *session = mfs_sessions; session; session = session->next)
		visit(session, argument);
	pthread_rwlock_unlock(&mfs_list_lock);
}

bool mfs_session_is_unsettled(struct mfs_session *session)
{
	return session->settled < session->notified && mfs_now() - session->notified_at < MFS_SETTLES_WITHIN;
}

unsigned long long mfs_session_news(const struct mfs_session *session)
{
	return session->notified + session->dropped;
}

bool mfs_sessions_unsettled(const struct mfs_session *except)
{
	bool found = false;

	pthread_rwlock_rdlock(&mfs_list_lock);
	for (struct mfs_session *session = mfs_sessions; session; session = session->next)
		found |= session != except && mfs_session_is_unsettled(session);
	pthread_rwlock_unlock(&mfs_list_lock);
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
