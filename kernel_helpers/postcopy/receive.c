/* Pages that follow a process: the side where it runs already. A userfaultfd stops threads that touch a page that is not here yet, and reports
 * what the process does to its mappings meanwhile; each page is put where it is then. */
#define _GNU_SOURCE
#include "postcopy/sink.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES 16
#define SAY_TIMEOUT 10000 /* milliseconds */

/* -- the connection ---------------------------------------------------------------------------------------------------- */

static void broken(struct sink *sink)
{
	if (sink->stream)
		stream_close(sink->stream);
	sink->stream = NULL;
	sink_signal(sink->changed);
}

static int say(struct sink *sink, uint64_t word)
{
	struct iovec vector = {&word, sizeof word};
	return stream_send(sink->stream, &vector, 1, SAY_TIMEOUT);
}

/* Sends the other side what is lacking, and what of it is waited for. */
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

static void fault(struct sink *sink, struct address_space *space, uint64_t page)
{
	uint64_t source;

	sink->faults++;
	if (!address_space_lacks(space, page, &source)) {
		address_space_zero(space, page);
	} else if (!page_set_has(sink->asked, source)) {
		page_set_change(sink->asked, source, source + PAGE, true);
		if (sink->stream && say(sink, source))
			broken(sink);
	}
}

static int forked(struct sink *sink, const struct address_space *parent, int userfaultfd)
{
	bool owes = address_space_owes(parent);

	if (owes && !sink_add_space(sink, parent, 0, userfaultfd))
		return 0;
	close(userfaultfd);
	return owes ? -ENOMEM : 0;
}

/* Returns 0 or -errno. */
static int hear_process(struct sink *sink, struct address_space *space)
{
	struct uffd_msg messages[MESSAGES];
	int userfaultfd = address_space_userfaultfd(space), result = 0;

	for (;;) {
		ssize_t size = read(userfaultfd, messages, sizeof messages);
		if (size < 0 && errno == EINTR)
			continue;
		if (size < (ssize_t)sizeof messages[0])
			return result ? result : size < 0 && errno != EAGAIN ? -errno : 0;
		size_t count = size / sizeof messages[0];
		for (size_t i = 0; i < count; i++) {
			int failed = messages[i].event == UFFD_EVENT_FORK ? forked(sink, space, messages[i].arg.fork.ufd)
			                                                  : address_space_change(space, &messages[i]);
			if (failed)
				result = failed;
		}
		/* The kernel reports them first, though they may be of places where memory has been moved to by one of the changes. */
		for (size_t i = 0; i < count; i++)
			if (messages[i].event == UFFD_EVENT_PAGEFAULT)
				fault(sink, space, messages[i].arg.pagefault.address / PAGE * PAGE);
	}
}

/* -- what comes -------------------------------------------------------------------------------------------------------------- */

/* content: of the run, NULL: zeros. Returns 0 or -errno. */
static int put(struct sink *sink, const struct run *run, const char *content)
{
	for (size_t i = 0; i < sink->space_count; i++) { /* there may be more of them meanwhile */
		uint64_t done = 0;
		int result;
		while ((result = address_space_put(sink->spaces[i], run, content, &done)) == 1) {
			result = hear_process(sink, sink->spaces[i]);
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
	for (size_t i = 0; i < sink->space_count; i++)
		if (!address_space_is_gone(sink->spaces[i]))
			return false;
	return true;
}

/* One turn. Returns 0 to go on, 1 when it is over. */
static int turn(struct sink *sink, const struct pollfd *entries, size_t spaces)
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
	for (size_t i = 0; i < spaces && !result; i++)
		if (entries[2 + i].revents)
			result = hear_process(sink, sink->spaces[i]);
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
		size_t spaces = sink->space_count;
		struct pollfd *more = realloc(entries, (2 + spaces) * sizeof *entries);
		if (!more) {
			sink->state = FAILED;
			sink->error = ENOMEM;
			break;
		}
		entries = more;
		entries[0] = (struct pollfd){.fd = sink->wake, .events = POLLIN};
		entries[1] = (struct pollfd){.fd = sink->stream ? stream_socket(sink->stream) : -1, .events = POLLIN};
		for (size_t i = 0; i < spaces; i++)
			entries[2 + i] = (struct pollfd){
				.fd = address_space_is_gone(sink->spaces[i]) ? -1 : address_space_userfaultfd(sink->spaces[i]),
				.events = POLLIN};
		int timeout =
			sink->stream && stream_holds(sink->stream) ? 0 : -1; /* of the next frames the socket knows nothing any more */
		pthread_mutex_unlock(&sink->lock);
		while (poll(entries, 2 + spaces, timeout) < 0 && errno == EINTR)
			;
		pthread_mutex_lock(&sink->lock);
		if (turn(sink, entries, spaces))
			break;
	} while (true);
	free(entries);
	if (sink->stream && sink->state != FAILED)
		say(sink, ALL_HERE);
	if (sink->state == ALL_CAME || sink->state == GONE || (sink->state == FAILED && !sink->owed))
		sink_drop_spaces(sink);
	pthread_mutex_unlock(&sink->lock);
	sink_signal(sink->changed);
}
