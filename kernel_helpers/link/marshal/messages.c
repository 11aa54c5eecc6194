/* Messages of sockets: headers, and what they point to. */
#define _GNU_SOURCE
#include "link/marshal/parts.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

void copy_message(struct marshalled *m, int tid, uint32_t at, uint64_t address, enum traffic traffic, struct out rule)
{
	int out = traffic != SENT;
	struct msghdr h;
	memcpy(&h, m->image + at, sizeof h);
	if (h.msg_iovlen > VECTOR_LIMIT)
		return;                 /* EMSGSIZE, says the kernel, before it follows a pointer */
	if ((int)h.msg_namelen < 0 || h.msg_controllen > 0x7fffffff)
		h.msg_namelen = h.msg_controllen = 0;
	uint32_t names = h.msg_namelen < 128 ? h.msg_namelen : 128;
	copy_nested(m, tid, at + offsetof(struct msghdr, msg_name), names, out);
	copy_nested(m, tid, at + offsetof(struct msghdr, msg_control), h.msg_controllen, out);
	uint64_t total;
	int64_t iov = copy_vector(m, tid, (uint64_t)h.msg_iov, h.msg_iovlen, &total);
	if (iov == -2)
		set_u64(m, at + offsetof(struct msghdr, msg_iov), fault((uint64_t)h.msg_iov));
	if (iov < 0)
		return;
	if (h.msg_iovlen)
		point(m, at + offsetof(struct msghdr, msg_iov), iov);
	copy_parts(m, tid, iov, h.msg_iovlen, total, traffic, rule);
	if (!out)
		return;
	wants_room(m, tid, address + offsetof(struct msghdr, msg_namelen),
	           offsetof(struct msghdr, msg_flags) + 4 - offsetof(struct msghdr, msg_namelen));
	static const struct {
		uint32_t offset, length;
	} fields[] = {{offsetof(struct msghdr, msg_namelen), 4},
	              {offsetof(struct msghdr, msg_controllen), 8},
	              {offsetof(struct msghdr, msg_flags), 4}};
	for (unsigned i = 0; i < 3; i++) {
		add_ruled(m, (struct out){.offset = at + fields[i].offset, .length = fields[i].length, .rule = OUT_ALWAYS});
		add_segment(m, address + fields[i].offset, fields[i].length);
	}
}

/* Whether a message would be put where the header of one is: the kernel reads each when its turn has come. */
static int into_headers(const struct marshalled *m, uint64_t address, uint32_t at, uint64_t size)
{
	for (uint32_t i = 0; i < m->segments_count; i++) {
		const struct segment *s = &m->segments[i];
		uint32_t offset = m->outs[s->out].offset;
		if (s->length && s->address < address + size && address < s->address + s->length && (offset < at || offset >= at + size))
			return 1;
	}
	return 0;
}

int64_t copy_messages(struct marshalled *m, int tid, uint64_t address, uint64_t count, enum traffic traffic)
{
	if (count > VECTOR_LIMIT)
		count = VECTOR_LIMIT;   /* as the kernel does */
	int64_t at = copy_in(m, tid, address, count * sizeof(struct mmsghdr));
	if (at == -2 && begins(m, tid, address))
		m->failed = -ENOTSUP;   /* those that can be read are sent, or filled */
	if (at >= 0)
		wants_room(m, tid, address, count * sizeof(struct mmsghdr));
	for (uint64_t i = 0; at >= 0 && i < count && !m->failed; i++) {
		uint32_t header = at + i * sizeof(struct mmsghdr);
		uint32_t length_at = header + offsetof(struct mmsghdr, msg_len);
		struct out got = {.rule = OUT_MESSAGE, .scale = i, .add = length_at};
		copy_message(m, tid, header, address + i * sizeof(struct mmsghdr), traffic, got);
		add_out(m, length_at, 4, NULL);
		add_segment(m, address + (length_at - at), 4);
	}
	if (at >= 0 && !m->failed && traffic != SENT && into_headers(m, address, at, count * sizeof(struct mmsghdr)))
		m->failed = -ENOTSUP;
	return at;
}
