/* writer MEGABYTES: writes to all of its memory, which nothing makes smaller, as fast as it can, again and again, and checks it on the way.
 * A line to the file `lines` each time round. On SIGTERM, when all has been checked: "intact", exit status 0; 3: memory is not what was written. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static volatile sig_atomic_t ended;

static void on_end(int number)
{
	(void)number;
	ended = 1;
}

/* All of a page but its first and its last word. */
static void fill(uint64_t *page)
{
	static uint64_t state = 88172645463325252;

	for (size_t word = 1; word < WORDS - 1; word++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		page[word] = state;
	}
}

int main(int argc, char **argv)
{
	size_t pages = (size_t)(argc > 1 ? atol(argv[1]) : 64) << 20 >> 12;
	uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);

	if (memory == MAP_FAILED || lines < 0)
		return 4;
	for (size_t page = 0; page < pages; page++)
		fill(memory + page * WORDS);
	signal(SIGTERM, on_end);
	for (uint64_t round = 1; !ended; round++) {
		for (size_t page = 0; page < pages; page++) {
			uint64_t *first = memory + page * WORDS, *last = first + WORDS - 1;
			if (*first != (round > 1 ? (round - 1) * 31 + page : 0) || *last != (round > 1 ? ~*first : 0)) {
				printf("page %zu of round %llu is %#llx and %#llx\n", page, (unsigned long long)round,
				       (unsigned long long)*first, (unsigned long long)*last);
				return 3;
			}
			*first = round * 31 + page;
			*last = ~*first;
		}
		if (dprintf(lines, "%llu\n", (unsigned long long)round) < 0)
			return 4;
	}
	puts("intact");
	return 0;
}
