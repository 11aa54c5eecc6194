/* An address space whose pages follow it: where what is lacking lies now, whatever the process does to its mappings meanwhile. */
#define _GNU_SOURCE
#include "postcopy/address_space.h"
#include "pages/tables/pagemap.h"
#include "pages/tables/tables.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory at [start, end) now that was at `source` when it was left. */
struct place {
	uint64_t start, end, source;
};

struct address_space {
	int userfaultfd, pagemap; /* pagemap: -1 of children, of which nobody reports which they are */
	bool gone;
	struct page_set *lacking; /* by where the pages were when they were left, as all sets here */
	struct place *places;
	size_t count;
};

struct address_space *address_space_new(int pid, int userfaultfd)
{
	struct address_space *space = calloc(1, sizeof *space);

	if (space) {
		space->userfaultfd = userfaultfd;
		space->pagemap = pid > 0 ? open_proc(pid, "pagemap", O_RDONLY) : -1;
	}
	return space;
}

static void drop(struct address_space *space)
{
	if (space->pagemap >= 0)
		close(space->pagemap);
	page_set_free(space->lacking);
	free(space->places);
	free(space);
}

struct address_space *address_space_child(const struct address_space *parent, int userfaultfd)
{
	struct address_space *child = address_space_new(0, userfaultfd);

	if (!child)
		return NULL;
	child->lacking = page_set_copy(parent->lacking);
	child->places = calloc(parent->count + 1, sizeof *child->places);
	if (!child->lacking || !child->places) {
		drop(child);
		return NULL;
	}
	memcpy(child->places, parent->places, parent->count * sizeof *child->places);
	child->count = parent->count;
	return child;
}

void address_space_free(struct address_space *space)
{
	close(space->userfaultfd);
	drop(space);
}

int address_space_userfaultfd(const struct address_space *space)
{
	return space->userfaultfd;
}

int address_space_owe(struct address_space *space, const struct run *runs, size_t count)
{
	space->lacking = page_set_new(runs, count, true);
	space->places = calloc(count + 1, sizeof *space->places);
	if (!space->lacking || !space->places)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		space->places[space->count++] = (struct place){runs[i].address, runs[i].address + runs[i].length, runs[i].address};
	return 0;
}

bool address_space_owes(const struct address_space *space)
{
	return space->lacking;
}

bool address_space_is_gone(const struct address_space *space)
{
	return space->gone;
}

/* -- what the process does ------------------------------------------------------------------------------------------------ */

bool address_space_lacks(const struct address_space *space, uint64_t page, uint64_t *source)
{
	for (size_t i = 0; i < space->count; i++) {
		const struct place *place = &space->places[i];
		if (page < place->start || page >= place->end)
			continue;
		*source = place->source + (page - place->start);
		return page_set_has(space->lacking, *source);
	}
	return false;
}

void address_space_zero(const struct address_space *space, uint64_t page)
{
	if (uffd_fill(space->userfaultfd, page, NULL, PAGE) <= 0) /* it is there by now, or the mapping is not: touched again, that shows */
		uffd_wake(space->userfaultfd, page, PAGE);
}

/* The process has no more what was at [start, end); and, if it is unmapped, nothing comes there. Returns 0 or -errno. */
static int forget(struct address_space *space, uint64_t start, uint64_t end, bool unmapped)
{
	for (size_t i = 0; i < space->count;) {
		struct place place = space->places[i];
		uint64_t from = start > place.start ? start : place.start, to = end < place.end ? end : place.end;
		if (from >= to) {
			i++;
			continue;
		}
		page_set_change(space->lacking, place.source + (from - place.start), place.source + (to - place.start), false);
		if (!unmapped) {
			i++;
			continue;
		}
		struct place *more = realloc(space->places, (space->count + 2) * sizeof *more); /* what is left on both sides of it */
		if (!more)
			return -ENOMEM;
		space->places = more;
		more[i] = more[--space->count];
		if (place.start < from)
			more[space->count++] = (struct place){place.start, from, place.source};
		if (to < place.end)
			more[space->count++] = (struct place){to, place.end, place.source + (to - place.start)};
	}
	return 0;
}

/* Memory was moved from `from` to `to`. */
static int moved(struct address_space *space, uint64_t from, uint64_t to, uint64_t length)
{
	struct place *result = calloc(3 * space->count + 1, sizeof *result);
	size_t count = 0;

	if (!result)
		return -ENOMEM;
	for (size_t i = 0; i < space->count; i++) {
		struct place place = space->places[i];
		uint64_t start = from > place.start ? from : place.start, end = from + length < place.end ? from + length : place.end;
		if (start >= end) {
			result[count++] = place;
			continue;
		}
		if (place.start < start)
			result[count++] = (struct place){place.start, start, place.source};
		result[count++] = (struct place){start - from + to, end - from + to, place.source + (start - place.start)};
		if (end < place.end)
			result[count++] = (struct place){end, place.end, place.source + (end - place.start)};
	}
	free(space->places);
	space->places = result;
	space->count = count;
	return 0;
}

int address_space_change(struct address_space *space, const struct uffd_msg *message)
{
	int result = 0;

	if (message->event == UFFD_EVENT_REMOVE || message->event == UFFD_EVENT_UNMAP) {
		uint64_t start = message->arg.remove.start, end = message->arg.remove.end;
		result = forget(space, start, end, message->event == UFFD_EVENT_UNMAP);
		uffd_wake(space->userfaultfd, start, end - start);
	} else if (message->event == UFFD_EVENT_REMAP) {
		uint64_t from = message->arg.remap.from, length = message->arg.remap.len;
		result = moved(space, from, message->arg.remap.to, length);
		uffd_wake(space->userfaultfd, from, length);
	}
	return result;
}

/* -- what comes -------------------------------------------------------------------------------------------------------------- */

/* Bytes from start on before the first guard (MADV_GUARD_INSTALL): a page that is put there takes its place. */
static uint64_t before_guard(const struct address_space *space, uint64_t start, uint64_t length)
{
	uint64_t words[SCAN_REGIONS];

	if (space->pagemap < 0)
		return length;
	if (length > SCAN_REGIONS * PAGE)
		length = SCAN_REGIONS * PAGE;
	ssize_t size = pread(space->pagemap, words, length / PAGE * sizeof *words, start / PAGE * sizeof *words);
	for (ssize_t i = 0; i < size / (ssize_t)sizeof *words; i++)
		if (is_guard(words[i]))
			return i * PAGE;
	return length;
}

/* Returns how many bytes are dealt with; 0: the process is changing its mappings; -ESRCH: it has ended; -errno. */
static int64_t fill(const struct address_space *space, uint64_t start, const char *content, uint64_t length)
{
	length = before_guard(space, start, length);
	int64_t done = length ? uffd_fill(space->userfaultfd, start, content, length) : -EEXIST;

	if (done == -EEXIST) {
		uffd_wake(space->userfaultfd, start, PAGE);
		return PAGE;
	}
	if (done != -ENOENT && done != -EINVAL)
		return done;
	/* Not one mapping of ours any more: two of them (a part was protected, say), or the page is not mapped, or by something else. */
	return length > PAGE ? fill(space, start, content, PAGE) : PAGE;
}

/* Where the page that was at `source` is now, or NULL. */
static const struct place *place_of(const struct address_space *space, uint64_t source)
{
	for (size_t i = 0; i < space->count; i++) {
		const struct place *place = &space->places[i];
		if (source >= place->source && source < place->source + (place->end - place->start))
			return place;
	}
	return NULL;
}

int address_space_put(struct address_space *space, const struct run *run, const char *content, uint64_t *done)
{
	uint64_t end = run->address + run->length;
	struct run part;

	while (!space->gone && *done < run->length) {
		uint64_t at = run->address + *done;
		if (!page_set_next(space->lacking, at, end - at, &part) || part.address >= end)
			return 0;
		const struct place *place = place_of(space, part.address);
		if (!place) {
			page_set_change(space->lacking, part.address, part.address + PAGE, false);
			*done = part.address + PAGE - run->address;
			continue;
		}
		uint64_t offset = part.address - place->source, room = place->end - place->start - offset;
		uint64_t length = part.length < room ? part.length : room;
		if (part.address + length > end)
			length = end - part.address;
		*done = part.address - run->address;
		int64_t filled = fill(space, place->start + offset, content ? content + *done : NULL, length);
		if (filled == -ESRCH) {
			space->gone = true;
		} else if (filled < 0) {
			return filled;
		} else if (filled == 0) {
			return 1;
		} else {
			page_set_change(space->lacking, part.address, part.address + filled, false);
			*done += filled;
		}
	}
	return 0;
}
