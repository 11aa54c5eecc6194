/* The content of pages of a process. */
#define _GNU_SOURCE
#include "pages/tables/tables.h"
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

bool is_zero_page(const char *page)
{
	const uint64_t *word = (const void *)page;
	return !word[0] && !word[PAGE / 8 - 1] && !memcmp(page, page + 8, PAGE - 8);
}

int read_pages(int pid, int memory, const struct run *runs, unsigned count, char *buffer, size_t bytes, bool runs_on)
{
	struct iovec remote[BATCH_RUNS];
	char *next = buffer;
	size_t left = bytes;
	unsigned index = 0;
	uint64_t skip = 0; /* bytes of runs[index] that are read */

	while (left) {
		unsigned parts = 0;
		for (unsigned i = index; i < count; i++, parts++)
			remote[parts] = (struct iovec){(void *)(runs[i].address + (i == index ? skip : 0)),
			                               runs[i].length - (i == index ? skip : 0)};
		struct iovec local = {next, left};
		ssize_t size = process_vm_readv(pid, &local, 1, remote, parts, 0);
		if (size <= 0) {
			if (size < 0 && errno != EFAULT)
				return -errno;
			size = pread(memory, next, remote[0].iov_len, (off_t)(uintptr_t)remote[0].iov_base);
			if (size <= 0 && !runs_on)
				return size < 0 ? -errno : -EFAULT;
			if (size <= 0) { /* it has unmapped the page meanwhile: nothing, for now */
				size = PAGE - (uintptr_t)remote[0].iov_base % PAGE;
				memset(next, 0, size);
			}
		}
		next += size;
		left -= size;
		skip += size;
		while (index < count && skip >= runs[index].length)
			skip -= runs[index++].length;
	}
	return 0;
}
