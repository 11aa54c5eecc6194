/* A REPLY into the guest's memory: what link.h says of marshal_results(). */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include "process/guest_memory.h"
#include "link/link.h"

#define BATCH 64

/* Bytes on their way to the guest. */
struct writer {
	int tid, count, failed, silent;
	uint64_t bytes;
	struct iovec here[BATCH], there[BATCH];
};

/* What the kernel would not have said anything of (`silent`) goes by itself. */
static void flush(struct writer *w)
{
	if (w->count && guest_memory_writev(w->tid, w->here, w->count, w->there, w->count) != (ssize_t)w->bytes && !w->silent)
		w->failed = -EFAULT;
	w->count = w->bytes = 0;
}

static void put(struct writer *w, uint64_t address, unsigned char *data, uint64_t length)
{
	if (!length)
		return;
	if (w->count == BATCH)
		flush(w);
	w->here[w->count] = (struct iovec){data, length};
	w->there[w->count++] = (struct iovec){(void *)address, length};
	w->bytes += length;
}

/* The runs of bytes that are not as they were sent. */
static void put_changed(struct writer *w, uint64_t address, unsigned char *data, const unsigned char *sent, uint64_t length)
{
	if (!memcmp(data, sent, length))
		return;
	for (uint64_t from = 0, to; from < length; from = to) {
		if (data[from] == sent[from]) {
			to = from + 1;
			continue;
		}
		for (to = from + 1; to < length && data[to] != sent[to];)
			to++;
		put(w, address + from, data + from, to - from);
	}
}

/* Directory entries: between the end of a name and the next entry the kernel writes nothing, but for the type that getdents() has in
 * the last byte. */
static void put_records(struct writer *w, uint64_t address, unsigned char *data, uint64_t length, int records)
{
	uint64_t name = records == RECORDS_DIRENT64 ? 19 : 18, at = 0;
	uint16_t size;
	for (; at + name < length; at += size) {
		memcpy(&size, data + at + 16, sizeof size);
		if (size <= name || size > length - at)
			break;
		uint64_t used = name + strnlen((char *)data + at + name, size - name) + 1;
		put(w, address + at, data + at, used < size ? used : size);
		if (records == RECORDS_DIRENT)
			put(w, address + at + size - 1, data + at + size - 1, 1);
	}
	put(w, address + at, data + at, length - at);
}

int marshal_results(const struct marshalled *m, int tid, const uint32_t *lengths, unsigned char *data)
{
	struct writer w = {.tid = tid};
	const unsigned char *sent = m->kept;
	uint32_t segment = 0;
	for (uint32_t i = 0; i < m->call.outs; i++) {
		int in_image = m->outs[i].offset < m->call.image;
		uint64_t left = lengths[i];
		const unsigned char *was = sent;
		for (; segment < m->segments_count && m->segments[segment].out == i; segment++) {
			const struct segment *s = &m->segments[segment];
			uint64_t part = left < s->length ? left : s->length;
			if (!part)
				continue;
			int silent = s->writes == WRITES_QUIET;
			if (silent != w.silent)
				flush(&w);
			w.silent = silent;
			if (in_image)
				put_changed(&w, s->address, data, was, part);
			else if (s->records)
				put_records(&w, s->address, data, part, s->records);
			else
				put(&w, s->address, data, part);
			left -= part;
			data += part;
			was += part;
		}
		if (left)               /* of a reply without any bytes there is no data */
			data += left;
		if (in_image && m->outs[i].length)
			sent += m->outs[i].length;
	}
	flush(&w);
	return w.failed;
}
