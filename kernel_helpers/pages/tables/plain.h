/* Plain mappings: private memory that has no file and no name, of which a process may have tens of thousands. They are kept as a table, in
 * the order of their addresses: nothing of a high-level language runs for each of them. */
#ifndef FARHOME_PLAIN_H
#define FARHOME_PLAIN_H
#include <stddef.h>
#include <stdint.h>

struct plain {
	uint64_t start, end;
	uint64_t own; /* bytes of pages of the process's own; where they were not counted, a page or nothing */
	uint32_t kind; /* PLAIN_ */
	uint32_t zero;
};
/* The first are those of mmap(2). */
#define PLAIN_READ (1u << 0)
#define PLAIN_WRITE (1u << 1)
#define PLAIN_EXEC (1u << 2)
/* VmFlags, as smaps has them; the same order in plain.py. */
enum plain_flag {
	PLAIN_GD,
	PLAIN_NR,
	PLAIN_AC,
	PLAIN_DC,
	PLAIN_DD,
	PLAIN_WF,
	PLAIN_HG,
	PLAIN_NH,
	PLAIN_MG,
	PLAIN_SR,
	PLAIN_RR,
	PLAIN_LO,
	PLAIN_LF,
	PLAIN_DP,
	PLAIN_FLAGS
};
#define PLAIN_BIT(flag) (1u << (3 + (flag)))
#define PLAIN_WATCHED (1u << 31) /* writes to it are noted: of no use on another node */
#define PLAIN_KINDS (PLAIN_BIT(PLAIN_FLAGS) - 1)

/* A mapping as the kernel reports it (vmas.c). */
struct vma {
	uint64_t start, end, flags;
	uint64_t other; /* whether it may have a file or a name */
};

struct span {
	uint64_t start, end;
};

#endif
