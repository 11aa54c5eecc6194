/* Tables of plain mappings: made of what the kernel reports, checked when they come from outside, and looked through. */
#define _GNU_SOURCE
#include "pages/tables/plain.h"
#include "pages/tables/tables.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#define FEW_PAGES (64 * PAGE) /* bytes: mappings so small, and so near to one another, are scanned together */
#define HIGHEST (1ull << 56)  /* end of user space with five-level page tables */
#define MOST_OWN (1ull << 50)

/* Takes the plain ones of `count` mappings out into `table`; the others stay, at the beginning of `vmas`. bits: pairs of a bit of the
 * kernel's flags and one of `kind`. Returns how many are plain. */
size_t farhome_plain_take(struct vma *vmas, size_t count, const uint8_t (*bits)[2], size_t bit_count, struct plain *table)
{
	size_t taken = 0, left = 0;

	for (size_t i = 0; i < count; i++) {
		struct vma vma = vmas[i];
		if (vma.other) {
			vmas[left++] = vma;
			continue;
		}
		uint32_t kind = vma.flags & (PLAIN_READ | PLAIN_WRITE | PLAIN_EXEC); /* VM_READ and its like are the same bits */
		for (size_t bit = 0; bit < bit_count; bit++)
			kind |= (uint32_t)(vma.flags >> bits[bit][0] & 1) << bits[bit][1];
		table[taken++] = (struct plain){.start = vma.start, .end = vma.end, .kind = kind};
	}
	return taken;
}

struct finding {
	struct plain *next, *end; /* those that have not been passed yet */
	bool guards;              /* there may be some */
};

static int found_own(void *context, uint64_t start, uint64_t end, bool written)
{
	struct finding *finding = context;

	if (!written) {
		finding->guards = true;
		return 0;
	}
	while (finding->next < finding->end && finding->next->end <= start)
		finding->next++;
	for (struct plain *plain = finding->next; plain < finding->end && plain->start < end; plain++)
		plain->own = PAGE;
	return 0;
}

static int stop_at_page(void *context, uint64_t start, uint64_t end, bool written)
{
	(void)context, (void)start, (void)end, (void)written;
	return 1;
}

/* Whether pid has pages in each: `own` is a page then. Returns 1: those of few pages may have guards, 0: they have none, or -errno. */
int farhome_plain_own(int pid, struct plain *table, size_t count)
{
	int pagemap = open_proc(pid, "pagemap", O_RDONLY), result = 0;
	bool guards = false;

	if (pagemap < 0)
		return pagemap;
	for (size_t i = 0, next; i < count && result >= 0; i = next) {
		next = i + 1;
		if (table[i].end - table[i].start > FEW_PAGES) {
			result = walk_pages(pagemap, SCAN_ANY, table[i].start, table[i].end, stop_at_page, NULL);
			table[i].own = result > 0 ? PAGE : 0;
			continue;
		}
		while (next < count && table[next].end - table[next].start <= FEW_PAGES &&
		       table[next].start - table[next - 1].end <= FEW_PAGES)
			next++;
		struct finding finding = {&table[i], &table[next], false};
		result = walk_pages(pagemap, SCAN_MARKED, table[i].start, table[next - 1].end, found_own, &finding);
		guards |= finding.guards;
	}
	close(pagemap);
	return result < 0 ? result : guards;
}

/* Where those are that have more than few pages, those that touch as one. Returns how many there are in `spans`, which has room for all. */
size_t farhome_plain_large(const struct plain *table, size_t count, struct span *spans)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		if (table[i].end - table[i].start > FEW_PAGES) {
			if (found && spans[found - 1].end == table[i].start)
				spans[found - 1].end = table[i].end;
			else
				spans[found++] = (struct span){table[i].start, table[i].end};
		}
	return found;
}

/* Where those are that have one of `any` (0: whatever they have), none of `none`, and, with has_own, pages; those that touch as one. Returns
 * how many there are in `spans`, which has room for all. */
size_t farhome_plain_spans(const struct plain *table, size_t count, uint32_t any, uint32_t none, int has_own, struct span *spans)
{
	size_t found = 0;

	for (size_t i = 0; i < count; i++) {
		const struct plain *plain = &table[i];
		if ((any && !(plain->kind & any)) || plain->kind & none || (has_own && !plain->own))
			continue;
		if (found && spans[found - 1].end == plain->start)
			spans[found - 1].end = plain->end;
		else
			spans[found++] = (struct span){plain->start, plain->end};
	}
	return found;
}

/* The first that is not as it has to be in a table from outside; `count`: all are. */
size_t farhome_plain_unfit(const struct plain *table, size_t count)
{
	uint64_t before = 0;

	for (size_t i = 0; i < count; i++) {
		const struct plain *plain = &table[i];
		if (plain->start < before || plain->start >= plain->end || plain->end > HIGHEST || (plain->start | plain->end) % PAGE ||
		    plain->own > MOST_OWN || plain->kind & ~PLAIN_KINDS || plain->zero)
			return i;
		before = plain->end;
	}
	return count;
}

/* They are sent, where nothing is watched. */
void farhome_plain_forget(struct plain *table, size_t count)
{
	for (size_t i = 0; i < count; i++)
		table[i].kind &= ~PLAIN_WATCHED;
}

/* The first that ends behind `address`; `count`: none does. */
size_t farhome_plain_at(const struct plain *table, size_t count, uint64_t address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (table[middle].end <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}
