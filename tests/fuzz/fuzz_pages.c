/* farhome_pages_receive(): the pages of a process as a hostile peer may send them. receive_all() and its like, which take them from a
 * connection, take them from the input. */
#define _GNU_SOURCE
#include "guest.h"
#include "input.h"
#include "pages/pages.h"
#include <errno.h>
#include <stdlib.h>

int farhome_pages_receive(int pid, const struct page_range *ranges, size_t range_count, struct stream *stream, int timeout_ms,
                          struct page_totals *totals, struct run **gone, size_t *gone_count, int userfaultfd);
void farhome_runs_free(struct run *runs);

#define CONTENT (256u << 10) /* bytes of a frame that are there */
#define STREAM (1u << 20)

static struct input input;
static pid_t guest;

int __wrap_receive_all(struct stream *stream, void *buffer, size_t size, int timeout_ms)
{
	(void)stream, (void)timeout_ms;
	if (size > input.left)
		return -ECONNRESET;
	input_take(&input, buffer, size);
	return 0;
}

int __wrap_receive_slowly(struct stream *stream, void *buffer, size_t size, int timeout_ms, int pause_us)
{
	(void)pause_us;
	return __wrap_receive_all(stream, buffer, size, timeout_ms);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	guest = guest_begin();
	return 0;
}

/* Makes a frame from few bytes of the input, valid unless the input says otherwise; returns its size. */
static size_t make_frame(struct input *from, char *at, struct checksum *sum, struct page_totals *totals)
{
	static char content[CONTENT];
	uint8_t what = input_number(from, 1), kind = what & 3;
	struct frame frame = {.magic = kind == 0   ? FRAME_MAGIC
	                               : kind == 1 ? PACKED_MAGIC
	                               : kind == 2 ? SPLICED_MAGIC
	                                           : (uint32_t)input_number(from, 4)};
	struct run *runs = (struct run *)(at + sizeof frame);
	uint64_t bytes = 0;
	int fits = 1;
	frame.count = what & 4 ? input_number(from, 4) : input_number(from, 1) % 8;
	uint32_t here = frame.count < BATCH_RUNS ? frame.count : BATCH_RUNS;
	for (uint32_t i = 0; i < here; i++) {
		uint8_t where = input_number(from, 1);
		runs[i].address = where == 255 ? input_number(from, 8) : GUEST_MEMORY + (uint64_t)(where - 4) * PAGE;
		uint8_t pages = input_number(from, 1);
		runs[i].length = pages == 255 ? input_number(from, 8) : pages % 16 * PAGE;
		bytes += runs[i].length;
		fits &= runs[i].length <= CONTENT && bytes <= CONTENT;
	}
	char *body = (char *)(runs + here);
	size_t room = fits ? bytes : CONTENT;
	memset(content, input_number(from, 1), room);
	input_take(from, content, room < 16 ? room : 16);
	size_t sent = room;
	if (kind == 1) {
		sent = pack(content, room, body, CONTENT);
		if (what & 8)
			input_take(from, body, sent < 24 ? sent : 24);
	} else {
		memcpy(body, content, room);
	}
	frame.bytes = what & 16 ? input_number(from, 8) : what & 32 ? 0 : sent;
	if (!frame.bytes)
		sent = 0;
	memcpy(at, &frame, sizeof frame);
	checksum_add(sum, runs, here * sizeof *runs);
	for (uint64_t i = 0, offset = 0; kind != 2 && frame.bytes && fits && i < here; offset += runs[i++].length)
		checksum_add(sum, content + offset, runs[i].length);
	totals->runs += here;
	totals->bytes += frame.bytes ? bytes : 0;
	return (size_t)(body + sent - at);
}

static size_t make_stream(struct input *from, char *stream)
{
	struct checksum sum = {{0}};
	struct page_totals totals = {0};
	size_t size = 0;
	while (from->left && size + CONTENT + BATCH_RUNS * sizeof(struct run) + 1024 < STREAM)
		size += make_frame(from, stream + size, &sum, &totals);
	struct frame last = {.magic = FRAME_MAGIC};
	memcpy(stream + size, &last, sizeof last);
	totals.checksum = checksum_value(&sum);
	memcpy(stream + size + sizeof last, &totals, sizeof totals);
	return size + sizeof last + sizeof totals;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct page_range ranges[] = {
		{GUEST_MEMORY, GUEST_MEMORY + 4 * PAGE, 0},
		{GUEST_MEMORY + 4 * PAGE, GUEST_MEMORY + 8 * PAGE, DISCARD},
		{GUEST_MEMORY + 16 * PAGE, GUEST_MEMORY + GUEST_BYTES, MISSING},
		{GUEST_MEMORY + GUEST_BYTES, GUEST_MEMORY + GUEST_BYTES + 16 * PAGE, 0}, /* is promised, and is not there */
	};
	static char stream[STREAM];
	struct page_totals totals;
	struct run *gone;
	size_t count;
	struct input from = {data, size};
	input = (struct input){(uint8_t *)stream, make_stream(&from, stream)};
	int result = farhome_pages_receive(guest, ranges, sizeof ranges / sizeof *ranges, NULL, 1000, &totals, &gone, &count, -1);
	if (result > 0)
		abort();
	for (size_t i = 0; !result && i < count; i++)
		if (gone[i].address < GUEST_MEMORY || gone[i].address + gone[i].length > ranges[3].end)
			abort();
	if (!result)
		farhome_runs_free(gone);
	return 0;
}
