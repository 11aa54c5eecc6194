/* Memory that a process has mapped shared and nobody else has, out through a socket: whole objects, by descriptors of them. A page that is
 * in the object and in no page table of the process, or beyond what it has mapped, is found here alone. */
#define _GNU_SOURCE
#include "pages/pages.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct object {
	uint64_t start, size; /* start: where the other side has it */
	int32_t descriptor, padding;
};

struct object_sender {
	struct stream *stream;
	int timeout_ms;
	struct checksum checksum;
	struct page_totals *totals;
	struct run runs[BATCH_RUNS];
	unsigned count;
	size_t bytes;
	char *buffer;
};

static int flush(struct object_sender *sender)
{
	struct frame frame = {.magic = FRAME_MAGIC, .count = sender->count, .bytes = sender->bytes};
	struct iovec vector[3] = {
		{&frame, sizeof frame}, {sender->runs, sender->count * sizeof *sender->runs}, {sender->buffer, sender->bytes}};

	if (!sender->count)
		return 0;
	checksum_add(&sender->checksum, vector[1].iov_base, vector[1].iov_len);
	for (size_t i = 0, offset = 0; i < sender->count; offset += sender->runs[i++].length)
		checksum_add(&sender->checksum, sender->buffer + offset, sender->runs[i].length);
	sender->totals->runs += sender->count;
	sender->totals->bytes += sender->bytes;
	sender->count = 0;
	sender->bytes = 0;
	return stream_send(sender->stream, vector, 3, sender->timeout_ms);
}

/* One page of content, which is the last in the buffer. */
static int add_page(struct object_sender *sender, uint64_t address)
{
	struct run *last = sender->count ? &sender->runs[sender->count - 1] : NULL;

	if (is_zero_page(sender->buffer + sender->bytes)) {
		sender->totals->zero_bytes += PAGE;
		return 0;
	}
	if (last && last->address + last->length == address)
		last->length += PAGE;
	else
		sender->runs[sender->count++] = (struct run){address, PAGE};
	sender->bytes += PAGE;
	return sender->bytes == BATCH_BYTES ? flush(sender) : 0;
}

/* The data of [offset, end) of an object that is mapped at `mapped`. */
static int send_data(struct object_sender *sender, const char *mapped, uint64_t start, uint64_t offset, uint64_t end)
{
	int result = 0;

	for (; offset < end && !result; offset += PAGE) {
		/* By a call: of an object that is shorter than it was there would be a SIGBUS. */
		struct iovec local = {sender->buffer + sender->bytes, PAGE}, remote = {(void *)(mapped + offset), PAGE};
		if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != PAGE)
			return -EFAULT;
		result = add_page(sender, start + offset);
	}
	return result;
}

static int send_object(struct object_sender *sender, const struct object *object)
{
	uint64_t size = (object->size + PAGE - 1) / PAGE * PAGE, end;
	char *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, object->descriptor, 0);
	int result = 0;

	if (mapped == MAP_FAILED)
		return -errno;
	for (uint64_t at = 0; at < object->size && !result; at = end) {
		off_t data = lseek(object->descriptor, at, SEEK_DATA);
		if (data < 0) {
			result = errno == ENXIO ? 0 : -errno;
			break;
		}
		off_t hole = lseek(object->descriptor, data, SEEK_HOLE);
		if (hole <= data) {
			result = hole < 0 ? -errno : -EIO;
			break;
		}
		end = ((uint64_t)hole + PAGE - 1) / PAGE * PAGE;
		result = send_data(sender, mapped, object->start, (uint64_t)data / PAGE * PAGE, end < size ? end : size);
	}
	munmap(mapped, size);
	return result;
}

/* What the objects hold, and the end mark, as farhome_pages_receive takes it. Returns 0 or -errno. */
int farhome_objects_send(const struct object *objects, size_t count, struct stream *stream, int timeout_ms, struct page_totals *totals)
{
	struct object_sender *sender = calloc(1, sizeof *sender);
	int result = -ENOMEM;

	*totals = (struct page_totals){0};
	if (sender && (sender->buffer = malloc(BATCH_BYTES))) {
		sender->stream = stream;
		sender->timeout_ms = timeout_ms;
		sender->totals = totals;
		result = 0;
		for (size_t i = 0; i < count && !result; i++)
			result = send_object(sender, &objects[i]);
		if (!result)
			result = flush(sender);
		if (!result) {
			struct frame end = {.magic = FRAME_MAGIC};
			totals->checksum = checksum_value(&sender->checksum);
			struct iovec vector[2] = {{&end, sizeof end}, {totals, sizeof *totals}};
			result = stream_send(stream, vector, 2, timeout_ms);
		}
		free(sender->buffer);
	}
	free(sender);
	return result;
}
