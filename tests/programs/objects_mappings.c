/* Scenarios about files that are mapped: see objects.h. */
#include "objects.h"

#include <setjmp.h>
#include <sys/mman.h>

#define PAGE 4096
#define BOTH (PROT_READ | PROT_WRITE)
#define MAP(fd, pages, protection, offset) ((char *)DONE(mmap(NULL, (pages) * PAGE, protection, MAP_PRIVATE, fd, (offset) * PAGE)))
#define MAP_AT(at, fd, pages, protection, offset) \
	((char *)DONE(mmap(at, (pages) * PAGE, protection, MAP_PRIVATE | MAP_FIXED, fd, (offset) * PAGE)))

static sigjmp_buf back;

static void faulted(int number)
{
	siglongjmp(back, number);
}

/* Says what becomes of a read or a write there. */
static void touch(const char *what, volatile char *at, int writing)
{
	struct sigaction action = {.sa_handler = faulted}, before[2];
	sigaction(SIGSEGV, &action, &before[0]);
	sigaction(SIGBUS, &action, &before[1]);
	int number = sigsetjmp(back, 1), found = 0;
	if (!number) {
		if (writing)
			*at = 'x';
		found = *at;
	}
	step();
	show("  %s: %s %d", what, number ? "signal" : "holds", number ? number : found);
	sigaction(SIGSEGV, &before[0], NULL);
	sigaction(SIGBUS, &before[1], NULL);
}

static unsigned sum(const char *at, size_t size)
{
	unsigned sum = 1;
	for (size_t i = 0; i < size; i++)
		sum = sum * 31 + (unsigned char)at[i];
	return sum;
}

/* So many pages of unused addresses. */
static char *room(size_t pages)
{
	char *at = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		exit(71);
	return at;
}

/* A file of so many bytes that no process has open any more. */
static void make(const char *name, size_t size, unsigned seed)
{
	char *content = malloc(size);
	for (size_t i = 0; i < size; i++)
		content[i] = (char)(i * 7 + seed + (i >> 12));
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, content, size) != (ssize_t)size || close(fd))
		exit(71);
	free(content);
}

SCENARIO(file_mapped_as_programs_are)
{
	make("library", 9 * PAGE + 100, 1);
	int fd = CALL(open("library", O_RDONLY));
	char *map = MAP(fd, 14, PROT_READ, 0);
	(void)MAP_AT(map + 2 * PAGE, fd, 3, PROT_READ | PROT_EXEC, 2);
	(void)MAP_AT(map + 5 * PAGE, fd, 2, PROT_READ, 5);
	(void)MAP_AT(map + 7 * PAGE, fd, 3, BOTH, 6);
	DONE(mmap(map + 10 * PAGE, 4 * PAGE, BOTH, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0));
	CALL(close(fd));
	memset(map + 7 * PAGE + 50, 'w', 30);
	memset(map + 9 * PAGE + 4000, 'b', 200);
	show("  %u %u", sum(map, 7 * PAGE), sum(map + 7 * PAGE, 7 * PAGE));
	CALL(mprotect(map + 7 * PAGE, PAGE, PROT_READ));
	touch("only read now", map + 7 * PAGE + 60, 1);
	CALL(unlink("library"));
	show("  %u %u", sum(map, 7 * PAGE), sum(map + 7 * PAGE, 7 * PAGE));
	CALL(munmap(map, 14 * PAGE));
}

SCENARIO(file_mapped_in_pieces)
{
	make("pieces", 10 * PAGE, 2);
	int fd = CALL(open("pieces", O_RDONLY));
	char *map = MAP_AT(room(30), fd, 10, BOTH, 0);
	map[3 * PAGE] = map[8 * PAGE] = 'w';
	CALL(munmap(map + 4 * PAGE, 2 * PAGE));
	touch("the hole", map + 4 * PAGE, 0);
	char *moved = (char *)DONE(mremap(map + 6 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map + 20 * PAGE));
	show("  %u %u", sum(map, 4 * PAGE), sum(moved, 4 * PAGE));
	char *other = MAP_AT(map + 6 * PAGE, fd, 2, BOTH, 1);
	other[5] = 'o';
	show("  %u %u %u", sum(map, 4 * PAGE), sum(moved, 4 * PAGE), sum(other, 2 * PAGE));
	CALL(madvise(map, 4 * PAGE, MADV_DONTNEED));
	show("  %u", sum(map, 4 * PAGE));
	CALL(close(fd));
	fd = CALL(open("pieces", O_RDONLY));
	char *again = MAP(fd, 3, PROT_READ, 7);
	CALL(mprotect(again, PAGE, BOTH));
	again[0] = 'a';
	show("  %u %u", sum(again, 3 * PAGE), sum(moved, 4 * PAGE));
	CALL(munmap(moved, 4 * PAGE));
	CALL(munmap(again + PAGE, PAGE));
	touch("the other hole", again + PAGE, 0);
	show("  %u %u %u", sum(map, 4 * PAGE), sum(again, PAGE), sum(again + 2 * PAGE, PAGE));
}

SCENARIO(file_mapped_beyond_its_end)
{
	make("short", 5000, 3);
	int fd = CALL(open("short", O_RDONLY));
	char *map = MAP(fd, 4, BOTH, 0);
	touch("behind the end, same page", map + 5001, 0);
	touch("a page behind", map + 2 * PAGE, 0);
	touch("written there", map + 2 * PAGE + 9, 1);
	touch("written before", map + 5001, 1);
	make("empty", 0, 0);
	int nothing = CALL(open("empty", O_RDONLY));
	char *none = MAP(nothing, 1, PROT_READ, 0);
	touch("nothing", none, 0);
	char *far = MAP(fd, 1, PROT_READ, 1000);
	touch("far behind", far, 0);
	show("  %u", sum(map, 2 * PAGE));
}

SCENARIO(files_of_one_name)
{
	make("name", 2 * PAGE, 4);
	int fd = CALL(open("name", O_RDONLY));
	char *first = MAP_AT(room(50), fd, 2, BOTH, 0);
	CALL(close(fd));
	make("new", 3 * PAGE, 5);
	CALL(rename("new", "name"));
	fd = CALL(open("name", O_RDONLY));
	char *second = MAP(fd, 3, BOTH, 0);
	CALL(close(fd));
	second[1] = 's';
	CALL(rename("name", "other"));
	make("name", PAGE, 6);
	fd = CALL(open("name", O_RDONLY));
	char *third = MAP(fd, 1, PROT_READ, 0);
	CALL(close(fd));
	fd = CALL(open("other", O_RDONLY));
	char *again = MAP(fd, 2, PROT_READ, 1);
	CALL(close(fd));
	show("  %u %u %u %u", sum(first, 2 * PAGE), sum(second, 3 * PAGE), sum(third, PAGE), sum(again, 2 * PAGE));
	char *moved = (char *)DONE(mremap(first, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, first + 40 * PAGE));
	CALL(unlink("name"));
	CALL(unlink("other"));
	show("  %u %u %u %u", sum(moved, 2 * PAGE), sum(second, 3 * PAGE), sum(third, PAGE), sum(again, 2 * PAGE));
	CALL(munmap(second, 3 * PAGE));
	show("  %u %u %u", sum(moved, 2 * PAGE), sum(third, PAGE), sum(again, 2 * PAGE));
}

SCENARIO(mappings_that_fail)
{
	make("file", 2 * PAGE, 7);
	int reading = CALL(open("file", O_RDONLY)), writing = CALL(open("file", O_WRONLY));
	CALL(close(77));
	(void)MAP(77, 1, PROT_READ, 0);
	(void)MAP(-1, 1, PROT_READ, 0);
	(void)MAP(writing, 1, PROT_READ, 0);
	(void)MAP(writing, 1, PROT_NONE, 0);
	CALL(close(writing));
	(void)MAP(reading, 0, PROT_READ, 0);
	DONE(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, reading, 100));
	DONE(mmap((void *)100, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, reading, 0));
	DONE(mmap(NULL, 1L << 50, PROT_READ, MAP_PRIVATE, reading, 0));
	DONE(mmap(NULL, 0x7fffffffffff000, PROT_READ, MAP_PRIVATE, reading, 0));
	DONE(mmap(NULL, PAGE, PROT_READ, 0, reading, 0));
	DONE(mmap(NULL, PAGE, BOTH, MAP_SHARED, reading, 0));
	char *map = MAP(reading, 2, PROT_READ, 0);
	DONE(mmap(map, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, reading, 0));
	int directory = CALL(open(".", O_RDONLY));
	(void)MAP(directory, 1, PROT_READ, 0);
	int path = CALL(open("file", O_PATH));
	(void)MAP(path, 1, PROT_READ, 0);
	int pipes[2];
	CALL(pipe(pipes));
	(void)MAP(pipes[0], 1, PROT_READ, 0);
	show("  %u", sum(map, 2 * PAGE));
}
