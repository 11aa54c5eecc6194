/* What the kernel reports about a process's pages: /proc/PID/pagemap, its words and PAGEMAP_SCAN (Linux 6.7); and what of that are guards. */
#ifndef FARHOME_PAGEMAP_H
#define FARHOME_PAGEMAP_H
#include "pages/tables/tables.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* The headers of the systems that we build on are older. */
struct scan_region {
	uint64_t start, end, categories;
};
struct scan_argument {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct scan_argument)
#define FLAG_PROTECT (1u << 0) /* PM_SCAN_WP_MATCHING */
#define IS_WATCHED (1u << 0)
#define IS_WRITTEN (1u << 1)
#define IS_FILE (1u << 2)
#define IS_PRESENT (1u << 3)
#define IS_SWAPPED (1u << 4)
#define IS_ZERO_PAGE (1u << 5)
#define SCAN_REGIONS 512
#define IS_GUARD (1u << 8) /* Linux 6.16 */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)
#define PAGEMAP_GUARD (1ull << 58) /* Linux 6.15 */
#define MARKER_TYPE 31 /* the type of a swap entry that is a marker; readable with CAP_SYS_ADMIN */
#define MARKER_GUARD 4 /* of such, in the bits behind the kind */

/* Whether a word of pagemap is that of a guard (MADV_GUARD_INSTALL). */
bool is_guard(uint64_t word);
/* IS_GUARD where PAGEMAP_SCAN knows it, else 0: Linux 6.13 to 6.15 have guards, and report them in words alone. */
uint64_t guard_category(void);
/* Calls found with each run of [start, end) whose pages are guards, or are not, as words show. Returns what found returns when that is
 * not 0; -errno. */
int walk_guards(int pagemap, uint64_t start, uint64_t end, bool guards, bool written, found_pages found, void *context);

#endif
