/* Pages of a process that stands still, into a socket without a copy: the process itself puts them into a pipe (vmsplice), and they go on
 * from there by reference. Until they have been received they are its own memory still: it must not run on, unless nobody wants them. */
#define _GNU_SOURCE
#include "pages/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL_US 10000000

_Static_assert(sizeof(struct run) == sizeof(struct iovec) && BATCH_RUNS * sizeof(struct iovec) <= PAGE, "runs are vectors of one page");

static void empty_pipe(int pipe, size_t bytes)
{
	char content[PAGE];

	while (bytes) {
		ssize_t size = read(pipe, content, bytes < sizeof content ? bytes : sizeof content);
		if (size == 0 || (size < 0 && errno != EINTR))
			return;
		if (size > 0)
			bytes -= size;
	}
}

int splice_in(struct splicer *splicer, const struct run *runs, unsigned count, size_t bytes)
{
	long size = count * sizeof *runs;
	long result = inject_write(splicer->tid, splicer->room, runs, size);

	if (result != size)
		return result < 0 ? (int)result : -EFAULT;
	result = inject_call(splicer->tid, splicer->instruction, splicer->pause_loop, &splicer->registers, CALL_US, &splicer->deferred,
	                     SYS_vmsplice, splicer->inside, splicer->room, count, SPLICE_F_NONBLOCK, 0, 0);
	if (result <= -INJECT_FAILED)
		return (int)(result + INJECT_FAILED);
	if (result == (long)bytes) {
		splicer->bytes += bytes;
		return 1;
	}
	if (result > 0)
		empty_pipe(splicer->pipe, result);
	splicer->refused++;
	return 0;
}
