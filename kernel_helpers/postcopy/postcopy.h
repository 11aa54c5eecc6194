/* Pages that follow a process which runs already (post-copy): send.c has them, receive.c wants them.
 *
 * Over one connection, little-endian. First the side that wants reports what it lacks: frames of {magic, count, 0} and count × {address,
 * length}, the last with count 0. Then it says which page is waited for (its address, 8 bytes), and ALL_HERE in the end. What comes to it
 * are frames of {magic, count, bytes, checksum}, count × {address, length}, and the content; of a frame with runs and no bytes, all pages
 * are zeros. When a connection breaks, all this begins anew on another. */
#ifndef FARHOME_POSTCOPY_H
#define FARHOME_POSTCOPY_H
#include "pages/pages.h"

#define LATE_BYTES (128u << 10) /* at most in a frame: what a page that is waited for has before it */
#define LATE_RUNS (LATE_BYTES / PAGE)
#define LATE_MAGIC 0x6c706866u /* "fhpl" */
#define ALL_HERE (~0ull)

struct late_frame {
	uint32_t magic, count;
	uint64_t bytes, checksum;
};

/* Pages of some spans, and which of them are in the set. */
struct page_set {
	size_t count;
	uint64_t left; /* pages in it */
	uint64_t *bits;
	struct {
		uint64_t start, end, first; /* first: number of its first page */
	} spans[];
};
/* runs: sorted, apart. NULL: no memory. */
struct page_set *page_set_new(const struct run *runs, size_t count, bool full);
struct page_set *page_set_copy(const struct page_set *set);
void page_set_free(struct page_set *set);
bool page_set_has(const struct page_set *set, uint64_t page);
void page_set_change(struct page_set *set, uint64_t start, uint64_t end, bool value);
/* The first run of pages in the set that are at or after `from`, of at most `most` bytes. false: there is none. */
bool page_set_next(const struct page_set *set, uint64_t from, uint64_t most, struct run *run);

#endif
