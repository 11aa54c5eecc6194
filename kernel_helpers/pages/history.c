/* What has been sent of a process's memory while it ran (struct history in pages.h). */
#include "pages/pages.h"
#include <stdlib.h>
#include <string.h>

static size_t words_of(const struct area *area)
{
	return ((area->end - area->start) / PAGE + 63) / 64;
}

void farhome_history_free(struct history *history)
{
	for (size_t i = 0; history && i < history->count; i++)
		free(history->areas[i].sent);
	free(history);
}

/* Of `count` areas, sorted and apart, of which nothing has been sent. NULL: no memory. */
struct history *farhome_history_new(const struct page_range *ranges, size_t count)
{
	struct history *history = calloc(1, sizeof *history + count * sizeof history->areas[0]);

	if (!history)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		struct area *area = &history->areas[history->count++];
		*area = (struct area){.start = ranges[i].start, .end = ranges[i].end};
		area->sent = calloc(2 * words_of(area), sizeof *area->sent);
		if (!area->sent) {
			farhome_history_free(history);
			return NULL;
		}
		area->gone = area->sent + words_of(area);
	}
	return history;
}

/* The first area that ends behind the address. */
static size_t find(const struct history *history, uint64_t address)
{
	size_t low = 0, high = history->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (history->areas[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_set(const uint64_t *bits, size_t page)
{
	return bits[page / 64] >> page % 64 & 1;
}

static void change(uint64_t *bits, size_t first, size_t end, bool value)
{
	while (first < end) {
		size_t last = first / 64 * 64 + 64;
		if (last > end)
			last = end;
		uint64_t mask = (last - first == 64 ? ~0ull : (1ull << (last - first)) - 1) << first % 64;
		if (value)
			bits[first / 64] |= mask;
		else
			bits[first / 64] &= ~mask;
		first = last;
	}
}

bool history_has(const struct history *history, uint64_t page, size_t *hint)
{
	size_t index = *hint;

	if (index >= history->count || page < history->areas[index].start || page >= history->areas[index].end)
		*hint = index = find(history, page);
	if (index == history->count || page < history->areas[index].start)
		return false;
	return is_set(history->areas[index].sent, (page - history->areas[index].start) / PAGE);
}

/* Whether area `index` has a part of [start, end): its pages [*first, *last), counted from the area's start. */
static bool part(const struct history *history, size_t index, uint64_t start, uint64_t end, size_t *first, size_t *last)
{
	if (index == history->count || history->areas[index].start >= end)
		return false;
	const struct area *area = &history->areas[index];
	*first = (start > area->start ? start - area->start : 0) / PAGE;
	*last = ((end < area->end ? end : area->end) - area->start) / PAGE;
	return true;
}

void history_mark(struct history *history, uint64_t start, uint64_t end)
{
	for (size_t i = find(history, start), first, last; part(history, i, start, end, &first, &last); i++) {
		const struct area *area = &history->areas[i];
		change(area->sent, first, last, true);
	}
}

void history_look(struct history *history, uint64_t start, uint64_t end)
{
	for (size_t i = find(history, start), first, last; part(history, i, start, end, &first, &last); i++) {
		const struct area *area = &history->areas[i];
		for (size_t page = first; page < last;) {
			if (page % 64 == 0 && last - page >= 64) {
				area->gone[page / 64] = area->sent[page / 64];
				page += 64;
			} else {
				change(area->gone, page, page + 1, is_set(area->sent, page));
				page++;
			}
		}
	}
}

void history_seen(struct history *history, uint64_t start, uint64_t end)
{
	for (size_t i = find(history, start), first, last; part(history, i, start, end, &first, &last); i++) {
		const struct area *area = &history->areas[i];
		change(area->gone, first, last, false);
	}
}

size_t history_pages(const struct history *history, uint64_t start, uint64_t end)
{
	size_t pages = 0;

	for (size_t i = find(history, start), first, last; part(history, i, start, end, &first, &last); i++)
		for (size_t page = first; page < last;)
			if (page % 64 == 0 && last - page >= 64) {
				pages += __builtin_popcountll(history->areas[i].sent[page / 64]);
				page += 64;
			} else {
				pages += is_set(history->areas[i].sent, page++);
			}
	return pages;
}

uint64_t history_dense(const struct history *history, uint64_t start, uint64_t end, bool *dense)
{
	uint64_t at = start;

	while (at < end) {
		uint64_t next = at / CHUNK * CHUNK + CHUNK < end ? at / CHUNK * CHUNK + CHUNK : end;
		bool is_dense = history_pages(history, at, next) * PAGE * 2 >= next - at;
		if (at == start)
			*dense = is_dense;
		else if (is_dense != *dense)
			break;
		at = next;
	}
	return at;
}

int history_gone(const struct history *history, uint64_t start, uint64_t end, found_pages found, void *context)
{
	for (size_t i = find(history, start), first, last; part(history, i, start, end, &first, &last); i++) {
		const struct area *area = &history->areas[i];
		for (size_t page = first; page < last;) {
			if (!area->gone[page / 64]) {
				page = page / 64 * 64 + 64;
				continue;
			}
			if (!is_set(area->gone, page)) {
				page++;
				continue;
			}
			size_t from = page;
			while (page < last && is_set(area->gone, page))
				page++;
			int result = found(context, area->start + from * PAGE, area->start + page * PAGE, false);
			if (result)
				return result;
		}
	}
	return 0;
}
