/* ahead STEPS SEED: keeps 64 MB in sixteen mappings and does to them, at random, all that may happen to memory that is being sent ahead of
 * a process: writes, by itself and by calls, gives pages back, fills them with zeros, moves mappings, makes them anew where they were,
 * protects them, lets the heap grow and shrink, has children. What it touches it checks before, and everything in the end. It makes so many
 * steps, and more until the file `enough` is there.
 *
 * A line to the file `lines` every hundred steps. Exit status: 0; 3 memory is not what was written; 4 a call failed that never fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, BLOCK = 16 * PAGE, BLOCKS = 64, MAPPINGS = 16, SIZE = BLOCKS * BLOCK };

static char *mapping[MAPPINGS];
static uint64_t generation[MAPPINGS][BLOCKS]; /* 0: zeros */
static uint64_t state, next_generation;
static int ends[2];
static long step;

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t word = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
	word ^= word >> 29;
	return word * 0x94d049bb133111ebu;
}

static unsigned random_of(unsigned count)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % count;
}

static void must(int good, const char *what)
{
	if (!good) {
		printf("step %ld: %s: %s\n", step, what, strerror(errno));
		exit(4);
	}
}

static uint64_t *words(unsigned m, unsigned b)
{
	return (uint64_t *)(mapping[m] + (size_t)b * BLOCK);
}

static uint64_t expected(unsigned m, unsigned b, unsigned word)
{
	return generation[m][b] ? mix(generation[m][b], word) : 0;
}

static void check(unsigned m, unsigned b)
{
	for (unsigned word = 0; word < BLOCK / 8; word++)
		if (words(m, b)[word] != expected(m, b, word)) {
			printf("step %ld: word %u of block %u of mapping %u (%p) is %#llx, not %#llx\n", step, word, b, m,
			       (void *)&words(m, b)[word], (unsigned long long)words(m, b)[word], (unsigned long long)expected(m, b, word));
			exit(3);
		}
}

static void fill(unsigned m, unsigned b)
{
	generation[m][b] = ++next_generation;
	for (unsigned word = 0; word < BLOCK / 8; word++)
		words(m, b)[word] = expected(m, b, word);
}

/* The same, but the kernel writes it. */
static void fill_by_calls(unsigned m, unsigned b)
{
	static uint64_t page[PAGE / 8];

	generation[m][b] = ++next_generation;
	for (unsigned at = 0; at < BLOCK / PAGE; at++) {
		for (unsigned word = 0; word < PAGE / 8; word++)
			page[word] = expected(m, b, at * (PAGE / 8) + word);
		must(write(ends[1], page, PAGE) == PAGE, "write");
		must(read(ends[0], (char *)words(m, b) + at * PAGE, PAGE) == PAGE, "read");
	}
}

static void change(unsigned m, unsigned b)
{
	char *elsewhere;
	int status;

	switch (random_of(100)) {
	default:
		fill(m, b);
		break;
	case 0 ... 14:
		fill_by_calls(m, b);
		break;
	case 15 ... 24:
		must(!madvise(words(m, b), BLOCK, MADV_DONTNEED), "madvise");
		generation[m][b] = 0;
		break;
	case 25 ... 29:
		memset(words(m, b), 0, BLOCK);
		generation[m][b] = 0;
		break;
	case 30 ... 31:
		elsewhere = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(elsewhere != MAP_FAILED, "mmap");
		must(mremap(mapping[m], SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere, "mremap");
		mapping[m] = elsewhere;
		break;
	case 32 ... 33:
		must(!munmap(mapping[m], SIZE), "munmap");
		must(mmap(mapping[m], SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == mapping[m], "mmap");
		memset(generation[m], 0, sizeof generation[m]);
		break;
	case 34 ... 36:
		must(!mprotect(mapping[m], SIZE / 2, random_of(2) ? PROT_READ : PROT_NONE), "mprotect");
		usleep(random_of(2000));
		must(!mprotect(mapping[m], SIZE, PROT_READ | PROT_WRITE), "mprotect");
		check(m, b);
		break;
	case 37 ... 38:
		must((char *)sbrk(SIZE / 8) != (char *)-1, "sbrk");
		memset((char *)sbrk(0) - SIZE / 8, 'h', SIZE / 8);
		usleep(random_of(2000));
		must(((char *)sbrk(0))[-1] == 'h' && ((char *)sbrk(0))[-SIZE / 8] == 'h', "the heap's content");
		must((char *)sbrk(-(SIZE / 8)) != (char *)-1, "sbrk");
		break;
	case 39:
		must((status = fork()) >= 0, "fork");
		if (!status) {
			check(m, b);
			fill(m, b);
			check(m, b);
			_exit(0);
		}
		fill(m, b);
		must(wait(&status) > 0 && status == 0, "what the child found");
		break;
	}
}

int main(int argc, char **argv)
{
	long steps = argc > 1 ? atol(argv[1]) : 1000;
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);

	setvbuf(stdout, NULL, _IOLBF, 0);
	state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	must(lines >= 0 && !pipe(ends), "files");
	for (unsigned m = 0; m < MAPPINGS; m++) {
		mapping[m] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(mapping[m] != MAP_FAILED, "mmap");
		for (unsigned b = 0; b < BLOCKS; b++)
			if (random_of(10))
				fill(m, b);
	}
	for (step = 1; step <= steps || (step % 100 == 1 ? access("enough", F_OK) : 1); step++) {
		unsigned m = random_of(MAPPINGS), b = random_of(BLOCKS);
		check(m, b);
		change(m, b);
		if (step % 100 == 0)
			must(dprintf(lines, "%ld\n", step) > 0, "lines");
	}
	for (unsigned m = 0; m < MAPPINGS; m++)
		for (unsigned b = 0; b < BLOCKS; b++)
			check(m, b);
	puts("all is as it was written");
	return 0;
}
