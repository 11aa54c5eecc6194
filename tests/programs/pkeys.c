/* pkeys: allocates protection keys 2 and 3 (1 is freed again), gives each a page, and writes what it has of them into the file `lines` again and
 * again until there is a file `enough`: what is allocated, what each thread may do by its keys (PKRU), the keys of the pages, and whether a write to
 * the page that key 2 protects faults. A second thread has a PKRU of its own; `child` in the directory: a child says what it has, too; `next`: it
 * executes itself anew, and has none then. Ends with status 77 where there are no keys. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static sigjmp_buf before;
static char *pages;
static volatile unsigned of_thread;
static volatile int is_asked;

static unsigned pkru(void)
{
	unsigned low, high;

	__asm__ volatile("rdpkru" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

static void set_pkru(unsigned value)
{
	__asm__ volatile("wrpkru" : : "a"(value), "c"(0), "d"(0));
}

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(before, 1);
}

static int faults(volatile char *at)
{
	const unsigned now = pkru();

	if (sigsetjmp(before, 1)) {
		set_pkru(now); /* a handler has another one */
		return 1;
	}
	*at = 1;
	return 0;
}

/* One digit for each page; x: it has none. */
static void keys_of_pages(char *said)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	unsigned long start = 0, end;
	char line[300];
	int key;

	while (smaps && fgets(line, sizeof line, smaps)) {
		unsigned long first;
		if (sscanf(line, "%lx-%lx ", &first, &end) == 2)
			start = first;
		if (sscanf(line, "ProtectionKey: %d", &key) == 1 && (char *)start >= pages && (char *)start < pages + 2 * PAGE)
			said += sprintf(said, "%d", key);
	}
	if (smaps)
		fclose(smaps);
}

static void say(int lines, const char *who)
{
	char said[400], keys[100] = "";
	unsigned allocated = 0;

	for (int key = 1; key < 16; key++)
		if (pkey_mprotect(pages + 2 * PAGE, PAGE, PROT_NONE, key) && errno == ENOMEM)
			allocated |= 1u << key;
	keys_of_pages(keys);
	is_asked = strcmp(who, "child");
	while (is_asked)
		usleep(1000);
	int length = snprintf(said, sizeof said, "%s: allocated %04x PKRU %08x thread %08x keys %s faults %d\n", who, allocated, pkru(),
	                      of_thread, keys, faults(pages));
	if (write(lines, said, (size_t)length) != length)
		_exit(1);
}

static void *another(void *nothing)
{
	pkey_set(3, PKEY_DISABLE_WRITE);
	for (;; usleep(500))
		if (is_asked) {
			of_thread = pkru();
			is_asked = 0;
		}
	return nothing;
}

int main(int argc, char **argv)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	pthread_t thread;

	pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + 2 * PAGE, PAGE);
	signal(SIGSEGV, on_fault);
	if (argc > 1) {
		dprintf(lines, "anew: first key %d\n", pkey_alloc(0, 0));
		return 0;
	}
	if (pkey_alloc(0, 0) < 0)
		return 77;
	pkey_alloc(0, PKEY_DISABLE_WRITE);
	pkey_alloc(0, PKEY_DISABLE_ACCESS);
	pkey_free(1);
	pkey_mprotect(pages, PAGE, PROT_READ | PROT_WRITE, 2);
	pkey_mprotect(pages + PAGE, PAGE, PROT_READ, 3);
	pthread_create(&thread, NULL, another, NULL);
	while (access("enough", F_OK)) {
		say(lines, "process");
		if (!access("child", F_OK)) {
			pid_t child = fork();
			if (!child) {
				say(lines, "child");
				_exit(0);
			}
			waitpid(child, NULL, 0);
			unlink("child");
		}
		if (!access("next", F_OK)) {
			unlink("next");
			execl(argv[0], argv[0], "anew", NULL);
		}
		usleep(20000);
	}
	return 0;
}
