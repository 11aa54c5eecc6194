/* Connections of strangers; see pending.h. */
#define _GNU_SOURCE
#include "mfs/server/pending.h"
#include "mfs/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLAINTS 64    /* kinds and addresses that are counted separately */
#define COMPLAINT_PERIOD 60000 /* ms */

struct source {
	unsigned char bytes[16];
};

struct place {
	int fd; /* -1: free */
	bool has_spoken;
	long long since;
	struct source source;
};

static struct place places[MFS_PENDING_PLACES];
static bool is_ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What counts as one address: of version 6 the network of 64 bits, since a host that has one address of it has them all. */
static struct source source_of(int fd)
{
	struct sockaddr_storage address = {0};
	struct source source = {{0}};
	socklen_t size = sizeof address;

	if (getpeername(fd, (struct sockaddr *)&address, &size))
		return source;
	if (address.ss_family == AF_INET6) {
		const struct in6_addr *six = &((struct sockaddr_in6 *)&address)->sin6_addr;
		memcpy(source.bytes, six, IN6_IS_ADDR_V4MAPPED(six) ? 16 : 8);
	} else {
		memcpy(source.bytes + 12, &((struct sockaddr_in *)&address)->sin_addr, 4);
		source.bytes[10] = source.bytes[11] = 0xff;
	}
	return source;
}

static void begin(void)
{
	for (unsigned i = 0; i < MFS_PENDING_PLACES && !is_ready; i++)
		places[i].fd = -1;
	is_ready = true;
}

/* Whether something has come that nobody has looked at yet. */
static bool speaks(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* The place for one more of that address: a free one, or that of the connection that was silent for longest, if the address has too many, or
 * all together are. NULL: there is none. */
static struct place *find_place(const struct source *source)
{
	struct place *empty = NULL, *silent = NULL, *silent_same = NULL, *slow = NULL, *slow_same = NULL;
	long long slow_before = mfs_now() - MFS_PENDING_SLOW;
	unsigned same = 0;

	for (unsigned i = 0; i < MFS_PENDING_PLACES; i++) {
		struct place *place = &places[i];
		if (place->fd < 0) {
			empty = place;
			continue;
		}
		bool is_same = !memcmp(&place->source, source, sizeof *source);
		same += is_same;
		if (place->has_spoken) {
			if (place->since < slow_before && (!slow || place->since < slow->since))
				slow = place;
			if (is_same && place->since < slow_before && (!slow_same || place->since < slow_same->since))
				slow_same = place;
			continue;
		}
		if ((!silent || place->since < silent->since) && !speaks(place->fd))
			silent = place;
		if (is_same && (!silent_same || place->since < silent_same->since) && !speaks(place->fd))
			silent_same = place;
	}
	if (same >= MFS_PENDING_OF_SOURCE)
		return silent_same ? silent_same : slow_same;
	return empty ? empty : silent ? silent : slow;
}

void mfs_pending_add(int fd)
{
	struct source source = source_of(fd);

	pthread_mutex_lock(&lock);
	begin();
	struct place *place = find_place(&source);
	if (place) {
		if (place->fd >= 0 && place->has_spoken)
			shutdown(place->fd, SHUT_RDWR); /* its thread closes it */
		else if (place->fd >= 0)
			close(place->fd);
		*place = (struct place){.fd = fd, .since = mfs_now(), .source = source};
	}
	pthread_mutex_unlock(&lock);
	if (!place) {
		mfs_pending_complain("crowd", fd, "turned away: too many connections have not said whose they are");
		close(fd);
	}
}

unsigned mfs_pending_watched(struct pollfd *watched)
{
	unsigned count = 0;

	pthread_mutex_lock(&lock);
	begin();
	for (unsigned i = 0; i < MFS_PENDING_PLACES; i++)
		if (places[i].fd >= 0 && !places[i].has_spoken)
			watched[count++] = (struct pollfd){.fd = places[i].fd, .events = POLLIN};
	pthread_mutex_unlock(&lock);
	return count;
}

static struct place *place_of(int fd)
{
	for (unsigned i = 0; i < MFS_PENDING_PLACES; i++)
		if (places[i].fd == fd)
			return &places[i];
	return NULL;
}

/* Whether there is room for the handshake of this one: perhaps in place of one that lasts, of the same address or of all. */
static bool may_begin(const struct place *newcomer)
{
	struct place *slow = NULL, *slow_same = NULL;
	long long slow_before = mfs_now() - MFS_PENDING_SLOW;
	unsigned all = 0, same = 0;

	for (unsigned i = 0; i < MFS_PENDING_PLACES; i++) {
		struct place *place = &places[i];
		if (place->fd < 0 || !place->has_spoken)
			continue;
		bool is_same = !memcmp(&place->source, &newcomer->source, sizeof place->source);
		all++;
		same += is_same;
		if (place->since < slow_before && (!slow || place->since < slow->since))
			slow = place;
		if (is_same && place->since < slow_before && (!slow_same || place->since < slow_same->since))
			slow_same = place;
	}
	if (same < MFS_PENDING_HANDSHAKES_OF_SOURCE && all < MFS_PENDING_HANDSHAKES)
		return true;
	if (same >= MFS_PENDING_HANDSHAKES_OF_SOURCE)
		slow = slow_same;
	if (!slow)
		return false;
	shutdown(slow->fd, SHUT_RDWR); /* its thread closes it */
	slow->fd = -1;
	return true;
}

void mfs_pending_handle(const struct pollfd *watched, unsigned count, void (*meet)(int fd))
{
	long long now = mfs_now();

	for (unsigned i = 0; i < count; i++) {
		int fd = watched[i].fd;
		pthread_mutex_lock(&lock);
		struct place *place = place_of(fd);
		bool has_news = place && watched[i].revents, begins = has_news && may_begin(place);
		bool is_late = place && !has_news && now - place->since > MFS_PENDING_PATIENCE;
		if (begins)
			place->has_spoken = true;
		else if (has_news || is_late)
			place->fd = -1;
		pthread_mutex_unlock(&lock);
		if (begins) {
			meet(fd);
		} else if (has_news || is_late) {
			mfs_pending_complain(is_late ? "silence" : "crowd", fd,
			                     is_late ? "refused: it did not say whose it is in time"
			                             : "turned away: too many are in their handshakes");
			close(fd);
		}
	}
}

void mfs_pending_remove(int fd)
{
	pthread_mutex_lock(&lock);
	struct place *place = place_of(fd);
	if (place)
		place->fd = -1;
	pthread_mutex_unlock(&lock);
}

void mfs_pending_complain(const char *kind, int fd, const char *what)
{
	static struct {
		const char *kind;
		struct source source;
		long long at;
		unsigned held_back;
	} reported[COMPLAINTS];
	struct source source = source_of(fd);
	char address[INET6_ADDRSTRLEN], more[64] = "";
	long long now = mfs_now();
	unsigned oldest = 0, found = COMPLAINTS;
	bool says = true;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < COMPLAINTS; i++) {
		if (reported[i].kind && !strcmp(reported[i].kind, kind) && !memcmp(&reported[i].source, &source, sizeof source))
			found = i;
		if (reported[i].at < reported[oldest].at)
			oldest = i;
	}
	if (found < COMPLAINTS && now - reported[found].at < COMPLAINT_PERIOD) {
		reported[found].held_back++;
		says = false;
	} else if (found == COMPLAINTS && reported[oldest].kind && now - reported[oldest].at < COMPLAINT_PERIOD) {
		reported[oldest].held_back++; /* more are about than are kept apart */
		says = false;
	} else {
		if (found == COMPLAINTS)
			found = oldest;
		if (reported[found].held_back)
			snprintf(more, sizeof more, " (%u more since the last such line)", reported[found].held_back);
		reported[found].kind = kind;
		reported[found].source = source;
		reported[found].at = now;
		reported[found].held_back = 0;
	}
	pthread_mutex_unlock(&lock);
	if (!says)
		return;
	inet_ntop(AF_INET6, source.bytes, address, sizeof address);
	mfs_log("%s: %s%s", strncmp(address, "::ffff:", 7) ? address : address + 7, what, more);
}
