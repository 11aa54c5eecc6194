/* Looks who leads for too long, and gives the turn to another thread. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

#include <pthread.h>
#include <unistd.h>

#define LASTS 50 /* ms */
#define TICK 20 /* ms between two looks at who leads while somebody is at a request; as long as nobody is: */
#define CALM 200
#define SOON 5 /* ms in place of these, for */
#define ALERT 1000 /* ms after somebody has lost his turn: many may ask for the same */

struct looked {
	bool is_alert; /* somebody has lost his turn lately */
	bool found; /* somebody leads who is at a request, */
	bool relieved; /* and has lost his turn now */
};

static void relieve(struct mfs_session *session, void *argument)
{
	struct looked *looked = argument;
	unsigned long long number = session->turn.at;

	looked->found |= number != 0;
	if (!number || mfs_now() - session->turn.since <= (looked->is_alert ? SOON : LASTS))
		return;
	mfs_turn_give(session, number);
	looked->relieved = true;
}

static void *look(void *unused)
{
	long long alert_until = 0;

	(void)unused;
	for (;;) {
		struct looked looked = {.is_alert = mfs_now() < alert_until};
		mfs_sessions_each(relieve, &looked);
		if (looked.relieved)
			alert_until = mfs_now() + ALERT;
		usleep((looked.relieved || looked.is_alert ? SOON : looked.found ? TICK : CALM) * 1000);
	}
	return NULL;
}

int mfs_turns_begin(void (*adder)(struct mfs_session *session))
{
	pthread_t thread;

	mfs_add_thread = adder;
	return -pthread_create(&thread, NULL, look, NULL);
}
