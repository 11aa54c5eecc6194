/* halves none|read: 4 MB of memory, written, of which the second half is protected; when there is a file `join` all of it can be written
 * again, and when there is a file `move` it is moved elsewhere as one, which some kernels do with a single mapping alone. Lines to `lines`
 * meanwhile. Exit status: 0; 3 it is not what was written; 4 a call failed that never fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 0x404000 }; /* like nothing else that it has */

static FILE *lines;

static void must(int good, const char *what)
{
	if (!good) {
		printf("%s: %s\n", what, strerror(errno));
		exit(4);
	}
}

static void await(const char *name)
{
	for (int i = 0; access(name, F_OK); i++) {
		fprintf(lines, "no %s %d\n", name, i);
		fflush(lines);
		usleep(20000);
	}
}

int main(int argc, char **argv)
{
	char *around = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* so that it touches nothing else */
	uint64_t *memory = mmap(around + PAGE, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	void *elsewhere = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	lines = fopen("lines", "w");
	if (argc != 2 || !lines || around == MAP_FAILED || memory == MAP_FAILED || elsewhere == MAP_FAILED)
		return 64;
	for (size_t i = 0; i < SIZE / 8; i++)
		memory[i] = i * 0x9e3779b97f4a7c15u;
	must(!mprotect((char *)memory + SIZE / 2, SIZE / 2, strcmp(argv[1], "none") ? PROT_READ : PROT_NONE), "mprotect");
	await("join");
	must(!mprotect(memory, SIZE, PROT_READ | PROT_WRITE), "mprotect");
	await("move");
	must(mremap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere, "mremap");
	memory = elsewhere;
	for (size_t i = 0; i < SIZE / 8; i++)
		if (memory[i] != i * 0x9e3779b97f4a7c15u)
			return 3;
	puts("all is as it was written");
	return 0;
}
