/* Guards in a process's memory (MADV_GUARD_INSTALL, Linux 6.13): marks in its page tables, which are no pages. */
#define _GNU_SOURCE
#include "pages/tables/pagemap.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

bool is_guard(uint64_t word)
{
	return !(word & PAGEMAP_PRESENT) && word & PAGEMAP_SWAPPED &&
	       (word & PAGEMAP_GUARD || ((word & 31) == MARKER_TYPE && word >> 5 & MARKER_GUARD));
}

uint64_t guard_category(void)
{
	static int known; /* 1: yes, -1: no */

	if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) {
		struct scan_region region;
		struct scan_argument argument = {.size = sizeof argument,
		                                 .end = PAGE,
		                                 .vec = (uintptr_t)&region,
		                                 .vec_len = 1,
		                                 .category_mask = IS_GUARD,
		                                 .return_mask = IS_GUARD};
		int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
		int result = pagemap < 0 ? -1 : ioctl(pagemap, PAGEMAP_SCAN_REQUEST, &argument);
		if (pagemap >= 0)
			close(pagemap);
		__atomic_store_n(&known, result < 0 ? -1 : 1, __ATOMIC_RELAXED);
	}
	return __atomic_load_n(&known, __ATOMIC_RELAXED) > 0 ? IS_GUARD : 0;
}

int walk_guards(int pagemap, uint64_t start, uint64_t end, bool guards, bool written, found_pages found, void *context)
{
	uint64_t words[SCAN_REGIONS];
	uint64_t first = start;

	while (start < end) {
		size_t wanted = (end - start) / PAGE < SCAN_REGIONS ? (end - start) / PAGE : SCAN_REGIONS;
		ssize_t size = pread(pagemap, words, wanted * sizeof *words, start / PAGE * sizeof *words);
		if (size < (ssize_t)sizeof *words)
			return size < 0 ? -errno : -EIO;
		for (size_t i = 0; i < size / sizeof *words; i++, start += PAGE)
			if (is_guard(words[i]) != guards) {
				int result = first < start ? found(context, first, start, written) : 0;
				if (result)
					return result;
				first = start + PAGE;
			}
	}
	return first < end ? found(context, first, end, written) : 0;
}

struct spans {
	uint64_t (*spans)[2];
	size_t count, room;
};

static int collect_span(void *context, uint64_t start, uint64_t end, bool written)
{
	struct spans *spans = context;

	(void)written;
	if (spans->count && spans->spans[spans->count - 1][1] == start)
		spans->spans[spans->count - 1][1] = end;
	else if (spans->count == spans->room)
		return 1;
	else
		spans->spans[spans->count][0] = start, spans->spans[spans->count++][1] = end;
	return 0;
}

/* As walk_scan, of guards: where a category reports them, or, with words, of what may be swapped. */
static int find_guards(int pagemap, bool words, uint64_t start, uint64_t end, struct spans *found)
{
	struct scan_region regions[SCAN_REGIONS];
	uint64_t category = words ? IS_SWAPPED : IS_GUARD;

	while (start < end) {
		struct scan_argument argument = {.size = sizeof argument,
		                                 .start = start,
		                                 .end = end,
		                                 .vec = (uintptr_t)regions,
		                                 .vec_len = SCAN_REGIONS,
		                                 .category_mask = category,
		                                 .return_mask = category};
		int count = ioctl(pagemap, PAGEMAP_SCAN_REQUEST, &argument), result = 0;
		if (count < 0)
			return -errno;
		for (int i = 0; i < count && !result; i++)
			result = words ? walk_guards(pagemap, regions[i].start, regions[i].end, true, true, collect_span, found)
			               : collect_span(found, regions[i].start, regions[i].end, true);
		if (result)
			return result;
		if (argument.walk_end <= start)
			return -EIO;
		start = argument.walk_end;
	}
	return 0;
}

/* Where a process has guards (MADV_GUARD_INSTALL) in the ranges (sorted): start and end of each run into spans. words: found by the words of
 * pagemap, as where there is no category. Returns how many runs, at most room; 0 also where there is no PAGEMAP_SCAN, and no guards
 * therefore; -errno. */
int64_t farhome_pages_guards(int pid, const struct page_range *ranges, size_t count, uint64_t (*spans)[2], size_t room, int words)
{
	struct spans found = {spans, 0, room};
	int pagemap = open_proc(pid, "pagemap", O_RDONLY), result = 0;

	if (pagemap < 0)
		return pagemap;
	for (size_t i = 0; i < count && !result; i++)
		result = find_guards(pagemap, words || !guard_category(), ranges[i].start, ranges[i].end, &found);
	close(pagemap);
	if (result == -EINVAL || result == -ENOTTY || result == -EOPNOTSUPP)
		return 0;
	return result < 0 ? result : (int64_t)found.count;
}
