/* What a process has written since somebody looked, and where it has pages, by what has been sent of it (history.c) and what its page tables
 * show (tables/scan.c). */
#include "pages/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int count_bytes(void *context, uint64_t start, uint64_t end, bool written)
{
	if (written)
		*(uint64_t *)context += end - start;
	return 0;
}

/* Returns how many bytes of [start, end) of pid are pages of its own (not the file's, not the zero page), or -errno. */
int64_t farhome_pages_own(int pid, uint64_t start, uint64_t end)
{
	uint64_t bytes = 0;
	int pagemap = open_proc(pid, "pagemap", O_RDONLY);
	if (pagemap < 0)
		return pagemap;
	int result = walk_pages(pagemap, SCAN_OWN, start, end, count_bytes, &bytes);
	close(pagemap);
	return result ? result : (int64_t)bytes;
}

/* Returns about how many bytes of the ranges, which are watched, pid has written since they were taken, or -errno. */
int64_t farhome_pages_written(int pid, const struct page_range *ranges, size_t count, const struct history *history)
{
	uint64_t bytes = 0;
	int pagemap = open_proc(pid, "pagemap", O_RDONLY), result = 0;
	if (pagemap < 0)
		return pagemap;
	for (size_t i = 0; i < count; i++)
		for (uint64_t at = ranges[i].start, next; at < ranges[i].end && !result; at = next) {
			bool dense;
			next = history_dense(history, at, ranges[i].end, &dense);
			result = walk_pages(pagemap, dense ? SCAN_DENSE : SCAN_TELL, at, next, count_bytes, &bytes);
		}
	close(pagemap);
	return result ? result : (int64_t)bytes;
}

struct runs {
	struct run *runs;
	size_t count, room;
	uint64_t start; /* of the range: nothing is joined with what is before it */
};
#define GAP_LEAST (16 * PAGE) /* bytes */

static int collect_run(void *context, uint64_t start, uint64_t end, bool written)
{
	struct runs *runs = context;
	struct run *last = runs->count ? &runs->runs[runs->count - 1] : NULL;

	if (!written)
		return 0;
	if (last && last->address >= runs->start && start - (last->address + last->length) <= GAP_LEAST) {
		last->length = end - last->address;
		return 0;
	}
	if (runs->count == runs->room) {
		size_t room = runs->room ? runs->room * 2 : 1024;
		struct run *more = realloc(runs->runs, room * sizeof *more);
		if (!more)
			return -ENOMEM;
		runs->runs = more;
		runs->room = room;
	}
	runs->runs[runs->count++] = (struct run){start, end - start};
	return 0;
}

/* Joins runs of the same range across ever greater gaps until there are few enough, or none that can be joined. */
static void join_runs(struct runs *runs, const struct page_range *ranges, size_t range_count, size_t most)
{
	for (uint64_t gap = 2 * GAP_LEAST; runs->count > most && gap < 1ull << 47; gap *= 2) {
		size_t kept = 0, range = 0;
		for (size_t i = 0; i < runs->count; i++) {
			const struct run run = runs->runs[i];
			struct run *last = kept ? &runs->runs[kept - 1] : NULL;
			while (range < range_count && ranges[range].end <= run.address)
				range++;
			if (last && range < range_count && last->address >= ranges[range].start &&
			    run.address - (last->address + last->length) <= gap)
				last->length = run.address + run.length - last->address;
			else
				runs->runs[kept++] = run;
		}
		runs->count = kept;
	}
}

/*
 * Where pid has pages of its own in the ranges (sorted), or, with a history, of which they are, those that it has written since they were
 * taken: about `most` runs, for which what lies between is counted in. Returns 0 or -errno; *found is the caller's to farhome_runs_free().
 */
int farhome_pages_runs(int pid, const struct page_range *ranges, size_t count, const struct history *history, size_t most,
                       struct run **found, size_t *found_count)
{
	struct runs runs = {0};
	int pagemap = open_proc(pid, "pagemap", O_RDONLY), result = 0;

	if (pagemap < 0)
		return pagemap;
	for (size_t i = 0; i < count && !result; i++) {
		runs.start = ranges[i].start;
		for (uint64_t at = ranges[i].start, next; at < ranges[i].end && !result; at = next) {
			bool dense = false;
			next = history ? history_dense(history, at, ranges[i].end, &dense) : ranges[i].end;
			result = walk_pages(pagemap, !history ? SCAN_OWN : dense ? SCAN_DENSE : SCAN_TELL, at, next, collect_run, &runs);
		}
	}
	close(pagemap);
	if (result) {
		free(runs.runs);
		return result;
	}
	join_runs(&runs, ranges, count, most);
	*found = runs.runs;
	*found_count = runs.count;
	return 0;
}
