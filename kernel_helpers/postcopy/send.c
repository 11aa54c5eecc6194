/* Pages that follow a process: the side that has them, in a process that stands still. */
#define _GNU_SOURCE
#include "postcopy/postcopy.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AROUND (16 * PAGE)        /* bytes that go with a page that is waited for: those behind it */
#define UNSENT (256 << 10)        /* bytes that may wait in the socket */
#define MOST_LACKING (1u << 20)   /* runs */
#define WISHES 256

struct source {
	int pid, memory, timeout_ms;
	struct stream *stream;
	struct page_set *lacking;
	uint64_t cursor; /* what nobody waits for goes from here on */
	char *buffer;
	uint64_t bytes;
	uint64_t wishes[WISHES];
	size_t wished; /* bytes of them that have come */
};

static int receive_lacking(struct source *source)
{
	struct run *runs = NULL;
	size_t count = 0;
	int result;

	for (;;) {
		struct frame frame;
		result = receive_all(source->stream, &frame, sizeof frame, source->timeout_ms);
		if (result)
			break;
		if (frame.magic != FRAME_MAGIC || frame.bytes || frame.count > BATCH_RUNS || count + frame.count > MOST_LACKING) {
			result = -EPROTO;
			break;
		}
		if (!frame.count) {
			source->lacking = page_set_new(runs, count, true);
			result = source->lacking ? 0 : -ENOMEM;
			break;
		}
		struct run *more = realloc(runs, (count + frame.count) * sizeof *runs);
		if (!more) {
			result = -ENOMEM;
			break;
		}
		runs = more;
		result = receive_all(source->stream, runs + count, frame.count * sizeof *runs, source->timeout_ms);
		for (size_t i = count; !result && i < count + frame.count; i++)
			if (!runs[i].length || (runs[i].address | runs[i].length) % PAGE ||
			    runs[i].address + runs[i].length < runs[i].address ||
			    (i && runs[i].address < runs[i - 1].address + runs[i - 1].length))
				result = -EPROTO;
		if (result)
			break;
		count += frame.count;
	}
	free(runs);
	return result;
}

static int send_frame(struct source *source, const struct run *runs, unsigned count, struct iovec *vector, uint64_t bytes)
{
	struct checksum sum = {{0}};
	struct late_frame frame = {.magic = LATE_MAGIC, .count = count, .bytes = bytes};

	if (!count)
		return 0;
	vector[0] = (struct iovec){&frame, sizeof frame};
	vector[1] = (struct iovec){(void *)runs, count * sizeof *runs};
	unsigned parts = bytes ? count + 2 : 2;
	for (unsigned i = 1; i < parts; i++)
		checksum_add(&sum, vector[i].iov_base, vector[i].iov_len);
	frame.checksum = checksum_value(&sum);
	source->bytes += bytes;
	return stream_send(source->stream, vector, parts, source->timeout_ms);
}

/* Pages from `from` on, at most so many bytes; nothing if there are none. Where they end is stored in *end. */
static int send_some(struct source *source, uint64_t from, uint64_t most, uint64_t *end)
{
	struct run runs[LATE_RUNS], full[LATE_RUNS], empty[LATE_RUNS];
	struct iovec vector[LATE_RUNS + 2];
	unsigned count = 0, fulls = 0, empties = 0;
	uint64_t bytes = 0, content = 0, offset = 0, at = from;

	while (bytes < most && page_set_next(source->lacking, at, most - bytes, &runs[count])) {
		bytes += runs[count].length;
		at = runs[count].address + runs[count].length;
		count++;
	}
	*end = at;
	if (!count)
		return 0;
	int result = read_pages(source->pid, source->memory, runs, count, source->buffer, bytes, false);
	if (result)
		return result;
	for (unsigned i = 0; i < count; i++) {
		int before = -1; /* whether the page before was zeros */
		for (uint64_t page = 0; page < runs[i].length; page += PAGE, offset += PAGE) {
			int zero = is_zero_page(source->buffer + offset);
			if (zero != before) {
				if (zero)
					empty[empties++] = (struct run){runs[i].address + page, 0};
				else {
					vector[2 + fulls] = (struct iovec){source->buffer + offset, 0};
					full[fulls++] = (struct run){runs[i].address + page, 0};
				}
				before = zero;
			}
			if (zero) {
				empty[empties - 1].length += PAGE;
			} else {
				full[fulls - 1].length += PAGE;
				vector[1 + fulls].iov_len += PAGE;
				content += PAGE;
			}
		}
		page_set_change(source->lacking, runs[i].address, runs[i].address + runs[i].length, false);
	}
	result = send_frame(source, full, fulls, vector, content);
	return result ? result : send_frame(source, empty, empties, vector, 0);
}

/* What the other side says: 1 when it has everything. */
static int hear(struct source *source)
{
	ssize_t size =
		stream_receive(source->stream, (char *)source->wishes + source->wished, sizeof source->wishes - source->wished, false);

	if (size == 0)
		return -ECONNRESET;
	if (size < 0)
		return size == -EAGAIN ? 0 : (int)size;
	source->wished += size;
	size_t count = source->wished / sizeof source->wishes[0];
	for (size_t i = 0; i < count; i++) {
		if (source->wishes[i] == ALL_HERE)
			return 1;
		if (!page_set_has(source->lacking, source->wishes[i]))
			continue; /* it is on its way */
		int result = send_some(source, source->wishes[i], AROUND, &source->cursor);
		if (result)
			return result;
	}
	source->wished -= count * sizeof source->wishes[0];
	memmove(source->wishes, source->wishes + count, source->wished);
	return 0;
}

static int serve(struct source *source, int stop, uint64_t *left)
{
	for (;;) {
		struct pollfd entries[2] = {{.fd = stream_socket(source->stream), .events = POLLIN | (source->lacking->left ? POLLOUT : 0)},
		                            {.fd = stop, .events = POLLIN}};
		bool holds = stream_holds(source->stream);
		int count = poll(entries, 2, holds ? 0 : source->timeout_ms), result = 0;
		*left = source->lacking->left * PAGE;
		if (count == 0 && !holds)
			return -ETIMEDOUT;
		if (count < 0 && errno != EINTR)
			return -errno;
		if (count < 0)
			continue;
		if (entries[1].revents)
			return -ECANCELED;
		if (holds || entries[0].revents & (POLLIN | POLLERR | POLLHUP))
			result = hear(source);
		else if (entries[0].revents & POLLOUT) {
			result = send_some(source, source->cursor, LATE_BYTES, &source->cursor);
			struct run run;
			if (!page_set_next(source->lacking, source->cursor, PAGE, &run))
				source->cursor = 0;
		}
		if (result)
			return result < 0 ? result : 0;
	}
}

/*
 * Gives the pages of pid, which stands still, to who says on the stream that it lacks them: first those that are waited for. Returns 0 when
 * the other side has all of them; -ECANCELED when `stop` (a descriptor) became readable; the connection's -ECONNRESET, -ETIMEDOUT (no
 * progress for timeout_ms), -EPROTO and others, after which it may be tried on another; -EFAULT, -ESRCH: pid has them no more.
 * *left: bytes not sent yet, *bytes: of content that were, added to.
 */
int farhome_postcopy_send(int pid, struct stream *stream, int timeout_ms, int stop, uint64_t *left, uint64_t *bytes)
{
	struct source source = {.pid = pid, .stream = stream, .timeout_ms = timeout_ms, .buffer = malloc(LATE_BYTES)};
	int unsent = UNSENT, result = source.buffer ? 0 : -ENOMEM;

	source.memory = open_proc(pid, "mem", O_RDONLY);
	if (source.memory < 0)
		result = source.memory == -ENOENT ? -ESRCH : source.memory;
	setsockopt(stream_socket(stream), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
	if (!result)
		result = receive_lacking(&source);
	if (!result)
		result = serve(&source, stop, left);
	*bytes += source.bytes;
	if (source.memory >= 0)
		close(source.memory);
	page_set_free(source.lacking);
	free(source.buffer);
	return result;
}
