/* Whose turn it is to take a session's requests. The leader does what is quick before it takes the next one; what may last it does after the
 * turn has been given to another. What was to be quick and lasts nevertheless (a disk that is slow, a file system that hangs, as those of other
 * machines do) loses the turn to another thread: nobody waits for files that he does not ask for. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

#define THREADS_MOST 128

void (*mfs_add_thread)(struct mfs_session *session);

void mfs_turn_begin(struct mfs_turn *turn)
{
	pthread_mutex_init(&turn->lock, NULL);
	pthread_cond_init(&turn->is_free, NULL);
}

bool mfs_turn_take(struct mfs_session *session)
{
	struct mfs_turn *turn = &session->turn;

	pthread_mutex_lock(&turn->lock);
	turn->waiting++;
	while (turn->taken && !session->broken)
		pthread_cond_wait(&turn->is_free, &turn->lock);
	turn->waiting--;
	bool may_lead = !session->broken;
	turn->taken |= may_lead;
	pthread_mutex_unlock(&turn->lock);
	return may_lead;
}

bool mfs_turn_hold(struct mfs_session *session)
{
	pthread_mutex_lock(&session->turn.lock);
	bool is_free = !session->turn.taken;
	session->turn.taken = true;
	pthread_mutex_unlock(&session->turn.lock);
	return is_free;
}

void mfs_turn_break(struct mfs_session *session)
{
	pthread_mutex_lock(&session->turn.lock);
	pthread_cond_broadcast(&session->turn.is_free);
	pthread_mutex_unlock(&session->turn.lock);
}

void mfs_turn_end(struct mfs_session *session)
{
	pthread_mutex_lock(&session->turn.lock);
	session->turn.taken = false;
	pthread_cond_signal(&session->turn.is_free);
	pthread_mutex_unlock(&session->turn.lock);
}

unsigned long long mfs_turn_work(struct mfs_session *session)
{
	atomic_store_explicit(&session->turn.since, session->heard, memory_order_release);
	unsigned long long number = ++session->turn.last;
	session->turn.at = number;
	return number;
}

bool mfs_turn_goes_on(struct mfs_session *session, unsigned long long number)
{
	return atomic_compare_exchange_strong(&session->turn.at, &number, 0);
}

void mfs_turn_give(struct mfs_session *session, unsigned long long number)
{
	if (!mfs_turn_goes_on(session, number))
		return;
	bool is_alone = !session->turn.waiting && session->threads < THREADS_MOST && mfs_place_take(session->owner, MFS_THREADS);
	mfs_turn_end(session);
	if (is_alone)
		mfs_add_thread(session);
}
