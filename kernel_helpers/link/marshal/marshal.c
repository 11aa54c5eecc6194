/* A guest's call into a CALL frame, and a REPLY into the guest's memory, by the table's shapes. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "link/marshal/data_area.h"
#include "process/guest_memory.h"
#include "link/link.h"
#include "calls.inc"

#define VECTOR_LIMIT 1024u
#define XATTR_ROOM 65536u       /* XATTR_SIZE_MAX */
#define NOTIFY_COOKIE 32u       /* NOTIFY_COOKIE_LEN, mq_notify(2) */

static const struct call_entry go_home = {.class = CLASS_GO_HOME};

const struct call_entry *link_entry(long number, const uint64_t arguments[6])
{
	if (number < 0 || number >= (long)(sizeof call_rows / sizeof *call_rows) || !call_rows[number].name)
		return &go_home;
	const struct call_row *row = &call_rows[number];
	for (unsigned i = 0; i < row->variants; i++) {
		const struct call_variant *v = &call_variants[row->first_variant + i];
		if ((arguments[v->argument] & v->mask) == v->value && (arguments[v->also] & v->also_mask) == v->also_value)
			return &v->entry;
	}
	return &row->entry;
}

int link_class(long number, const uint64_t arguments[6])
{
	return link_entry(number, arguments)->class;
}

static int at_home(int class)
{
	return class == CLASS_FORWARD || class == CLASS_BOTH || class == CLASS_END || class == CLASS_SUM || class == CLASS_EXECUTE ||
	       class == CLASS_BIND || class == CLASS_RIGHTS || class == CLASS_IDS || class == CLASS_WATCH;
}

int link_forwardable(long number)
{
	if (number < 0 || number >= (long)(sizeof call_rows / sizeof *call_rows) || !call_rows[number].name)
		return 0;
	const struct call_row *row = &call_rows[number];
	int yes = at_home(row->entry.class);
	for (unsigned i = 0; i < row->variants && !yes; i++)
		yes = at_home(call_variants[row->first_variant + i].entry.class);
	return yes;
}

/* ---- shapes ---- */

static int buffer_size(const struct call_argument *a, const uint64_t arguments[6], int tid, uint64_t *size)
{
	uint64_t x = 0;
	uint32_t behind;
	switch (a->size_kind) {
	case SIZE_ARGUMENT:
		x = arguments[a->size_argument];
		break;
	case SIZE_BEHIND:
		if (guest_read(tid, arguments[a->size_argument], &behind, 4))
			return -EFAULT;
		x = behind > 0x7fffffff ? 0 : behind;   /* the kernel refuses a negative length before it looks further */
		break;
	case SIZE_BITS: {
		int64_t bits = (int64_t)(int)arguments[a->size_argument] + (int32_t)a->size_add;
		*size = bits <= 0 ? 0 : (uint64_t)(bits + 63) / 64 * 8;
		return *size > SLOT_DATA ? -E2BIG : 0;
	}
	}
	if (x > SLOT_DATA)
		return -E2BIG;
	*size = x * a->size_scale + a->size_add;
	if (a->size_least && *size < a->size_least)
		*size = a->size_least;
	if (a->size_most && *size > a->size_most)
		*size = a->size_most;
	return *size > SLOT_DATA ? -E2BIG : 0;
}

/* Copies `count` struct iovec into the image; returns its offset as copy_in(), and their total length. Lengths that the
 * kernel would refuse are left for it to refuse. */
static int64_t copy_vector(struct marshalled *m, int tid, uint64_t address, uint64_t count, uint64_t *total)
{
	*total = 0;
	int64_t at = copy_in(m, tid, address, count * sizeof(struct iovec));
	if (at < 0)
		return at;
	const struct iovec *v = (void *)(m->image + at);
	for (uint64_t i = 0; i < count; i++) {
		if (v[i].iov_len > SLOT_DATA) {
			m->failed = -E2BIG;
			return -1;
		}
		*total += v[i].iov_len;
	}
	return at;
}

static const struct out returned = {.rule = OUT_RETURNED, .scale = 1};

enum traffic { SENT, RETURNED, BOTH_WAYS };     /* BOTH_WAYS: what comes back is perhaps not all that the call says it has got */

/* The memory behind the vector at `at` of the image (copied above): sent, or written as far as `rule` says, or both. It lies in one
 * piece, as the kernel fills it. A part that cannot be read, or written, becomes FAULT_ADDRESS. */
static void vector(struct marshalled *m, int tid, uint32_t at, uint64_t count, uint64_t total, enum traffic traffic, struct out rule)
{
	struct iovec there[VECTOR_LIMIT];
	if (!count)
		return;
	memcpy(there, m->image + at, count * sizeof *there);
	uint64_t first = (uint64_t)there[0].iov_base;
	int64_t data = traffic == RETURNED ? behind_room(m, first, total) : image_room(m, first, total);
	if (data < 0)
		return;
	int readable = 1;
	if (traffic != RETURNED && total) {
		struct iovec here = {m->image + data, total};
		readable = process_vm_readv(tid, &here, 1, there, count, 0) == (ssize_t)total;
	}
	if (traffic != SENT) {
		rule.offset = data;
		rule.length = total;
		add_ruled(m, rule);
	}
	for (uint64_t i = 0, offset = data; i < count && !m->failed; i++) {
		uint32_t where = at + i * sizeof(struct iovec);
		uint64_t address = (uint64_t)there[i].iov_base, length = there[i].iov_len;
		int fits = traffic == SENT || has_room(m, tid, address, length);
		if (!length && address >> 47)
			set_u64(m, where, address);
		else if (!length || (fits && (readable || !guest_read(tid, address, m->image + offset, length))))
			point(m, where, offset);
		else if (fits && begins(m, tid, address))
			m->failed = -ENOTSUP;
		else
			set_u64(m, where, fault(address));
		if (traffic != SENT)
			add_segment(m, address, length);
		offset += length;
	}
}

/* The pointer at `where` of the image and the length beside it: what it points to is sent, and comes back if `back`. */
static void nested(struct marshalled *m, int tid, uint32_t where, uint64_t length, int back)
{
	uint64_t address;
	memcpy(&address, m->image + where, 8);
	if (!address)
		return;
	int64_t at = back && !has_room(m, tid, address, length) ? -2 : copy_in(m, tid, address, length);
	if (at == -2)
		set_u64(m, where, fault(address));
	if (at < 0)
		return;
	point(m, where, at);
	if (back && length) {
		add_ruled(m, (struct out){.offset = at, .length = length, .rule = OUT_ALWAYS});
		add_segment(m, address, length);
	}
}

/* The struct xattr_args at `at` of the image, `size` bytes of it. Its value is as long as it says, and never longer than
 * XATTR_SIZE_MAX; home's kernel says so of a longer one before it looks, or writes no more. */
static void attribute(struct marshalled *m, int tid, uint32_t at, uint64_t size, int out)
{
	uint64_t address;
	uint32_t length;
	if (size < 16)
		return;                 /* EINVAL by its size */
	memcpy(&length, m->image + at + 8, 4);
	if (length > XATTR_ROOM)
		length = XATTR_ROOM;
	if (!out) {
		nested(m, tid, at, length, 0);
		return;
	}
	memcpy(&address, m->image + at, 8);
	int64_t value = address ? behind_room(m, address, length) : -1;
	if (value < 0)
		return;
	point(m, at, value);
	if (length) {
		add_ruled(m, (struct out){.offset = value, .length = length, .rule = OUT_RETURNED, .scale = 1});
		add_segment(m, address, length);
	}
}

/* The struct sock_fprog at `at` of the image, `size` bytes of it: a count of instructions, 8 bytes each, and a pointer. */
static void socket_program(struct marshalled *m, int tid, uint32_t at, uint64_t size)
{
	uint16_t count;
	if (size != 16)
		return;                 /* EINVAL by its size, or another level's option of this number */
	memcpy(&count, m->image + at, sizeof count);
	nested(m, tid, at + 8, count * 8, 0);
}

/* The struct sigevent of mq_notify at `at` of the image: with SIGEV_THREAD it points to what is to be told. */
static void notification(struct marshalled *m, int tid, uint32_t at)
{
	struct sigevent event;
	memcpy(&event, m->image + at, sizeof event);
	if (event.sigev_notify == SIGEV_THREAD)
		nested(m, tid, at + offsetof(struct sigevent, sigev_value), NOTIFY_COOKIE, 0);
}

/* The struct msghdr at `at` of the image, which the guest has at `address`. `rule`: how much of its buffers comes back. */
static void message(struct marshalled *m, int tid, uint32_t at, uint64_t address, enum traffic traffic, struct out rule)
{
	int out = traffic != SENT;
	struct msghdr h;
	memcpy(&h, m->image + at, sizeof h);
	if (h.msg_iovlen > VECTOR_LIMIT)
		return;                 /* EMSGSIZE, says the kernel, before it follows a pointer */
	if ((int)h.msg_namelen < 0 || h.msg_controllen > 0x7fffffff)
		h.msg_namelen = h.msg_controllen = 0;
	uint32_t names = h.msg_namelen < 128 ? h.msg_namelen : 128;
	nested(m, tid, at + offsetof(struct msghdr, msg_name), names, out);
	nested(m, tid, at + offsetof(struct msghdr, msg_control), h.msg_controllen, out);
	uint64_t total;
	int64_t iov = copy_vector(m, tid, (uint64_t)h.msg_iov, h.msg_iovlen, &total);
	if (iov == -2)
		set_u64(m, at + offsetof(struct msghdr, msg_iov), fault((uint64_t)h.msg_iov));
	if (iov < 0)
		return;
	if (h.msg_iovlen)
		point(m, at + offsetof(struct msghdr, msg_iov), iov);
	vector(m, tid, iov, h.msg_iovlen, total, traffic, rule);
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

static int64_t message_vector(struct marshalled *m, int tid, uint64_t address, uint64_t count, enum traffic traffic)
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
		message(m, tid, header, address + i * sizeof(struct mmsghdr), traffic, got);
		add_out(m, length_at, 4, NULL);
		add_segment(m, address + (length_at - at), 4);
	}
	if (at >= 0 && !m->failed && traffic != SENT && into_headers(m, address, at, count * sizeof(struct mmsghdr)))
		m->failed = -ENOTSUP;
	return at;
}

static enum traffic traffic_of(int shape)
{
	switch (shape) {
	case SHAPE_IOV_OUT:
	case SHAPE_MSG_OUT:
	case SHAPE_MMSG_OUT:
		return RETURNED;
	case SHAPE_MSG_PART:
	case SHAPE_MMSG_PART:
		return BOTH_WAYS;
	}
	return SENT;
}

/* A result at `at` of the area, which the table describes. */
static void add_written(struct marshalled *m, const struct call_argument *a, uint32_t at, uint64_t address, uint64_t size)
{
	add_out(m, at, size, a);
	add_segment(m, address, size);
	if (!m->failed) {
		m->segments[m->segments_count - 1].writes = a->writes;
		m->segments[m->segments_count - 1].records = a->records;
	}
}

static void set_offset(struct marshalled *m, int i, int64_t at)
{
	if (at == -2)
		m->call.arguments[i] = fault(m->call.arguments[i]);
	else if (at >= 0) {
		m->call.arguments[i] = at;
		m->call.offsets |= 1u << i;
	}
}

static const unsigned char no_modes[4];     /* of a struct timex that sets nothing */

/* What rt_sigtimedwait(2) waits for, the size of which is its last argument. */
static void marshal_signals(struct marshalled *m, int tid, int i, const uint64_t arguments[6])
{
	uint64_t wanted;
	if (arguments[3] != sizeof wanted || guest_read(tid, arguments[i], &wanted, sizeof wanted)) {
		m->call.arguments[i] = fault(arguments[i]);     /* EINVAL by its length, or EFAULT */
		return;
	}
	int64_t at = copy_in(m, tid, arguments[i], sizeof wanted);
	set_offset(m, i, at);
	if (at < 0)
		return;
	set_u64(m, at, wanted & m->watched);
	m->signal_mask = ~wanted;
	m->has_mask = 1;
}

static void marshal_argument(struct marshalled *m, int tid, const struct call_argument *a, int i, const uint64_t arguments[6])
{
	uint64_t address = arguments[i], size = 0, total;
	int64_t at;
	int error;
	switch (a->shape) {
	case SHAPE_NUMBER:
	case SHAPE_TERMINAL:
		return;
	case SHAPE_ZERO:
		m->call.arguments[i] = 0;
		return;
	case SHAPE_MASK:
		m->call.arguments[i] = 0;
		if (address && arguments[i + 1] == sizeof m->signal_mask && !guest_read(tid, address, &m->signal_mask, 8))
			m->has_mask = 1;
		else if (address)
			m->call.arguments[i] = fault(address);      /* EINVAL by its length, or EFAULT */
		return;
	case SHAPE_SIGNALS:
		marshal_signals(m, tid, i, arguments);
		return;
	}
	if (!address)
		return;
	switch (a->shape) {
	case SHAPE_STRING:
	case SHAPE_TEXT:
		set_offset(m, i, copy_string(m, tid, address, a->size_add ? a->size_add : PATH_ROOM, a->shape == SHAPE_TEXT));
		return;
	case SHAPE_STRINGS:
		set_offset(m, i, copy_strings(m, tid, address));
		return;
	case SHAPE_EVENT:
		at = copy_in(m, tid, address, sizeof(struct sigevent));
		set_offset(m, i, at);
		if (at >= 0)
			notification(m, tid, at);
		return;
	case SHAPE_MASK6: {
		uint64_t pair[2];
		at = copy_in(m, tid, address, sizeof pair);
		set_offset(m, i, at);
		if (at < 0)
			return;
		memcpy(pair, m->image + at, sizeof pair);
		m->has_mask = pair[0] && pair[1] == sizeof m->signal_mask && !guest_read(tid, pair[0], &m->signal_mask, 8);
		set_u64(m, at, !pair[0] || m->has_mask ? 0 : fault(pair[0]));
		return;
	}
	case SHAPE_MSG_IN:
	case SHAPE_MSG_OUT:
	case SHAPE_MSG_PART:
		at = copy_in(m, tid, address, sizeof(struct msghdr));
		set_offset(m, i, at);
		if (at == -2 && begins(m, tid, address))
			m->failed = -ENOTSUP;
		if (at >= 0)
			message(m, tid, at, address, traffic_of(a->shape), returned);
		return;
	}
	error = buffer_size(a, arguments, tid, &size);
	if (error == -EFAULT) {
		m->call.arguments[i] = fault(address);
		return;
	}
	int is_vector = a->shape == SHAPE_IOV_IN || a->shape == SHAPE_IOV_OUT;
	if (is_vector && (error || size > VECTOR_LIMIT)) {
		m->call.arguments[i] = FAULT_ADDRESS;       /* EINVAL by its count, before the kernel looks */
		return;
	}
	if (error) {
		m->failed = error;
		return;
	}
	if (!size && address >> 47 && !is_vector)
		return;                 /* of no bytes, and yet the kernel may say EFAULT: that no program has memory there is enough */
	switch (a->shape) {
	case SHAPE_PART:
		if (a->writes == WRITES_AFTER && !has_room(m, tid, address, size)) {
			set_offset(m, i, -2);
			return;
		}
		/* fall through */
	case SHAPE_IN:
	case SHAPE_IN_PLACE:
	case SHAPE_INOUT:
	case SHAPE_TIMEX:
	case SHAPE_PROGRAM:
	case SHAPE_XATTR_IN:
	case SHAPE_XATTR_OUT:
		at = copy_in(m, tid, address, size);
		set_offset(m, i, at);
		if (at == -2 && begins(m, tid, address))
			m->failed = -ENOTSUP;
		if (at < 0)
			return;
		if (a->shape == SHAPE_PROGRAM)
			socket_program(m, tid, at, size);
		else if (a->shape == SHAPE_XATTR_IN || a->shape == SHAPE_XATTR_OUT)
			attribute(m, tid, at, size, a->shape == SHAPE_XATTR_OUT);
		else if (a->shape == SHAPE_TIMEX && memcmp(m->image + at, no_modes, sizeof no_modes))
			m->failed = -ENOTSUP;
		else if (a->shape != SHAPE_IN && size) {
			if (a->shape != SHAPE_PART && a->writes == WRITES_AFTER)
				wants_room(m, tid, address, size);
			add_written(m, a, at, address, size);
			if (a->shape == SHAPE_IN_PLACE) {
				m->call.place = address;
				m->call.place_argument = i;
				m->call.place_length = size;
			}
		}
		return;
	case SHAPE_OUT:
		at = a->writes != WRITES_AFTER || has_room(m, tid, address, size) ? behind_room(m, address, size) : -2;
		set_offset(m, i, at);
		if (at >= 0 && size)
			add_written(m, a, at, address, size);
		return;
	case SHAPE_IOV_IN:
	case SHAPE_IOV_OUT:
		at = copy_vector(m, tid, address, size, &total);
		set_offset(m, i, at);
		if (at >= 0)
			vector(m, tid, at, size, total, traffic_of(a->shape), returned);
		return;
	case SHAPE_MMSG_IN:
	case SHAPE_MMSG_OUT:
	case SHAPE_MMSG_PART:
		set_offset(m, i, message_vector(m, tid, address, size, traffic_of(a->shape)));
		return;
	}
}

/* Moves everything that lies behind the image to behind its final length. */
static void finish(struct marshalled *m)
{
	uint32_t base = (m->call.image + 511) & ~511u;
	for (int i = 0; i < 6; i++)
		if (m->call.offsets >> i & 1 && m->call.arguments[i] & BEHIND)
			m->call.arguments[i] = (m->call.arguments[i] & ~(uint64_t)BEHIND) + base;
	for (uint32_t i = 0; i < m->call.relocations; i++) {
		uint64_t value;
		memcpy(&value, m->image + m->relocations[i], 8);
		if (value & BEHIND)
			set_u64(m, m->relocations[i], (value & ~(uint64_t)BEHIND) + base);
	}
	for (uint32_t i = 0; i < m->call.outs; i++)
		if (m->outs[i].offset & BEHIND)
			m->outs[i].offset = (m->outs[i].offset & ~BEHIND) + base;
	m->call.area += base;
	if (m->call.area > SLOT_DATA)
		m->failed = -E2BIG;
}

int marshal_call(struct marshalled *m, int tid, const struct call_entry *entry, long number, const uint64_t arguments[6])
{
	m->call = (struct call){.sequence = m->call.sequence, .number = number, .place_argument = NO_PLACE};
	memcpy(m->call.arguments, arguments, entry->count * sizeof *arguments);    /* registers beyond hold anything */
	m->segments_count = 0;
	m->seen.end = 0;
	m->failed = m->has_mask = 0;
	for (int i = 0; i < entry->count && !m->failed; i++)
		if (entry->arguments[i].shape != SHAPE_NUMBER)
			marshal_argument(m, tid, &entry->arguments[i], i, arguments);
	if (!m->failed && m->room && results_overlap(m))
		m->failed = -ENOTSUP;
	if (!m->failed)
		finish(m);
	return m->failed;
}

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
