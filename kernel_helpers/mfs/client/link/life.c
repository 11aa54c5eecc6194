/* When the connection to the peer is made, kept, lost, and made again. What the peer may have done already when it was lost is asked again under
 * the same number: the server knows which of them it has done. */
#define _GNU_SOURCE
#include "mfs/client/link/connection.h"
#include "mfs/members.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PING_EVERY 200 /* ms */
#define FRESH 1000 /* ms; a node that its peer has not answered for so long does not know what has changed there */
#define PAUSE 200 /* ms between two attempts; as long as nobody waits: */
#define IDLE_PAUSE 1000
#define GOODBYE 1000 /* ms that it may take to say it */

/* Half of the time is left to find it again. */
static long long silence(void)
{
	return mfs_options.timeout ? mfs_options.timeout / 2 : SILENCE;
}

static int come_up(void)
{
	int result = mfs_connect();

	if (result)
		return result;
	pthread_mutex_lock(&mfs_connection.sending);
	pthread_mutex_lock(&mfs_connection.lock);
	mfs_connection.connected = true;
	mfs_connection.lost_at = 0;
	mfs_connection.heard_at = mfs_connection.pinged_at = mfs_now();
	mfs_connection.pings[0] = mfs_connection.heard_at;
	mfs_connection.ping_count = 1;
	mfs_connection.pong_count = 0;
	mfs_held_send(); /* what has waited goes first */
	pthread_mutex_unlock(&mfs_connection.lock);
	pthread_mutex_unlock(&mfs_connection.sending);
	mfs_figures->connected = 1;
	atomic_fetch_add(&mfs_figures->connections, 1);
	return 0;
}

static void come_down(void)
{
	mfs_stream_shut(&mfs_connection.to);
	mfs_stream_shut(&mfs_connection.from);
	pthread_mutex_lock(&mfs_connection.sending);
	pthread_mutex_lock(&mfs_connection.lock);
	mfs_connection.connected = false;
	mfs_connection.lost_at = mfs_connection.heard_at;
	pthread_mutex_unlock(&mfs_connection.lock);
	mfs_stream_close(&mfs_connection.to);
	mfs_stream_close(&mfs_connection.from);
	pthread_mutex_unlock(&mfs_connection.sending);
	mfs_figures->connected = 0;
	mfs_promises_forget(); /* what has changed has perhaps been reported to nobody */
	mfs_pages_drop();
	int result = mfs_fuse_ask_again();
	if (result && result != -ENODEV) {
		mfs_log("%s is lost, and this kernel cannot ask again what it has not answered: %s", mfs_options.peer, strerror(-result));
		exit(1); /* waiting processes get an error: the mount is gone; mosd makes it anew */
	}
}

static void wait_until_wanted(void)
{
	pthread_mutex_lock(&mfs_connection.lock);
	while (!mfs_connection.wanted)
		pthread_cond_wait(&mfs_connection.needed, &mfs_connection.lock);
	pthread_mutex_unlock(&mfs_connection.lock);
}

static void *keep_link(void *unused)
{
	char *buffer = malloc(MFS_FRAME_MOST);
	int reported = 0;

	(void)unused;
	while (buffer) {
		wait_until_wanted();
		int result = come_up();
		if (!result) {
			reported = 0;
			mfs_link_receive(buffer);
			come_down();
			continue;
		}
		if (result != reported)
			mfs_log("%s cannot be reached: %s", mfs_options.peer,
			        result == -EPROTO ? "it is not who it should be" : strerror(-result));
		reported = result;
		pthread_mutex_lock(&mfs_connection.lock);
		if (!mfs_connection.lost_at)
			mfs_connection.lost_at = mfs_now();
		unsigned pause = mfs_held_count() ? PAUSE : IDLE_PAUSE;
		pthread_mutex_unlock(&mfs_connection.lock);
		usleep(pause * 1000);
	}
	return NULL;
}

void mfs_link_look(void)
{
	static const struct fuse_in_header ping = {.len = sizeof ping, .opcode = MFS_PING};
	long long now = mfs_now();
	struct mfs_held *late;
	bool has_changed = mfs_members_look();

	pthread_mutex_lock(&mfs_connection.lock);
	if (has_changed && mfs_connection.connected && mfs_is_removed(mfs_options.peer, mfs_connection.to.since)) {
		mfs_stream_shut(&mfs_connection.to);
		mfs_stream_shut(&mfs_connection.from);
	}
	bool is_silent = mfs_connection.connected && now - __atomic_load_n(&mfs_connection.heard_at, __ATOMIC_RELAXED) > silence();
	bool is_due = mfs_connection.connected && now - mfs_connection.pinged_at >= PING_EVERY;
	if (is_due)
		mfs_connection.pinged_at = now;
	if (is_silent) {
		mfs_stream_shut(&mfs_connection.to);
		mfs_stream_shut(&mfs_connection.from);
	}
	late = mfs_held_late(now);
	bool is_fresh = !mfs_connection.connected || now - mfs_connection.pings[mfs_connection.pong_count % PINGS] < FRESH;
	pthread_mutex_unlock(&mfs_connection.lock);
	if (!is_fresh)
		mfs_pages_drop();
	mfs_held_fail(late);
	/* A thread that is sending proves that the link works, or waits for it as long as is allowed. */
	if (is_due && !is_silent && !pthread_mutex_trylock(&mfs_connection.sending)) {
		mfs_connection.pings[mfs_connection.ping_count++ % PINGS] = now;
		if (mfs_connection.connected && mfs_stream_write(&mfs_connection.to, &ping, sizeof ping))
			mfs_stream_shut(&mfs_connection.from);
		pthread_mutex_unlock(&mfs_connection.sending);
	}
}

void mfs_link_end(void)
{
	static const struct fuse_in_header bye = {.len = sizeof bye, .opcode = MFS_BYE};

	if (!mfs_lock_until(&mfs_connection.sending, mfs_now() + GOODBYE))
		return;
	if (mfs_connection.connected) { /* else a connection is perhaps just being made */
		mfs_stream_patience(&mfs_connection.to, 0, 500);
		mfs_stream_write(&mfs_connection.to, &bye, sizeof bye);
	}
	pthread_mutex_unlock(&mfs_connection.sending);
}

int mfs_link_begin(void)
{
	pthread_t thread;
	char why[512];

	if (!mfs_members_begin(mfs_options.pki, 0, why, sizeof why)) {
		mfs_log("%s", why);
		return -EINVAL;
	}
	if (!mfs_kept->has_session && getrandom(mfs_kept->session, sizeof mfs_kept->session, 0) != sizeof mfs_kept->session)
		return -errno;
	mfs_kept->has_session = true;
	return -pthread_create(&thread, NULL, keep_link, NULL);
}
