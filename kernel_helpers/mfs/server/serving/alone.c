/* Requests that have to wait for others (locks, leases) are done in threads of their own, and can be interrupted. */
#define _GNU_SOURCE
#include "mfs/server/serving/serving.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct waiting {
	struct mfs_request request;
	pthread_t thread;
	struct waiting *next;
	char *reply;
	char frame[];
};

static struct waiting *waiting;
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;

static void *wait_alone(void *argument)
{
	struct waiting *own = argument;
	struct mfs_session *session = own->request.session;
	long result = mfs_identity_begin(session->root_counts);

	mfs_thread_begin(session);
	mfs_may_wait = true;
	mfs_reply(&own->request, result ? result : mfs_handle(&own->request));
	pthread_mutex_lock(&waiting_lock);
	for (struct waiting **at = &waiting; *at; at = &(*at)->next)
		if (*at == own) {
			*at = own->next;
			break;
		}
	pthread_mutex_unlock(&waiting_lock);
	mfs_thread_end();
	mfs_place_give(session->owner, MFS_WAITERS, 1);
	free(own->reply);
	free(own);
	session->busy--;
	session->threads--;
	return NULL;
}

int mfs_alone_begin(struct mfs_request *request)
{
	size_t size = request->in->len;
	if (!mfs_place_take(request->session->owner, MFS_WAITERS))
		return -EAGAIN;
	struct waiting *own = malloc(sizeof *own + size + 1);
	int result = 0;

	if (own)
		own->reply = malloc(MFS_FRAME_MOST); /* as much as any may have; of what is not used there is no memory */
	if (!own || !own->reply) {
		mfs_place_give(request->session->owner, MFS_WAITERS, 1);
		free(own);
		return -ENOMEM;
	}
	memcpy(own->frame, request->in, size);
	own->frame[size] = 0;
	own->request = (struct mfs_request){
		.session = request->session,
		.in = (struct fuse_in_header *)own->frame,
		.argument = own->frame + sizeof(struct fuse_in_header),
		.size = request->size,
		.buffer = own->reply,
		.reply = own->reply + sizeof(struct fuse_out_header),
		.room = MFS_DATA_MOST,
		.alone = true,
		.news = mfs_session_news(request->session),
		.connection = request->connection,
		.squashed = request->squashed,
	};
	request->session->threads++;
	request->session->busy++;
	pthread_mutex_lock(&waiting_lock);
	if (pthread_create(&own->thread, NULL, wait_alone, own)) {
		result = -EAGAIN;
	} else {
		pthread_detach(own->thread);
		own->next = waiting;
		waiting = own;
	}
	pthread_mutex_unlock(&waiting_lock);
	if (result) {
		mfs_place_give(request->session->owner, MFS_WAITERS, 1);
		request->session->busy--;
		request->session->threads--;
		free(own->reply);
		free(own);
	}
	return result;
}

void mfs_alone_look(void)
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

void mfs_alone_interrupt(struct mfs_request *request)
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
