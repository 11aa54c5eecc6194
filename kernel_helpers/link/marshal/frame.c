/* The frame of a call that has been marshalled, and what is changed in it before it is sent. */
#define _GNU_SOURCE
#include "link/marshal/data_area.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int path_argument(const struct call_entry *entry)
{
	for (int i = 0; i < entry->count; i++)
		if (entry->arguments[i].shape == SHAPE_STRING)
			return i;
	return -1;
}

const char *marshal_path(const struct marshalled *m, const struct call_entry *entry)
{
	int i = path_argument(entry);
	if (i < 0 || m->failed || !(m->call.offsets >> i & 1) || m->call.arguments[i] >= m->call.image)
		return NULL;
	const char *path = (const char *)m->image + m->call.arguments[i];
	return memchr(path, 0, m->call.image - m->call.arguments[i]) ? path : NULL;
}

int marshal_rename(struct marshalled *m, const struct call_entry *entry, const char *path)
{
	if (!marshal_path(m, entry) || m->call.outs)
		return -ENOTSUP;
	size_t length = strlen(path) + 1;
	int64_t at = image_room(m, 0, length);
	if (at < 0)
		return m->failed;
	memcpy(m->image + at, path, length);
	m->call.arguments[path_argument(entry)] = at;
	m->call.area = (m->call.image + 511) & ~511u;
	return 0;
}

int marshal_attach(struct marshalled *m, const void *data, uint32_t size)
{
	int64_t at = m->call.image || m->call.outs ? -ENOTSUP : image_room(m, 0, size);
	if (at < 0)
		return -ENOTSUP;
	memcpy(m->image + at, data, size);
	m->call.area = (m->call.image + 511) & ~511u;
	return 0;
}

/* Of the outs that lie in the image, what is sent: by that it is known what home's kernel has changed. 0, or -ENOMEM. */
static int keep_sent(struct marshalled *m)
{
	size_t needed = 0;
	for (uint32_t i = 0; i < m->call.outs; i++)
		if (m->outs[i].offset < m->call.image)
			needed += m->outs[i].length;
	if (needed > m->kept_room) {
		void *fresh = realloc(m->kept, needed);
		if (!fresh)
			return -ENOMEM;
		m->kept = fresh;
		m->kept_room = needed;
	}
	unsigned char *at = m->kept;
	for (uint32_t i = 0; i < m->call.outs; i++)
		if (m->outs[i].offset < m->call.image && m->outs[i].length) {
			memcpy(at, m->image + m->outs[i].offset, m->outs[i].length);
			at += m->outs[i].length;
		}
	return 0;
}

struct outgoing *marshal_frame(struct marshalled *m, uint32_t tid)
{
	size_t relocations = m->call.relocations * sizeof *m->relocations, outs = m->call.outs * sizeof *m->outs;
	struct outgoing *o = keep_sent(m) ? NULL : outgoing_new(FRAME_CALL, tid, sizeof m->call + relocations + outs);
	if (!o)
		return NULL;
	unsigned char *at = outgoing_head(o);
	memcpy(at, &m->call, sizeof m->call);
	if (relocations)
		memcpy(at + sizeof m->call, m->relocations, relocations);
	if (outs)
		memcpy(at + sizeof m->call + relocations, m->outs, outs);
	if (m->call.image) {
		outgoing_body(o, m->image, m->call.image);
		m->image = NULL;
		m->image_room = 0;
	}
	return o;
}

void marshal_free(struct marshalled *m)
{
	free(m->relocations);
	free(m->outs);
	free(m->segments);
	free(m->image);
	free(m->kept);
	memset(m, 0, sizeof *m);
}
