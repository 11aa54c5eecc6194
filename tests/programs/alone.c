/* alone KIND PAGES SEED: has memory mapped shared that no other process has (KIND anonymous; memfd; file, one of /dev/shm without a name;
 * late, anonymous and mapped at the file `go`), twice, and in pieces here and there; changes it by one mapping, checks it by another,
 * punches holes in it, unmaps and maps again. Writes a line to the file `lines` for each round, and when there is a file `end` has a child
 * that writes to it, too. Ends with 0, or says what is wrong. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define BOTH (PROT_READ | PROT_WRITE)
static char *first, *second;
static unsigned *expected; /* what each page begins with; 0: a hole */
static size_t pages;
static unsigned seed, number;

static void wrong(const char *what, size_t page)
{
	printf("%s, page %zu\n", what, page);
	exit(2);
}

static size_t chosen(size_t most)
{
	return (size_t)rand_r(&seed) % most;
}

static void put(char *by, size_t page, unsigned value)
{
	unsigned *p = (unsigned *)(by + page * PAGE);
	p[0] = value;
	p[PAGE / sizeof *p - 1] = value;
	expected[page] = value;
}

static void check(const char *by, size_t page, const char *what)
{
	const unsigned *p = (const unsigned *)(by + page * PAGE);
	if (p[0] != expected[page] || p[PAGE / sizeof *p - 1] != expected[page])
		wrong(what, page);
}

static char *again(char *by, size_t page, size_t count)
{
	char *made = mremap(by + page * PAGE, 0, count * PAGE, MREMAP_MAYMOVE);
	if (made == MAP_FAILED)
		wrong("no second mapping", page);
	return made;
}

static char *map(const char *kind)
{
	int flags = MAP_SHARED, file = -1;
	if (!strcmp(kind, "memfd")) {
		file = memfd_create("code", MFD_CLOEXEC);
	} else if (!strcmp(kind, "file")) {
		char name[] = "/dev/shm/alone-XXXXXX";
		if ((file = mkstemp(name)) >= 0)
			unlink(name);
	} else {
		flags |= MAP_ANONYMOUS;
	}
	if (file >= 0 && ftruncate(file, pages * PAGE))
		exit(4);
	char *made = mmap(NULL, pages * PAGE, BOTH, flags, file, 0);
	if (made == MAP_FAILED || (file >= 0 && close(file)))
		exit(4);
	return made;
}

static void change(void)
{
	size_t page = chosen(pages), count = 1 + chosen(pages - page);
	unsigned char in_core[1];
	char *piece;

	switch (chosen(7)) {
	case 0:
		if (madvise(first + page * PAGE, PAGE, MADV_REMOVE))
			wrong("no hole", page);
		expected[page] = 0;
		break;
	case 1: /* of shared memory it gives nothing up */
		if (madvise(second + page * PAGE, count * PAGE, MADV_DONTNEED) || msync(first + page * PAGE, count * PAGE, MS_SYNC))
			wrong("no advice", page);
		break;
	case 2: /* what is not mapped meanwhile is still there */
		piece = again(second, page, count);
		if (munmap(second, pages * PAGE) || munmap(first + PAGE, (pages - 1) * PAGE))
			wrong("not unmapped", page);
		usleep(3000);
		check(piece - page * PAGE, page + chosen(count), "a piece has lost it");
		second = again(first, 0, pages); /* of its first page: as much as there was */
		if (munmap(first, PAGE))
			wrong("not unmapped", 0);
		first = again(second, 0, pages);
		munmap(piece, count * PAGE);
		break;
	case 3:
		if (mprotect(second + page * PAGE, PAGE, PROT_READ | PROT_EXEC) || mincore(second + page * PAGE, PAGE, in_core) ||
		    mprotect(second + page * PAGE, PAGE, BOTH))
			wrong("no protection", page);
		break;
	default:
		put(chosen(2) ? first : second, page, ++number);
	}
}

static int has(const char *name)
{
	return !access(name, F_OK);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 64;
	pages = strtoul(argv[2], NULL, 10), seed = strtoul(argv[3], NULL, 10);
	expected = calloc(pages, sizeof *expected);
	FILE *lines = fopen("lines", "w");
	while (!strcmp(argv[1], "late") && !has("go")) {
		fprintf(lines, "waits\n"), fflush(lines);
		usleep(10000);
	}
	first = map(argv[1]);
	second = again(first, 0, pages);
	for (size_t page = 0; page < pages; page += 2)
		put(first, page, ++number);
	for (unsigned round = 0; !has("end"); round++) {
		for (int i = 0; i < 20; i++)
			change();
		for (size_t page = 0; page < pages; page++) {
			check(first, page, "the first mapping is wrong");
			check(second, page, "the second mapping is wrong");
		}
		fprintf(lines, "%u\n", round), fflush(lines);
		usleep(2000);
	}
	int status;
	pid_t child = fork();
	if (!child) {
		put(second, 0, 77777);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		wrong("no child", 0);
	expected[0] = 77777;
	check(first, 0, "what the child wrote is not there");
	puts("it is all one memory");
	return 0;
}
