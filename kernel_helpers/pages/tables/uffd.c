/* Pages put where they are missing, by a userfaultfd. */
#include "pages/tables/tables.h"
#include <errno.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

int64_t uffd_fill(int userfaultfd, uint64_t start, const char *content, uint64_t length)
{
	int64_t done;
	int result;

	if (content) {
		struct uffdio_copy copy = {.dst = start, .src = (uintptr_t)content, .len = length};
		result = ioctl(userfaultfd, UFFDIO_COPY, &copy);
		done = copy.copy;
	} else {
		struct uffdio_zeropage zero = {.range = {start, length}};
		result = ioctl(userfaultfd, UFFDIO_ZEROPAGE, &zero);
		done = zero.zeropage;
	}
	if (!result)
		return length;
	if (errno == EAGAIN)
		return done > 0 ? done : 0;
	return -errno;
}

void uffd_wake(int userfaultfd, uint64_t start, uint64_t length)
{
	struct uffdio_range range = {start, length};
	ioctl(userfaultfd, UFFDIO_WAKE, &range);
}
