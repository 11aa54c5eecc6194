/* Calls by which the process gets descriptors that others have opened: one may be a signalfd. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "link/home/threads/parts.h"

static const char NAME[] = "anon_inode:[signalfd]";

static int is_signalfd(struct home *h, int fd)
{
	char path[40], name[sizeof NAME];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h->stub_pid, fd);
	return readlink(path, name, sizeof name) == sizeof NAME - 1 && !memcmp(name, NAME, sizeof NAME - 1);
}

/* Where the data area has `size` bytes that are at this address in the stub; NULL: it has not. */
static const unsigned char *at_stub(struct home *h, struct home_thread *t, uint64_t address, uint64_t size)
{
	uint64_t offset = address - data_in_stub(h, t);
	return offset <= SLOT_DATA && size <= SLOT_DATA - offset ? data_of(t) + offset : NULL;
}

static int has_signalfd(struct home *h, struct home_thread *t, const unsigned char *message)
{
	struct msghdr m;
	struct cmsghdr c;
	memcpy(&m, message, sizeof m);
	const unsigned char *control = m.msg_control ? at_stub(h, t, (uint64_t)m.msg_control, m.msg_controllen) : NULL;
	for (uint64_t at = 0; control && at + sizeof c <= m.msg_controllen; at += CMSG_ALIGN(c.cmsg_len)) {
		memcpy(&c, control + at, sizeof c);
		if (c.cmsg_len < sizeof c || c.cmsg_len > m.msg_controllen - at)
			return 0;
		int fd;
		for (uint64_t i = CMSG_LEN(0); c.cmsg_level == SOL_SOCKET && c.cmsg_type == SCM_RIGHTS && i + sizeof fd <= c.cmsg_len;
		     i += sizeof fd) {
			memcpy(&fd, control + at + i, sizeof fd);
			if (is_signalfd(h, fd))
				return 1;
		}
	}
	return 0;
}

int home_has_received(struct home *h, struct home_thread *t)
{
	int64_t value = t->slot->value;
	uint64_t at = t->call.arguments[1], each = t->call.number == SYS_recvmmsg ? sizeof(struct mmsghdr) : sizeof(struct msghdr);
	if (t->call.number == SYS_pidfd_getfd)
		return value >= 0 && is_signalfd(h, (int)value);
	if (value < 0 || !(t->call.offsets >> 1 & 1))
		return 0;
	uint64_t count = t->call.number == SYS_recvmmsg ? (uint64_t)value : 1;
	for (uint64_t i = 0; i < count && at <= SLOT_DATA && at + (i + 1) * each <= SLOT_DATA; i++)
		if (has_signalfd(h, t, data_of(t) + at + i * each))
			return 1;
	return 0;
}
