/* Whether the content of pages is sent packed (LZ4): tried now and then, and done as long as more gets through so. */
#define _GNU_SOURCE
#include "pages/pages.h"
#include <lz4.h>
#include <time.h>

#define WINDOW (16u << 20) /* bytes of content that one way is measured by */
#define HOLD 16            /* windows until the other way is tried again */
#define FAST 800e6         /* bytes a second: nothing packs as fast on one processor */
#define BETTER 1.05        /* of what the other way gets through, for a change */

double now_seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

void pace_count(struct pace *pace, uint64_t bytes, bool may_try)
{
	if (!pace->began)
		pace->began = now_seconds();
	pace->bytes += bytes;
	if (pace->bytes < WINDOW)
		return;
	double end = now_seconds(), rate = pace->bytes / (end - pace->began + 1e-9);
	pace->rate[pace->packs] = rate;
	pace->began = end;
	pace->bytes = 0;
	if (pace->trying) { /* which of the two is it? */
		pace->trying = false;
		pace->windows = 0;
		if (rate < BETTER * pace->rate[!pace->packs])
			pace->packs = !pace->packs;
	} else if (++pace->windows >= (pace->has_tried ? HOLD : 1) && may_try && (pace->packs || rate < FAST)) {
		pace->trying = pace->has_tried = true;
		pace->packs = !pace->packs;
	}
}

void pace_rest(struct pace *pace)
{
	pace->began = 0;
	pace->bytes = 0;
}

int pack_bound(size_t size)
{
	return LZ4_compressBound(size);
}

size_t pack(const char *content, size_t size, char *packed, size_t room)
{
	int result = LZ4_compress_default(content, packed, size, room);
	return result > 0 && (size_t)result < size ? result : 0;
}

bool unpack(const char *packed, size_t size, char *content, size_t wanted)
{
	return LZ4_decompress_safe(packed, content, size, wanted) == (int)wanted;
}
