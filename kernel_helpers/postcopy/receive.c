/* Pages that follow a process: the side where it runs already. A userfaultfd stops whoever touches a page that is not here yet, and tells
 * what the process does to its mappings meanwhile; each page is put where it is then. */
#define _GNU_SOURCE
#include "postcopy/address_space.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FEATURES (UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP)
#define MESSAGES 16
#define SAY_TIMEOUT 10000 /* milliseconds */

enum state { SERVING, ALL_CAME, CLOSED, GONE, FAILED };

/* The process that the pages follow, and the children that it has had since. */
struct sink {
	pthread_mutex_t lock;
	struct page_set *owed;  /* has not come */
	struct page_set *asked; /* is waited for, and the other side has been told */
	struct mouth **mouths; /* the process's first */
	size_t mouth_count;
	struct run *registered;
	size_t registered_count;
	struct stream *stream, *next_stream; /* NULL: none */
	int wake, changed;
	bool closing;
	enum state state;
	int error;
	uint64_t bytes, faults;
	char *buffer; /* a frame on its way in */
	size_t have;
};

#define FRAME_MOST (sizeof(struct late_frame) + LATE_RUNS * sizeof(struct run) + LATE_BYTES)

struct sink_view {
	uint64_t left, bytes, faults;
	int32_t state, error, connected, mouths;
};

/* Makes a fresh userfaultfd one for a sink. It must be able to hold up the kernel, too (no UFFD_USER_MODE_ONLY). Returns 0 or -errno. */
int farhome_postcopy_begin(int userfaultfd)
{
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	return ioctl(userfaultfd, UFFDIO_API, &api) ? -errno : 0;
}

/* Nobody waits any more, even where others have a descriptor, too. */
static void drop_mouths(struct sink *sink)
{
	for (size_t i = 0; sink->mouth_count && i < sink->registered_count; i++) {
		struct uffdio_range range = {sink->registered[i].address, sink->registered[i].length};
		ioctl(mouth_userfaultfd(sink->mouths[0]), UFFDIO_UNREGISTER, &range);
	}
	for (size_t i = 0; i < sink->mouth_count; i++)
		mouth_free(sink->mouths[i]);
	sink->mouth_count = 0;
}

/* parent: NULL for the process itself. Returns 0, or -ENOMEM; then the userfaultfd is not ours. */
static int add_mouth(struct sink *sink, const struct mouth *parent, int pid, int userfaultfd)
{
	struct mouth **more = realloc(sink->mouths, (sink->mouth_count + 1) * sizeof *more);

	if (!more)
		return -ENOMEM;
	sink->mouths = more;
	struct mouth *mouth = parent ? mouth_child(parent, userfaultfd) : mouth_new(pid, userfaultfd);
	if (!mouth)
		return -ENOMEM;
	sink->mouths[sink->mouth_count++] = mouth;
	return 0;
}

/* For the process pid, in which nothing is missing yet. userfaultfd: of it, ours from here on; changed: an eventfd that is written to when the
 * connection breaks, and in the end. NULL: no memory. */
struct sink *farhome_sink_new(int pid, int userfaultfd, int changed)
{
	struct sink *sink = calloc(1, sizeof *sink);

	if (!sink)
		return NULL;
	pthread_mutex_init(&sink->lock, NULL);
	sink->changed = changed;
	sink->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	sink->buffer = malloc(FRAME_MOST);
	if (sink->wake < 0 || !sink->buffer || add_mouth(sink, NULL, pid, userfaultfd)) {
		if (sink->wake >= 0)
			close(sink->wake);
		free(sink->buffer);
		free(sink->mouths);
		free(sink);
		return NULL;
	}
	return sink;
}

/* After farhome_sink_serve() has returned, or before it begins. */
void farhome_sink_free(struct sink *sink)
{
	drop_mouths(sink);
	free(sink->registered);
	if (sink->stream)
		stream_close(sink->stream);
	if (sink->next_stream)
		stream_close(sink->next_stream);
	close(sink->wake);
	page_set_free(sink->owed);
	page_set_free(sink->asked);
	free(sink->mouths);
	free(sink->buffer);
	pthread_mutex_destroy(&sink->lock);
	free(sink);
}

static void signal_event(int event)
{
	uint64_t one = 1;
	if (write(event, &one, sizeof one) < 0) {
		/* it is set already */
	}
}

/* Whoever touches a page of [start, end) that is missing waits from now on. Returns 0 or -errno. */
int farhome_sink_register(struct sink *sink, uint64_t start, uint64_t end)
{
	struct uffdio_register request = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	struct run *more = realloc(sink->registered, (sink->registered_count + 1) * sizeof *more);

	if (!more)
		return -ENOMEM;
	sink->registered = more;
	if (ioctl(mouth_userfaultfd(sink->mouths[0]), UFFDIO_REGISTER, &request))
		return -errno;
	sink->registered[sink->registered_count++] = (struct run){start, end - start};
	return 0;
}

/* What is to come: runs (sorted, apart), which are registered, and missing. Once. Returns 0 or -errno. */
int farhome_sink_owe(struct sink *sink, const struct run *runs, size_t count)
{
	int result;

	pthread_mutex_lock(&sink->lock);
	sink->owed = page_set_new(runs, count, true);
	sink->asked = page_set_new(runs, count, false);
	result = mouth_owe(sink->mouths[0], runs, count);
	if (!sink->owed || !sink->asked)
		result = -ENOMEM;
	pthread_mutex_unlock(&sink->lock);
	return result;
}

/* A connection (ours from here on) by which pages come, in place of the one before. */
void farhome_sink_attach(struct sink *sink, struct stream *stream)
{
	pthread_mutex_lock(&sink->lock);
	if (sink->next_stream)
		stream_close(sink->next_stream);
	sink->next_stream = stream;
	pthread_mutex_unlock(&sink->lock);
	signal_event(sink->wake);
}

/* farhome_sink_serve() returns soon. */
void farhome_sink_close(struct sink *sink)
{
	pthread_mutex_lock(&sink->lock);
	sink->closing = true;
	pthread_mutex_unlock(&sink->lock);
	signal_event(sink->wake);
}

void farhome_sink_look(struct sink *sink, struct sink_view *view)
{
	pthread_mutex_lock(&sink->lock);
	*view = (struct sink_view){.left = sink->owed ? sink->owed->left * PAGE : 0,
	                           .bytes = sink->bytes,
	                           .faults = sink->faults,
	                           .state = sink->state,
	                           .error = sink->error,
	                           .connected = sink->stream || sink->next_stream,
	                           .mouths = sink->mouth_count};
	pthread_mutex_unlock(&sink->lock);
}

/* -- the connection ---------------------------------------------------------------------------------------------------- */

static void broken(struct sink *sink)
{
	if (sink->stream)
		stream_close(sink->stream);
	sink->stream = NULL;
	signal_event(sink->changed);
}

static int say(struct sink *sink, uint64_t word)
{
	struct iovec vector = {&word, sizeof word};
	return stream_send(sink->stream, &vector, 1, SAY_TIMEOUT);
}

/* Tells the other side what is lacking, and what of it is waited for. */
static int tell_lacking(struct sink *sink)
{
	struct run runs[BATCH_RUNS];
	struct frame frame = {.magic = FRAME_MAGIC};
	struct iovec vector[2];
	uint64_t at = 0;
	int result = 0;

	do {
		frame.count = 0;
		while (frame.count < BATCH_RUNS && page_set_next(sink->owed, at, ~0ull, &runs[frame.count])) {
			at = runs[frame.count].address + runs[frame.count].length;
			frame.count++;
		}
		vector[0] = (struct iovec){&frame, sizeof frame};
		vector[1] = (struct iovec){runs, frame.count * sizeof runs[0]};
		result = stream_send(sink->stream, vector, frame.count ? 2 : 1, SAY_TIMEOUT);
	} while (frame.count && !result);
	struct run run;
	for (at = 0; !result && page_set_next(sink->asked, at, PAGE, &run); at = run.address + PAGE)
		if (page_set_has(sink->owed, run.address))
			result = say(sink, run.address);
	return result;
}

static void take_connection(struct sink *sink)
{
	if (!sink->next_stream || !sink->owed)
		return;
	if (sink->stream)
		stream_close(sink->stream);
	sink->stream = sink->next_stream;
	sink->next_stream = NULL;
	sink->have = 0;
	if (tell_lacking(sink))
		broken(sink);
}

/* -- what the process does ------------------------------------------------------------------------------------------------ */

static void fault(struct sink *sink, struct mouth *mouth, uint64_t page)
{
	uint64_t source;

	sink->faults++;
	if (!mouth_lacks(mouth, page, &source)) {
		mouth_zero(mouth, page);
	} else if (!page_set_has(sink->asked, source)) {
		page_set_change(sink->asked, source, source + PAGE, true);
		if (sink->stream && say(sink, source))
			broken(sink);
	}
}

static int forked(struct sink *sink, const struct mouth *parent, int userfaultfd)
{
	bool owes = mouth_owes(parent);

	if (owes && !add_mouth(sink, parent, 0, userfaultfd))
		return 0;
	close(userfaultfd);
	return owes ? -ENOMEM : 0;
}

/* Returns 0 or -errno. */
static int hear_process(struct sink *sink, struct mouth *mouth)
{
	struct uffd_msg messages[MESSAGES];
	int userfaultfd = mouth_userfaultfd(mouth), result = 0;

	for (;;) {
		ssize_t size = read(userfaultfd, messages, sizeof messages);
		if (size < 0 && errno == EINTR)
			continue;
		if (size < (ssize_t)sizeof messages[0])
			return result ? result : size < 0 && errno != EAGAIN ? -errno : 0;
		size_t count = size / sizeof messages[0];
		for (size_t i = 0; i < count; i++) {
			int failed = messages[i].event == UFFD_EVENT_FORK ? forked(sink, mouth, messages[i].arg.fork.ufd)
			                                                  : mouth_change(mouth, &messages[i]);
			if (failed)
				result = failed;
		}
		/* The kernel tells of them first, though they may be of places where memory has been moved to by one of the changes. */
		for (size_t i = 0; i < count; i++)
			if (messages[i].event == UFFD_EVENT_PAGEFAULT)
				fault(sink, mouth, messages[i].arg.pagefault.address / PAGE * PAGE);
	}
}

/* -- what comes -------------------------------------------------------------------------------------------------------------- */

/* content: of the run, NULL: zeros. Returns 0 or -errno. */
static int put(struct sink *sink, const struct run *run, const char *content)
{
	for (size_t i = 0; i < sink->mouth_count; i++) { /* there may be more of them meanwhile */
		uint64_t done = 0;
		int result;
		while ((result = mouth_put(sink->mouths[i], run, content, &done)) == 1) {
			result = hear_process(sink, sink->mouths[i]);
			if (result)
				break;
			sched_yield();
		}
		if (result)
			return result;
	}
	return 0;
}

/* A frame that is here whole. */
static int take_frame(struct sink *sink, const struct late_frame *frame)
{
	const struct run *runs = (const void *)(frame + 1);
	const char *content = (const char *)(runs + frame->count);
	struct checksum sum = {{0}};
	uint64_t bytes = 0;

	for (unsigned i = 0; i < frame->count; i++) {
		const struct run *run = &runs[i];
		if (!run->length || (run->address | run->length) % PAGE || run->length > LATE_BYTES ||
		    run->address + run->length < run->address)
			return -EPROTO;
		bytes += run->length;
	}
	if (frame->bytes && bytes != frame->bytes)
		return -EPROTO;
	checksum_add(&sum, runs, frame->count * sizeof *runs);
	for (uint64_t i = 0, offset = 0; frame->bytes && i < frame->count; offset += runs[i++].length)
		checksum_add(&sum, content + offset, runs[i].length);
	if (checksum_value(&sum) != frame->checksum)
		return -EBADMSG;
	for (unsigned i = 0; i < frame->count; i++) {
		int result = put(sink, &runs[i], frame->bytes ? content : NULL);
		if (result)
			return result;
		page_set_change(sink->owed, runs[i].address, runs[i].address + runs[i].length, false);
		if (frame->bytes)
			content += runs[i].length;
	}
	sink->bytes += frame->bytes;
	return 0;
}

/* What has come. Returns 0, or -errno: of the process, not of the connection. */
static int hear_source(struct sink *sink)
{
	for (;;) {
		const struct late_frame *frame = (const void *)sink->buffer;
		size_t wanted = sizeof *frame;
		if (sink->have >= sizeof *frame) {
			if (frame->magic != LATE_MAGIC || !frame->count || frame->count > LATE_RUNS || frame->bytes > LATE_BYTES) {
				broken(sink);
				return 0;
			}
			wanted += frame->count * sizeof(struct run) + frame->bytes;
		}
		if (sink->have == wanted && wanted > sizeof *frame) {
			int result = take_frame(sink, frame);
			sink->have = 0;
			if (result == -EPROTO || result == -EBADMSG) {
				broken(sink);
				return 0;
			}
			return result;
		}
		ssize_t size = stream_receive(sink->stream, sink->buffer + sink->have, wanted - sink->have, false);
		if (size == -EAGAIN)
			return 0;
		if (size <= 0) {
			broken(sink);
			return 0;
		}
		sink->have += size;
	}
}

static bool all_gone(const struct sink *sink)
{
	for (size_t i = 0; i < sink->mouth_count; i++)
		if (!mouth_is_gone(sink->mouths[i]))
			return false;
	return true;
}

/* One turn. Returns 0 to go on, 1 when it is over. */
static int turn(struct sink *sink, const struct pollfd *entries, size_t mouths)
{
	uint64_t ignored;
	int result = 0;

	if (entries[0].revents && read(sink->wake, &ignored, sizeof ignored) < 0) {
		/* nobody has called */
	}
	if (sink->closing) {
		sink->state = CLOSED;
		return 1;
	}
	for (size_t i = 0; i < mouths && !result; i++)
		if (entries[2 + i].revents)
			result = hear_process(sink, sink->mouths[i]);
	take_connection(sink);
	if (!result && sink->stream && (stream_holds(sink->stream) || (entries[1].fd == stream_socket(sink->stream) && entries[1].revents)))
		result = hear_source(sink);
	if (result) {
		sink->state = FAILED;
		sink->error = -result;
		return 1;
	}
	if (sink->owed && (!sink->owed->left || all_gone(sink))) {
		sink->state = sink->owed->left ? GONE : ALL_CAME;
		return 1;
	}
	return 0;
}

/* Serves the process until all its pages are here, or farhome_sink_close(). Afterwards nobody waits for anything by it, unless it failed:
 * then the process must not run on, and its memory is held up until farhome_sink_free(). */
void farhome_sink_serve(struct sink *sink)
{
	struct pollfd *entries = NULL;

	pthread_mutex_lock(&sink->lock);
	do {
		size_t mouths = sink->mouth_count;
		struct pollfd *more = realloc(entries, (2 + mouths) * sizeof *entries);
		if (!more) {
			sink->state = FAILED;
			sink->error = ENOMEM;
			break;
		}
		entries = more;
		entries[0] = (struct pollfd){.fd = sink->wake, .events = POLLIN};
		entries[1] = (struct pollfd){.fd = sink->stream ? stream_socket(sink->stream) : -1, .events = POLLIN};
		for (size_t i = 0; i < mouths; i++)
			entries[2 + i] = (struct pollfd){.fd = mouth_is_gone(sink->mouths[i]) ? -1 : mouth_userfaultfd(sink->mouths[i]),
			                                 .events = POLLIN};
		int timeout =
			sink->stream && stream_holds(sink->stream) ? 0 : -1; /* of the next frames the socket knows nothing any more */
		pthread_mutex_unlock(&sink->lock);
		while (poll(entries, 2 + mouths, timeout) < 0 && errno == EINTR)
			;
		pthread_mutex_lock(&sink->lock);
		if (turn(sink, entries, mouths))
			break;
	} while (true);
	free(entries);
	if (sink->stream && sink->state != FAILED)
		say(sink, ALL_HERE);
	if (sink->state == ALL_CAME || sink->state == GONE || (sink->state == FAILED && !sink->owed))
		drop_mouths(sink);
	pthread_mutex_unlock(&sink->lock);
	signal_event(sink->changed);
}
