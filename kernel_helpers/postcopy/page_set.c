/* Sets of pages of some spans of memory (struct page_set in postcopy.h). */
#include "postcopy/postcopy.h"
#include <stdlib.h>
#include <string.h>

struct page_set *page_set_new(const struct run *runs, size_t count, bool full)
{
	struct page_set *set = calloc(1, sizeof *set + count * sizeof set->spans[0]);
	uint64_t pages = 0;

	if (!set)
		return NULL;
	set->count = count;
	for (size_t i = 0; i < count; i++) {
		set->spans[i].start = runs[i].address;
		set->spans[i].end = runs[i].address + runs[i].length;
		set->spans[i].first = pages;
		pages += runs[i].length / PAGE;
	}
	set->bits = calloc(pages / 64 + 1, sizeof *set->bits);
	if (!set->bits) {
		free(set);
		return NULL;
	}
	for (size_t i = 0; full && i < count; i++)
		page_set_change(set, set->spans[i].start, set->spans[i].end, true);
	return set;
}

static uint64_t pages_of(const struct page_set *set)
{
	return set->count ? set->spans[set->count - 1].first + (set->spans[set->count - 1].end - set->spans[set->count - 1].start) / PAGE
	                  : 0;
}

struct page_set *page_set_copy(const struct page_set *set)
{
	size_t size = sizeof *set + set->count * sizeof set->spans[0], words = pages_of(set) / 64 + 1;
	struct page_set *copy = malloc(size);

	if (!copy)
		return NULL;
	memcpy(copy, set, size);
	copy->bits = malloc(words * sizeof *copy->bits);
	if (!copy->bits) {
		free(copy);
		return NULL;
	}
	memcpy(copy->bits, set->bits, words * sizeof *copy->bits);
	return copy;
}

void page_set_free(struct page_set *set)
{
	if (set)
		free(set->bits);
	free(set);
}

/* The first span that ends behind the address. */
static size_t find(const struct page_set *set, uint64_t address)
{
	size_t low = 0, high = set->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (set->spans[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_set(const struct page_set *set, uint64_t number)
{
	return set->bits[number / 64] >> number % 64 & 1;
}

bool page_set_has(const struct page_set *set, uint64_t page)
{
	size_t i = find(set, page);
	return i < set->count && set->spans[i].start <= page && is_set(set, set->spans[i].first + (page - set->spans[i].start) / PAGE);
}

void page_set_change(struct page_set *set, uint64_t start, uint64_t end, bool value)
{
	for (size_t i = find(set, start); i < set->count && set->spans[i].start < end; i++) {
		uint64_t from = start > set->spans[i].start ? start : set->spans[i].start,
			 to = end < set->spans[i].end ? end : set->spans[i].end;
		uint64_t number = set->spans[i].first + (from - set->spans[i].start) / PAGE, last = number + (to - from) / PAGE;
		for (; number < last; number++) {
			uint64_t bit = 1ull << number % 64, *word = &set->bits[number / 64];
			if (!!(*word & bit) == value)
				continue;
			*word ^= bit;
			if (value)
				set->left++;
			else
				set->left--;
		}
	}
}

bool page_set_next(const struct page_set *set, uint64_t from, uint64_t most, struct run *run)
{
	for (size_t i = find(set, from); i < set->count; i++) {
		uint64_t start = set->spans[i].start, number = set->spans[i].first, last = number + (set->spans[i].end - start) / PAGE;
		if (from > start)
			number += (from - start) / PAGE;
		while (number < last) {
			if (!set->bits[number / 64]) {
				number = number / 64 * 64 + 64;
				continue;
			}
			if (!is_set(set, number)) {
				number++;
				continue;
			}
			uint64_t end = number;
			while (end < last && is_set(set, end) && (end - number + 1) * PAGE <= most)
				end++;
			*run = (struct run){start + (number - set->spans[i].first) * PAGE, (end - number) * PAGE};
			return true;
		}
	}
	return false;
}
