/* The process that pages follow: what of it is missing, by which connection it comes, and what has become of it. */
#define _GNU_SOURCE
#include "postcopy/sink.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define FEATURES (UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP)

struct sink_view {
	uint64_t left, bytes, faults;
	int32_t state, error, connected, spaces;
};

/* Makes a fresh userfaultfd one for a sink. It must be able to hold up the kernel, too (no UFFD_USER_MODE_ONLY). Returns 0 or -errno. */
int farhome_postcopy_begin(int userfaultfd)
{
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	return ioctl(userfaultfd, UFFDIO_API, &api) ? -errno : 0;
}

/* Nobody waits any more, even where others have a descriptor, too. */
void sink_drop_spaces(struct sink *sink)
{
	for (size_t i = 0; sink->space_count && i < sink->registered_count; i++) {
		struct uffdio_range range = {sink->registered[i].address, sink->registered[i].length};
		ioctl(address_space_userfaultfd(sink->spaces[0]), UFFDIO_UNREGISTER, &range);
	}
	for (size_t i = 0; i < sink->space_count; i++)
		address_space_free(sink->spaces[i]);
	sink->space_count = 0;
}

/* parent: NULL for the process itself. Returns 0, or -ENOMEM; then the userfaultfd is not ours. */
int sink_add_space(struct sink *sink, const struct address_space *parent, int pid, int userfaultfd)
{
	struct address_space **more = realloc(sink->spaces, (sink->space_count + 1) * sizeof *more);

	if (!more)
		return -ENOMEM;
	sink->spaces = more;
	struct address_space *space = parent ? address_space_child(parent, userfaultfd) : address_space_new(pid, userfaultfd);
	if (!space)
		return -ENOMEM;
	sink->spaces[sink->space_count++] = space;
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
	if (sink->wake < 0 || !sink->buffer || sink_add_space(sink, NULL, pid, userfaultfd)) {
		if (sink->wake >= 0)
			close(sink->wake);
		free(sink->buffer);
		free(sink->spaces);
		free(sink);
		return NULL;
	}
	return sink;
}

/* After farhome_sink_serve() has returned, or before it begins. */
void farhome_sink_free(struct sink *sink)
{
	sink_drop_spaces(sink);
	free(sink->registered);
	if (sink->stream)
		stream_close(sink->stream);
	if (sink->next_stream)
		stream_close(sink->next_stream);
	close(sink->wake);
	page_set_free(sink->owed);
	page_set_free(sink->asked);
	free(sink->spaces);
	free(sink->buffer);
	pthread_mutex_destroy(&sink->lock);
	free(sink);
}

void sink_signal(int event)
{
	uint64_t one = 1;
	if (write(event, &one, sizeof one) < 0) {
		/* it is set already */
	}
}

/* A thread that touches a missing page of [start, end) waits from now on. Returns 0 or -errno. */
int farhome_sink_register(struct sink *sink, uint64_t start, uint64_t end)
{
	struct uffdio_register request = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	struct run *more = realloc(sink->registered, (sink->registered_count + 1) * sizeof *more);

	if (!more)
		return -ENOMEM;
	sink->registered = more;
	if (ioctl(address_space_userfaultfd(sink->spaces[0]), UFFDIO_REGISTER, &request))
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
	result = address_space_owe(sink->spaces[0], runs, count);
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
	sink_signal(sink->wake);
}

/* farhome_sink_serve() returns soon. */
void farhome_sink_close(struct sink *sink)
{
	pthread_mutex_lock(&sink->lock);
	sink->closing = true;
	pthread_mutex_unlock(&sink->lock);
	sink_signal(sink->wake);
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
	                           .spaces = sink->space_count};
	pthread_mutex_unlock(&sink->lock);
}
