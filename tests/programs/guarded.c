/* guarded MEGABYTES SEED: installs and removes guards (MADV_GUARD_INSTALL) in memory of its own and in a mapped file, and checks that
 * each page is as expected: a guard, or written, or zeros, or the file's. So do children that it has now and then. Writes a line to the
 * file `lines` for each round, and ends with 0 when there is a file `end`; with 77 where there are no guards. When there is a file `throw`,
 * it throws all of its memory away, by a guard that is removed at once. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define INSTALL 102
#define REMOVE 103
#define FILE_PAGES 3
enum state { WRITTEN, ZEROS, GUARD, OF_FILE };
static sigjmp_buf back;
static char *memory, *file;
static unsigned char *states;
static size_t pages;
static unsigned seed;

static void fault(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

static size_t chosen(size_t most)
{
	return (size_t)rand_r(&seed) % most;
}

static volatile char *at(size_t page)
{
	return page < pages ? memory + page * PAGE : file + (page - pages) * PAGE;
}

static int is_as_said(size_t page)
{
	volatile char *p = at(page);
	char first = p[0], last = p[PAGE - 1];
	switch (states[page]) {
	case WRITTEN:
		return *(volatile size_t *)p == page && last == (char)(page | 1);
	case ZEROS:
		return !first && !last;
	case OF_FILE:
		return page != pages || !memcmp((char *)p + 1, "ELF", 3);
	}
	return 0;
}

static int is_wrong(size_t page)
{
	if (sigsetjmp(back, 1))
		return states[page] != GUARD;
	return !is_as_said(page);
}

static void change(size_t page)
{
	char *p = (char *)at(page);
	if (states[page] == GUARD) {
		if (madvise(p, PAGE, REMOVE))
			exit(1);
		states[page] = page < pages ? ZEROS : OF_FILE;
		return;
	}
	if (states[page] == ZEROS && chosen(2)) {
		*(size_t *)p = page, p[PAGE - 1] = page | 1;
		states[page] = WRITTEN;
		return;
	}
	size_t run = page < pages ? 1 + chosen(4) : 1;
	if (page < pages && page + run > pages)
		run = pages - page;
	if (madvise(p, run * PAGE, INSTALL))
		exit(77);
	memset(states + page, GUARD, run);
}

static void throw_away(void)
{
	if (madvise(memory, pages * PAGE, INSTALL) || madvise(memory, pages * PAGE, REMOVE))
		exit(1);
	memset(states, ZEROS, pages);
}

static void check(size_t times)
{
	for (size_t i = 0; i < times; i++) {
		size_t page = chosen(pages + FILE_PAGES);
		if (is_wrong(page)) {
			printf("page %zu is wrong, state %d: ", page, states[page]);
			if (sigsetjmp(back, 1))
				puts("a guard");
			else
				printf("it holds %zu and %d\n", *(volatile size_t *)at(page), at(page)[PAGE - 1]);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	pages = (argc > 1 ? atol(argv[1]) : 1) * 256;
	seed = argc > 2 ? atoi(argv[2]) : 1;
	FILE *lines = fopen("lines", "w");
	int self = open("/proc/self/exe", O_RDONLY);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = mmap(NULL, FILE_PAGES * PAGE, PROT_READ, MAP_PRIVATE, self, 0);
	states = calloc(pages + FILE_PAGES, 1);
	if (!lines || memory == MAP_FAILED || file == MAP_FAILED || !states)
		return 1;
	signal(SIGSEGV, fault);
	memset(states + pages, OF_FILE, FILE_PAGES);
	for (size_t page = 0; page < pages; page++)
		*(size_t *)(memory + page * PAGE) = page, memory[page * PAGE + PAGE - 1] = page | 1;
	change(1), change(pages + 1);
	for (unsigned round = 0; access("end", F_OK); round++) {
		if (!unlink("throw"))
			throw_away();
		for (int i = 0; i < 8; i++)
			change(chosen(pages + FILE_PAGES));
		check(64);
		if (round % 64 == 32) {
			int status;
			pid_t child = fork();
			if (!child) {
				check(1000);
				_exit(0);
			}
			if (waitpid(child, &status, 0) < 0 || status)
				return 3;
		}
		fprintf(lines, "%u\n", round), fflush(lines);
		usleep(2000);
	}
	check(20000);
	puts("every guard is one");
	return 0;
}
