/* What was sent to guests about names, and its recall: see watch.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "link/home/files/mounts.h"
#include "link/home/files/places.h"
#include "link/home/files/watch.h"

#define CHANGES (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
#define LOG 1024u               /* changes that are kept: who is further behind forgets everything */
#define REPEATS 256u            /* that may be sent to one guest again, which others were sent already */
#define NAMES 16384u            /* a power of two */
#define DIRECTORIES 2048        /* that are watched at once */
#define GATHERS 2000000         /* ns: changes are recalled together, where no frame goes out */

static struct {
	pthread_mutex_t lock;
	int events, mounts, wake;   /* descriptors; -1: none yet. wake: of mounts, too, for who sleeps: poll(2) takes what it reports */
	ino_t namespace;
	uint64_t program, position;
	struct dependency log[LOG];
	struct dependency names[NAMES]; /* that were sent to guests, a hash table; directory 0: free */
	unsigned names_count;
	uint32_t highest;           /* number of a directory: they count from 1 */
	struct hearer *hearers;
	uint64_t parted;            /* up to where recalls were sent to the last of them that has gone */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .events = -1, .mounts = -1, .wake = -1};

void watch_lock(void)
{
	pthread_mutex_lock(&watch.lock);
}

void watch_unlock(void)
{
	pthread_mutex_unlock(&watch.lock);
}

/* ---- names that were sent ---- */

static unsigned slot_of(const struct dependency *name)
{
	return (name->directory * 2654435761u ^ name->name) % NAMES;
}

/* Where it is, or could be. */
static unsigned find(const struct dependency *name)
{
	unsigned i = slot_of(name);
	while (watch.names[i].directory && memcmp(&watch.names[i], name, sizeof *name))
		i = (i + 1) % NAMES;
	return i;
}

static void note(const struct dependency *changed)
{
	watch.log[watch.position++ % LOG] = *changed;
	places_recall(changed);
}

static void forget_all(void)
{
	memset(watch.names, 0, sizeof watch.names);
	watch.names_count = watch.highest = 0;
	if (watch.events >= 0)
		close(watch.events);
	watch.events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	mounts_forget();
	note(&(struct dependency){EVERY_DIRECTORY, EVERY_NAME});
}

void watch_name(const struct dependency *name)
{
	unsigned i = find(name);
	if (watch.names[i].directory)
		return;
	if (watch.names_count >= NAMES / 4 * 3) {
		forget_all();
		return;
	}
	watch.names[i] = *name;
	watch.names_count++;
}

/* A name stays in the table, so that others behind it are found; sent or not, it is recalled each time from then on. */
static void change(uint32_t directory, uint32_t name)
{
	struct dependency changed = {directory, name};
	if (watch.names[find(&changed)].directory)
		note(&changed);
}

/* ---- events ---- */

static void take_event(const struct inotify_event *event)
{
	uint32_t directory = event->wd;
	if (event->mask & IN_Q_OVERFLOW)
		forget_all();
	else if (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED) || (event->mask & IN_ATTRIB && !event->len))
		note(&(struct dependency){directory, EVERY_NAME});
	else if (event->len && event->mask & (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)) {
		change(directory, name_hash(event->name, strlen(event->name)));
		change(directory, OWN_ATTRIBUTES);
	}
}

static void drain(void)
{
	char buffer[8192] __attribute__((aligned(8)));
	struct pollfd watched[2] = {{watch.events, POLLIN, 0}, {watch.mounts, POLLPRI, 0}};
	if (poll(watched, 2, 0) <= 0)
		return;
	if (watched[1].revents & (POLLPRI | POLLERR))
		forget_all();
	for (ssize_t got; (got = read(watch.events, buffer, sizeof buffer)) > 0;) {
		int before = watch.events;
		for (char *at = buffer; at < buffer + got && watch.events == before;
		     at += sizeof(struct inotify_event) + ((struct inotify_event *)at)->len)
			take_event((struct inotify_event *)at);
	}
}

uint64_t watch_position(void)
{
	drain();
	return watch.position;
}

uint64_t watch_program(void)
{
	while (!watch.program)
		if (getrandom(&watch.program, sizeof watch.program, 0) < 0)
			watch.program = (uint64_t)getpid() << 32 ^ (uint64_t)time(NULL);
	return watch.program;
}

uint32_t watch_directory(int descriptor)
{
	char path[32];
	if (watch.highest >= DIRECTORIES)
		forget_all();
	snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
	int number = inotify_add_watch(watch.events, path, CHANGES | IN_ONLYDIR);
	if (number <= 0)
		return 0;
	if ((uint32_t)number > watch.highest)
		watch.highest = number;
	return number;
}

/* ---- to whom it is sent ---- */

/* What has changed since the last recall that was sent to the guest, as a frame. */
static struct outgoing *make_recall(struct hearer *h)
{
	uint64_t count = watch.position - h->sent;
	int all = count > LOG;
	struct outgoing *o = outgoing_new(FRAME_RECALL, 0, sizeof(struct recall) + (all ? 1 : count) * sizeof(struct dependency));
	if (!o)
		return NULL;
	struct recall *r = outgoing_head(o);
	struct dependency *changed = (struct dependency *)(r + 1);
	*r = (struct recall){watch_program(), h->sent, watch.position, all ? 1 : (uint32_t)count, 0};
	if (all)
		*changed = (struct dependency){EVERY_DIRECTORY, EVERY_NAME};
	for (uint64_t i = 0; i < count && !all; i++)
		changed[i] = watch.log[(h->sent + i) % LOG];
	h->sent = watch.position;
	return o;
}

/* Whether there was something. Memory that is short for a frame is the guest's loss of what it was sent: it is tried again. */
static int recall(struct hearer *h)
{
	struct outgoing *o = h->hears && h->session && h->sent != watch.position ? make_recall(h) : NULL;
	if (o)
		session_queue_first(h->session, o);
	return o != NULL;
}

void watch_recall(struct hearer *h)
{
	if (!__atomic_load_n(&h->hears, __ATOMIC_ACQUIRE))
		return;
	watch_lock();
	drain();
	recall(h);
	watch_unlock();
}

/* Recalls where no frame goes out. */
static void *watch_loop(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "link-watch");
	for (;;) {
		struct timespec gathers = {0, GATHERS};
		watch_lock();
		struct pollfd watched[2] = {{watch.events, POLLIN, 0}, {watch.wake, POLLPRI, 0}};
		watch_unlock();
		poll(watched, 2, 1000); /* the descriptor of events may be another after that */
		nanosleep(&gathers, NULL);
		watch_lock();
		drain();
		for (struct hearer *h = watch.hearers; h; h = h->next)
			if (recall(h))
				session_send_later(h->session);
		watch_unlock();
	}
	return NULL;
}

static int begin(void)
{
	pthread_t thread;
	pthread_attr_t detached;
	if (watch.events >= 0)
		return 0;
	watch.events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (watch.events < 0)
		return -1;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	int failed = pthread_create(&thread, &detached, watch_loop, NULL);
	pthread_attr_destroy(&detached);
	if (failed) {
		close(watch.events);
		watch.events = -1;
	}
	return failed ? -1 : 0;
}

int watch_mounts(int pid)
{
	char path[64];
	struct stat namespace;
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
	if (stat(path, &namespace) || begin())
		return -1;
	if (watch.mounts >= 0)
		return namespace.st_ino == watch.namespace ? 0 : -1;
	snprintf(path, sizeof path, "/proc/%d/mountinfo", pid);
	watch.wake = open(path, O_RDONLY | O_CLOEXEC);
	watch.mounts = watch.wake < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	watch.namespace = namespace.st_ino;
	return watch.mounts < 0 ? -1 : 0;
}

/* From where on recalls are sent to a new one, so that its node need not forget what others there know: from where all of them have them. */
static uint64_t sent_before(uint64_t position)
{
	uint64_t from = watch.hearers ? position : watch.parted;
	for (struct hearer *h = watch.hearers; h; h = h->next)
		if (h->sent < from)
			from = h->sent;
	return position - from <= REPEATS ? from : position;
}

void watch_hear(struct hearer *h, uint64_t position)
{
	if (h->hears)
		return;
	h->since = h->sent = sent_before(position);
	h->next = watch.hearers;
	watch.hearers = h;
	__atomic_store_n(&h->hears, 1, __ATOMIC_RELEASE);
}

void watch_renew(struct hearer *h, struct session *session)
{
	watch_lock();
	for (struct hearer **at = &watch.hearers; *at; at = &(*at)->next)
		if (*at == h) {
			*at = h->next;
			watch.parted = h->sent;
			break;
		}
	h->hears = 0;
	h->session = session;
	watch_unlock();
}
