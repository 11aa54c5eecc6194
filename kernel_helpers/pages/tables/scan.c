/* Which pages a process has of its own, and which of them it has written since somebody looked (PAGEMAP_SCAN, and a userfaultfd that
 * protects pages against writing without anybody having to answer: UFFD_FEATURE_WP_ASYNC, both Linux 6.7). */
#define _GNU_SOURCE
#include "pages/tables/pagemap.h"
#include "process/guest_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define PAGEMAP_WORDS 65536
#define TAKEN_AT_ONCE 16384 /* pages: meanwhile nobody writes into a guest */

#define FEATURE_WP_ASYNC (1u << 15)

static int walk_scan(int pagemap, enum scan scan, uint64_t start, uint64_t end, found_pages found, void *context)
{
	struct scan_region regions[SCAN_REGIONS];
	bool takes = scan == SCAN_TAKE || scan == SCAN_DENSE_TAKE, dense = scan == SCAN_DENSE || scan == SCAN_DENSE_TAKE;
	bool marked = scan == SCAN_MARKED;
	uint64_t guard = guard_category(), left_out = IS_FILE | IS_ZERO_PAGE | (marked ? 0 : guard);

	while (start < end) {
		struct scan_argument argument = {
			.size = sizeof argument,
			.start = start,
			.end = end,
			.flags = takes ? FLAG_PROTECT : 0,
			.vec = (uintptr_t)regions,
			.vec_len = SCAN_REGIONS,
			.max_pages = takes                       ? TAKEN_AT_ONCE
			             : scan == SCAN_ANY && guard ? 1
			                                         : 0,
			.category_inverted = left_out,
			.category_mask = left_out | (takes ? IS_WATCHED | IS_WRITTEN : 0),
			.category_anyof_mask = IS_PRESENT | IS_SWAPPED,
			/* Regions of different categories come apart: what the caller's batches join again. */
			.return_mask = (scan == SCAN_TELL ? IS_WRITTEN : IS_PRESENT) | (guard ? 0 : IS_SWAPPED) | (marked ? guard : 0),
		};
		if (dense) { /* for these very masks the kernel has a way of its own, which looks at one bit of an entry */
			argument.category_inverted = argument.category_anyof_mask = 0;
			argument.category_mask = argument.return_mask = IS_WRITTEN;
		}
		/* Nobody may be half-way through writing a page when it is taken (process/guest_memory.h). */
		if (takes)
			guest_memory_take();
		int count = ioctl(pagemap, PAGEMAP_SCAN_REQUEST, &argument);
		int error = errno;
		if (takes)
			guest_memory_taken();
		if (count < 0)
			return -error;
		for (int i = 0; i < count; i++) {
			bool written = scan != SCAN_TELL || regions[i].categories & IS_WRITTEN;
			bool may_be_guards = !guard && !dense && regions[i].categories & IS_SWAPPED;
			bool is_marked = marked && (may_be_guards || regions[i].categories & guard);
			int result = is_marked ? found(context, regions[i].start, regions[i].end, false) : 0;
			if (!result && may_be_guards)
				result = walk_guards(pagemap, regions[i].start, regions[i].end, false, written, found, context);
			else if (!is_marked)
				result = found(context, regions[i].start, regions[i].end, written);
			if (result)
				return result;
		}
		if (argument.walk_end <= start)
			return -EIO;
		start = argument.walk_end;
	}
	return 0;
}

/* The same from the words of /proc/PID/pagemap. A page of the kernel's zero page counts as present here. */
static int walk_words(int pagemap, uint64_t start, uint64_t end, found_pages found, void *context)
{
	uint64_t *words = malloc(PAGEMAP_WORDS * sizeof *words);
	int result = 0;

	if (!words)
		return -ENOMEM;
	while (start < end && !result) {
		size_t wanted = (end - start) / PAGE;
		if (wanted > PAGEMAP_WORDS)
			wanted = PAGEMAP_WORDS;
		ssize_t size = pread(pagemap, words, wanted * sizeof *words, start / PAGE * sizeof *words);
		if (size < (ssize_t)sizeof *words) {
			result = size < 0 ? -errno : -EIO;
			break;
		}
		size_t count = size / sizeof *words, first = count;
		for (size_t i = 0; i <= count && !result; i++) {
			bool own = i < count && (words[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) && !(words[i] & PAGEMAP_FILE) &&
			           !is_guard(words[i]);
			if (own && first == count)
				first = i;
			else if (!own && first != count) {
				result = found(context, start + first * PAGE, start + i * PAGE, true);
				first = count;
			}
		}
		start += count * PAGE;
	}
	free(words);
	return result;
}

/* Calls found with each run of pages, in order. SCAN_TAKE and SCAN_TELL: where farhome_watch() watches. Returns what found returns
 * when that is not 0; -errno. */
int walk_pages(int pagemap, enum scan scan, uint64_t start, uint64_t end, found_pages found, void *context)
{
	static int without_scan;

	if (scan != SCAN_OWN && scan != SCAN_ANY && scan != SCAN_MARKED)
		return walk_scan(pagemap, scan, start, end, found, context);
	if (!__atomic_load_n(&without_scan, __ATOMIC_RELAXED)) {
		int result = walk_scan(pagemap, scan, start, end, found, context);
		if (result != -ENOTTY && result != -EINVAL && result != -EOPNOTSUPP)
			return result;
		__atomic_store_n(&without_scan, 1, __ATOMIC_RELAXED);
	}
	return walk_words(pagemap, start, end, found, context);
}

/* Makes a fresh userfaultfd one that watches writes by itself. Returns 0 or -errno (-EINVAL: this kernel cannot). */
int farhome_watch_begin(int userfaultfd)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_ASYNC};
	return ioctl(userfaultfd, UFFDIO_API, &api) ? -errno : 0;
}

/* Ends it for [start, end). Returns 0 or -errno. */
int farhome_unwatch(int userfaultfd, uint64_t start, uint64_t end)
{
	struct uffdio_range range = {start, end - start};
	return ioctl(userfaultfd, UFFDIO_UNREGISTER, &range) ? -errno : 0;
}

/* Writes to [start, end), private memory without a file, are watched from now on: until the descriptor is closed, or the memory is
 * mapped anew. Every page counts as written. Returns 0 or -errno. */
int farhome_watch(int userfaultfd, uint64_t start, uint64_t end)
{
	struct uffdio_register request = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_WP};
	farhome_unwatch(userfaultfd, start, end); /* what was taken once would not count as written */
	return ioctl(userfaultfd, UFFDIO_REGISTER, &request) ? -errno : 0;
}
