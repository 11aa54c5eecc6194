/* One listener for all processes that have a filter: what listener.h says. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "link/away/threads/listener.h"

struct listener {
	const struct listener_uses *uses;
	int listener, wake;
	pthread_t listening;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned pauses;            /* how many want the listener to stand */
	int paused, stopping;
	void **members;
	unsigned count;
};

static void give(struct listener *h, const struct seccomp_notif *n)
{
	void *whose = h->members[0];
	for (unsigned i = 0; i < h->count; i++)
		if (h->uses->has(h->members[i], n->pid)) {
			whose = h->members[i];
			break;
		}
	h->uses->take(whose, n);
}

static void *listen_loop(void *argument)
{
	struct listener *h = argument;
	pthread_setname_np(pthread_self(), "link-listen");
	struct pollfd watched[2] = {{h->listener, POLLIN, 0}, {h->wake, POLLIN, 0}};
	for (;;) {
		if (poll(watched, 2, -1) < 0)
			continue;
		if (watched[1].revents) {
			eventfd_t count;
			eventfd_read(h->wake, &count);
			pthread_mutex_lock(&h->lock);
			while (h->pauses && !h->stopping) {
				h->paused = 1;
				pthread_cond_broadcast(&h->changed);
				pthread_cond_wait(&h->changed, &h->lock);
			}
			h->paused = 0;
			int stopping = h->stopping;
			pthread_mutex_unlock(&h->lock);
			if (stopping)
				return NULL;
			continue;
		}
		if (watched[0].revents & POLLIN) {
			struct seccomp_notif n;
			memset(&n, 0, sizeof n);
			if (!ioctl(h->listener, SECCOMP_IOCTL_NOTIF_RECV, &n))
				give(h, &n);        /* else ENOENT: withdrawn, there will be others */
			continue;
		}
		if (watched[0].revents & (POLLHUP | POLLERR | POLLNVAL)) {
			for (unsigned i = 0; i < h->count; i++)
				h->uses->ended(h->members[i]);
			watched[0].fd = -1;
		}
	}
}

void listener_pause(struct listener *h)
{
	pthread_mutex_lock(&h->lock);
	h->pauses++;
	eventfd_write(h->wake, 1);
	while (!h->paused)
		pthread_cond_wait(&h->changed, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

void listener_unpause(struct listener *h)
{
	pthread_mutex_lock(&h->lock);
	h->pauses--;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

static void close_listener(struct listener *h)
{
	if (h->listener >= 0)
		close(h->listener);
	if (h->wake >= 0)
		close(h->wake);
	free(h->members);
	free(h);
}

struct listener *listener_new(int listener, const struct listener_uses *uses, void *member)
{
	struct listener *h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	h->uses = uses;
	h->listener = fcntl(listener, F_DUPFD_CLOEXEC, 0);
	h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	h->members = malloc(sizeof *h->members);
	if (h->listener < 0 || h->wake < 0 || !h->members) {
		close_listener(h);
		return NULL;
	}
	h->members[h->count++] = member;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->changed, NULL);
	return h;
}

int listener_start(struct listener *h)
{
	int error = -pthread_create(&h->listening, NULL, listen_loop, h);
	if (error)
		close_listener(h);
	return error;
}

int listener_descriptor(const struct listener *h)
{
	return h->listener;
}

int listener_join(struct listener *h, void *member)
{
	listener_pause(h);
	void **members = realloc(h->members, (h->count + 1) * sizeof *members);
	if (members) {
		h->members = members;
		members[h->count++] = member;
	}
	listener_unpause(h);
	return members ? 0 : -ENOMEM;
}

void listener_leave(struct listener *h, void *member)
{
	listener_pause(h);
	for (unsigned i = 0; i < h->count; i++)
		if (h->members[i] == member)
			h->members[i--] = h->members[--h->count];
	pthread_mutex_lock(&h->lock);
	h->stopping = !h->count;
	pthread_mutex_unlock(&h->lock);
	listener_unpause(h);
	if (h->stopping) {
		eventfd_write(h->wake, 1);
		pthread_join(h->listening, NULL);
		close_listener(h);
	}
}
