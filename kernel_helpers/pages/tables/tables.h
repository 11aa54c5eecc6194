/* What the page tables of a process show, and its pages by it. */
#ifndef FARHOME_TABLES_H
#define FARHOME_TABLES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096u
#define BATCH_BYTES (1u << 20)
/* A run is at least a page, so a full batch never has more runs than pages. */
#define BATCH_RUNS (BATCH_BYTES / PAGE)

struct page_range {
	uint64_t start, end; /* bytes, multiples of the page size */
	uint64_t flags;
};
#define KEEP_ZEROS 1 /* sending: a page of zeros differs from what is below it (a file) and must be sent */
#define DISCARD 2    /* receiving: may come, and is thrown away */
#define WRITTEN 4    /* sending: only what was written since it was sent last (tables/scan.c watches) */
#define MISSING 8    /* receiving: most pages are not there yet, and a userfaultfd has the range registered */

struct run {
	uint64_t address, length;
};

int open_proc(int pid, const char *name, int flags);

/* The content of `count` runs, `bytes` in all, into buffer; of unreadable mappings through `memory` (/proc/PID/mem), which asks no leave.
 * runs_on: the process may unmap pages meanwhile, which are zeros then. Returns 0 or -errno. */
int read_pages(int pid, int memory, const struct run *runs, unsigned count, char *buffer, size_t bytes, bool runs_on);
bool is_zero_page(const char *page);

/* How the pages of a range are looked for. */
enum scan {
	SCAN_OWN,        /* those that the process has of its own: not the file's, not the zero page */
	SCAN_ANY,        /* the first of these */
	SCAN_MARKED,     /* all of its own, and what may be guards: as not written */
	SCAN_TAKE,       /* of these, those written since they were taken last, which are taken: watched for the next write */
	SCAN_TELL,       /* all of its own, and whether they were written since they were taken */
	SCAN_DENSE_TAKE, /* as SCAN_TAKE, and what is no page counts as written, once: ten times as fast */
	SCAN_DENSE,      /* those written, and what is no page: as fast */
};
#define CHUNK (2u << 20) /* bytes that are dense or not: those of one page table */
typedef int (*found_pages)(void *context, uint64_t start, uint64_t end, bool written);
int walk_pages(int pagemap, enum scan scan, uint64_t start, uint64_t end, found_pages found, void *context);

/* Makes pages of that content, or of zeros (NULL), in half the time of a write, which has the kernel make pages of zeros first. Returns
 * how many bytes (all, or up to something in the way); 0: the process is changing its mappings; -errno: -EEXIST there is a page already,
 * -ENOENT or -EINVAL not one mapping that is registered, -ESRCH the process has ended. */
int64_t uffd_fill(int userfaultfd, uint64_t start, const char *content, uint64_t length);
/* Who waits for a page there looks again. */
void uffd_wake(int userfaultfd, uint64_t start, uint64_t length);

#endif
