/* What a call may do to the numbers of a guest: see direct_spans.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "link/away/direct/direct_spans.h"
#include "link/marshal/data_area.h"

#define EVERY (struct span){0, ~0u}

/* Whether a message may have descriptors with it. */
static int has_control(const struct direct_call *call)
{
	struct msghdr message;
	return guest_read(call->host_tid, call->arguments[1], &message, sizeof message) || message.msg_controllen;
}

/* Whether what is opened may show descriptors of the guest, their positions too. */
static int opens_positions(const struct direct_call *call)
{
	char path[PATH_ROOM + 1];
	uint64_t at = call->arguments[call->number == SYS_open ? 0 : 1];
	return guest_string(call->host_tid, at, path, PATH_ROOM) > 0 && !strncmp(path, "/proc/", 6) && strstr(path, "/fdinfo");
}

/* Whether what a call makes is a thread, which at home has the same descriptors. */
static int makes_thread(const struct direct_call *call)
{
	uint64_t flags = call->arguments[0];
	if (call->number == SYS_clone3 && guest_read(call->host_tid, call->arguments[0], &flags, sizeof flags))
		return 0;
	return (flags & CLONE_THREAD) != 0;
}

unsigned direct_touched(const struct direct_call *call, struct span spans[2])
{
	const uint64_t *a = call->arguments;
	spans[0] = direct_span(a[0]);
	spans[1] = direct_span(a[0]);
	switch (call->number) {
	case SYS_close:
	case SYS_dup:
	case SYS_ioctl:
	case SYS_preadv2:
	case SYS_lseek:
		return 1;
	case SYS_fcntl:
		return (int)a[1] != F_GETFD && (int)a[1] != F_SETFD && (int)a[1] != F_GETFL;
	case SYS_mmap:
		spans[0] = direct_span(a[4]); /* the number is needed for what is mapped */
		return !(a[3] & MAP_ANONYMOUS);
	case SYS_dup2:
	case SYS_dup3:
	case SYS_sendfile:
	case SYS_tee:
		spans[1] = direct_span(a[1]);
		return 2;
	case SYS_splice:
	case SYS_copy_file_range:
		spans[1] = direct_span(a[2]);
		return 2;
	case SYS_close_range:
		spans[0] = (struct span){a[0], a[1]};
		return 1;
	case SYS_sendmsg:
		spans[0] = EVERY;
		return has_control(call);
	case SYS_open:
	case SYS_openat:
	case SYS_openat2:
		spans[0] = EVERY;
		return opens_positions(call);
	case SYS_clone:
	case SYS_clone3:
		spans[0] = EVERY;
		return !makes_thread(call);
	case SYS_sendmmsg:
	case SYS_fork:
	case SYS_vfork:
	case SYS_execve:
	case SYS_execveat:
	case SYS_unshare:
		spans[0] = EVERY;
		return 1;
	}
	return 0;
}

int direct_reads(const struct direct_call *call)
{
	const uint64_t *a = call->arguments;
	switch (call->number) {
	case SYS_read:
	case SYS_readv:
	case SYS_pread64:
	case SYS_preadv:
	case SYS_lseek:
		return 1;
	case SYS_preadv2:
		return !a[5];
	}
	return 0;
}

int direct_names_place(const struct direct_call *call)
{
	return call->number == SYS_pread64 || call->number == SYS_preadv ||
	       (call->number == SYS_preadv2 && (int64_t)call->arguments[3] != -1);
}
