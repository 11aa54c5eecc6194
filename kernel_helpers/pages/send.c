/* Private pages of a process, out through a socket: the part of a move that is done once per page, on the side that is left. */
#define _GNU_SOURCE
#include "pages/tables/pagemap.h"
#include "pages/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define GONE_LEAST (16 * PAGE)    /* bytes */
#define SPLICE_LEAST (64 * PAGE) /* bytes of a frame: a call in the process costs as much as reading so many */
#define SAMPLE 16                /* one page of so many is looked at before a frame goes unread */
#define REFUSALS 4               /* frames that could not, after which it is not tried any more */

struct sender {
	int pid, pagemap, memory, timeout_ms;
	struct stream *stream;
	bool keep_zeros;
	bool runs_on; /* the process does */
	enum scan scan;
	struct history *history; /* or NULL */
	struct splicer *splicer; /* or NULL */
	size_t hint;
	uint64_t range_start; /* a run never spans two ranges, as the other side checks it against one */
	char *buffer;
	char *packed; /* a part of the buffer, with room for what a batch is packed into */
	size_t bytes;
	unsigned count;
	struct run runs[BATCH_RUNS];
	bool keep[BATCH_RUNS];
	struct run gone[BATCH_RUNS];
	unsigned gone_count;
	struct checksum checksum;
	struct page_totals totals, *shown; /* as far as it has come, for observers */
};

/* The content of a frame, in `count` parts from vector[2] on, packed if that makes it less. Returns how many parts there are now. */
static unsigned pack_batch(struct sender *sender, struct frame *frame, struct iovec *vector, unsigned count)
{
	char *content = vector[2].iov_base;
	size_t at = vector[2].iov_len;

	for (unsigned i = 1; i < count; at += vector[2 + i++].iov_len)
		memmove(content + at, vector[2 + i].iov_base, vector[2 + i].iov_len);
	size_t size = pack(content, frame->bytes, sender->packed, pack_bound(BATCH_BYTES));
	vector[2] = (struct iovec){content, frame->bytes};
	if (size) {
		frame->magic = PACKED_MAGIC;
		frame->bytes = size;
		vector[2] = (struct iovec){sender->packed, size};
	}
	return 1;
}

/* Whether no page of the batch that is looked at is zeros: then there are hardly any others. Or -errno. */
static int looks_full(struct sender *sender)
{
	struct run sample[BATCH_RUNS / SAMPLE + 1];
	unsigned count = 0, pages = 0;

	for (unsigned i = 0; i < sender->count; i++)
		for (uint64_t at = 0; at < sender->runs[i].length; at += PAGE)
			if (pages++ % SAMPLE == 0)
				sample[count++] = (struct run){sender->runs[i].address + at, PAGE};
	int result = read_pages(sender->pid, sender->memory, sample, count, sender->buffer, count * PAGE, false);
	for (unsigned i = 0; !result && i < count; i++)
		if (is_zero_page(sender->buffer + i * PAGE))
			return 0;
	return result ? result : 1;
}

/* The batch without its being read. Returns 1; 0: it has to be read; or -errno. */
static int flush_spliced(struct sender *sender)
{
	struct frame frame = {.magic = SPLICED_MAGIC, .count = sender->count, .bytes = sender->bytes};
	struct iovec vector[2] = {{&frame, sizeof frame}, {sender->runs, sender->count * sizeof sender->runs[0]}};

	if (!sender->splicer || sender->bytes < SPLICE_LEAST || sender->splicer->refused >= REFUSALS)
		return 0;
	int result = looks_full(sender);
	if (result == 1)
		result = splice_in(sender->splicer, sender->runs, sender->count, sender->bytes);
	if (result != 1)
		return result;
	checksum_add(&sender->checksum, sender->runs, vector[1].iov_len);
	sender->totals.runs += sender->count;
	sender->totals.bytes += sender->bytes;
	*sender->shown = sender->totals;
	result = stream_send(sender->stream, vector, 2, sender->timeout_ms);
	if (!result)
		result = splice_all(sender->splicer->pipe, sender->stream, sender->bytes, sender->timeout_ms);
	sender->count = 0;
	sender->bytes = 0;
	return result ? result : 1;
}

static int flush(struct sender *sender)
{
	struct run runs[BATCH_RUNS];
	struct iovec vector[BATCH_RUNS + 2];
	struct frame frame = {.magic = FRAME_MAGIC};
	unsigned count = 0;
	size_t offset = 0;

	if (!sender->count)
		return 0;
	int result = flush_spliced(sender);
	if (result)
		return result < 0 ? result : 0;
	result = read_pages(sender->pid, sender->memory, sender->runs, sender->count, sender->buffer, sender->bytes, sender->runs_on);
	if (result)
		return result;
	for (unsigned i = 0; i < sender->count; i++) {
		bool open = false; /* the last run out ends where this page starts */
		for (uint64_t at = 0; at < sender->runs[i].length; at += PAGE, offset += PAGE) {
			uint64_t page = sender->runs[i].address + at;
			bool keep = sender->keep[i] || (sender->history && history_has(sender->history, page, &sender->hint));
			if (!keep && is_zero_page(sender->buffer + offset)) {
				sender->totals.zero_bytes += PAGE;
				open = false;
				continue;
			}
			if (!open) {
				runs[count] = (struct run){page, 0};
				vector[2 + count] = (struct iovec){sender->buffer + offset, 0};
				count++;
				open = true;
			}
			runs[count - 1].length += PAGE;
			vector[1 + count].iov_len += PAGE;
			frame.bytes += PAGE;
		}
	}
	sender->count = 0;
	sender->bytes = 0;
	if (!count)
		return 0;
	frame.count = count;
	vector[0] = (struct iovec){&frame, sizeof frame};
	vector[1] = (struct iovec){runs, count * sizeof *runs};
	for (unsigned i = 1; i < count + 2; i++)
		checksum_add(&sender->checksum, vector[i].iov_base, vector[i].iov_len);
	sender->totals.runs += count;
	sender->totals.bytes += frame.bytes;
	for (unsigned i = 0; sender->history && i < count; i++)
		history_mark(sender->history, runs[i].address, runs[i].address + runs[i].length);
	*sender->shown = sender->totals;
	uint64_t bytes = frame.bytes;
	unsigned parts = sender->history && sender->history->pace.packs ? pack_batch(sender, &frame, vector, count) : count;
	result = stream_send(sender->stream, vector, parts + 2, sender->timeout_ms);
	if (sender->history)
		pace_count(&sender->history->pace, bytes, sender->runs_on);
	return result;
}

static int look_again(struct sender *sender, uint64_t start, uint64_t end);

static int stop_at(void *context, uint64_t start, uint64_t end, bool written)
{
	(void)context, (void)start, (void)end, (void)written;
	return 1;
}

static int collect(void *context, uint64_t start, uint64_t end, bool written)
{
	struct sender *sender = context;

	if (sender->scan == SCAN_DENSE || sender->scan == SCAN_DENSE_TAKE) {
		/* What is no page may be among them; a few that were sent and are gone go as zeros. */
		bool known = (end - start) / PAGE == history_pages(sender->history, start, end);
		if (!known || end - start >= GONE_LEAST)
			return look_again(sender, start, end);
		int guards = walk_guards(sender->pagemap, start, end, true, true, stop_at, NULL);
		if (guards)
			return guards < 0 ? guards : look_again(sender, start, end);
	}
	if (sender->history)
		history_seen(sender->history, start, end);
	while (written && start < end) {
		if (sender->bytes == BATCH_BYTES) {
			int result = flush(sender);
			if (result)
				return result;
		}
		uint64_t length = end - start, room = BATCH_BYTES - sender->bytes;
		if (length > room)
			length = room;
		struct run *last = sender->count ? &sender->runs[sender->count - 1] : NULL;
		if (last && last->address + last->length == start && start != sender->range_start)
			last->length += length;
		else {
			sender->runs[sender->count] = (struct run){start, length};
			sender->keep[sender->count++] = sender->keep_zeros;
		}
		sender->bytes += length;
		start += length;
	}
	return 0;
}

static int send_gone(struct sender *sender)
{
	struct frame frame = {.magic = FRAME_MAGIC, .count = sender->gone_count};
	struct iovec vector[2] = {{&frame, sizeof frame}, {sender->gone, sender->gone_count * sizeof *sender->gone}};

	if (!sender->gone_count)
		return 0;
	checksum_add(&sender->checksum, sender->gone, vector[1].iov_len);
	sender->totals.runs += sender->gone_count;
	sender->gone_count = 0;
	return stream_send(sender->stream, vector, 2, sender->timeout_ms);
}

static int collect_gone(void *context, uint64_t start, uint64_t end, bool written)
{
	struct sender *sender = context;

	(void)written;
	sender->gone[sender->gone_count++] = (struct run){start, end - start};
	return sender->gone_count == BATCH_RUNS ? send_gone(sender) : 0;
}

/* Pages of [start, end) that the other side has, and the process has no more, as the walk that has just ended saw: frames of runs without
 * content. */
static int tell_gone(struct sender *sender, uint64_t start, uint64_t end)
{
	int result = history_gone(sender->history, start, end, collect_gone, sender);
	return result ? result : send_gone(sender);
}

/* Of what may be pages of a dense part, those that are; what was sent and is none any more is gone. In a round, too: the scan has taken what
 * is no page as well, and does not find it again. */
static int look_again(struct sender *sender, uint64_t start, uint64_t end)
{
	enum scan scan = sender->scan;

	history_look(sender->history, start, end);
	sender->scan = scan == SCAN_DENSE ? SCAN_TELL : SCAN_OWN;
	int result = walk_pages(sender->pagemap, sender->scan, start, end, collect, sender);
	sender->scan = scan;
	return result;
}

/* What was written of a range that is watched. */
static int send_written(struct sender *sender, const struct page_range *range, bool last)
{
	int result = 0;

	for (uint64_t at = range->start, next; at < range->end && !result; at = next) {
		bool dense;
		next = history_dense(sender->history, at, range->end, &dense);
		if (dense) {
			sender->scan = last ? SCAN_DENSE : SCAN_DENSE_TAKE;
		} else {
			sender->scan = last ? SCAN_TELL : SCAN_TAKE;
			if (last)
				history_look(sender->history, at, next);
		}
		result = walk_pages(sender->pagemap, sender->scan, at, next, collect, sender);
		if (!result && last)
			result = tell_gone(sender, at, next);
	}
	return result;
}

static int send_range(struct sender *sender, const struct page_range *range, bool last)
{
	sender->keep_zeros = range->flags & KEEP_ZEROS;
	sender->range_start = range->start;
	if (range->flags & WRITTEN)
		return send_written(sender, range, last);
	sender->scan = SCAN_OWN;
	return walk_pages(sender->pagemap, SCAN_OWN, range->start, range->end, collect, sender);
}

/*
 * Sends the pages of pid's own in the ranges, and the end mark. Returns 0 or -errno (-ETIMEDOUT: nothing could be sent
 * for timeout_ms). Nothing in pid is changed.
 *
 * history, or NULL: what has been sent of it before, which is added to. Of ranges marked WRITTEN only what was written since then is
 * sent: if pid runs (!last), and is watched (farhome_watch), to be sent again when it is written again; if it stands still (last), with
 * word of what it has no more.
 *
 * splicer, or NULL: by which pid, which stands still and has no history, gives its pages itself.
 */
int farhome_pages_send(int pid, const struct page_range *ranges, size_t range_count, struct stream *stream, int timeout_ms,
                       struct page_totals *totals, struct history *history, int last, struct splicer *splicer)
{
	struct sender *sender = calloc(1, sizeof *sender);
	size_t room = BATCH_BYTES + pack_bound(BATCH_BYTES);
	char *buffer = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int result = 0, pagemap = -1, memory = -1, before = 0;

	if (!sender || buffer == MAP_FAILED) {
		result = -ENOMEM;
		goto out;
	}
	pagemap = result = open_proc(pid, "pagemap", O_RDONLY);
	if (result < 0)
		goto out;
	memory = result = open_proc(pid, "mem", O_RDONLY);
	if (result < 0)
		goto out;
	*sender = (struct sender){.pid = pid,
	                          .pagemap = pagemap,
	                          .memory = memory,
	                          .stream = stream,
	                          .timeout_ms = timeout_ms,
	                          .buffer = buffer,
	                          .packed = buffer + BATCH_BYTES,
	                          .history = history,
	                          .splicer = history || !stream_splices(stream) ? NULL : splicer,
	                          .shown = totals,
	                          .runs_on = history && !last};
	result = 0;
	if (sender->splicer)
		before = begin_splicing(stream);
	if (history)
		pace_rest(&history->pace);
	for (size_t i = 0; i < range_count && !result; i++)
		result = send_range(sender, &ranges[i], last);
	if (!result)
		result = flush(sender);
	if (!result) {
		struct frame end = {.magic = FRAME_MAGIC};
		sender->totals.checksum = checksum_value(&sender->checksum);
		struct iovec vector[2] = {{&end, sizeof end}, {&sender->totals, sizeof sender->totals}};
		result = stream_send(stream, vector, 2, timeout_ms);
	}
	if (sender->splicer)
		end_splicing(stream, before);
	*totals = sender->totals;
out:
	if (pagemap >= 0)
		close(pagemap);
	if (memory >= 0)
		close(memory);
	if (buffer != MAP_FAILED)
		munmap(buffer, room);
	free(sender);
	return result;
}
