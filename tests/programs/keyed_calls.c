/* keyed_calls: system calls that read and write memory with a protection key, by what the thread may do there. Writes what each gave into the file
 * `lines`, again and again until there is a file `enough`. A line is the same natively, wherever the process is. Ends with status 77 where there
 * are no keys. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096 };

static char *page, *plain;
static int key, ends[2], lines;
static char said[600];

static void note(const char *what, long result)
{
	sprintf(said + strlen(said), "%s %ld%s%s ", what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
}

static void calls(unsigned rights)
{
	struct iovec both[2] = {{plain, 2}, {page, 2}};

	pkey_set(key, 0);
	memset(page, 0, PAGE);
	strcpy(page + 100, "lines");
	pkey_set(key, rights);
	sprintf(said + strlen(said), "rights %u: ", rights);
	if (write(ends[1], "abcdefgh", 8) != 8)
		_exit(2);
	note("read", read(ends[0], page, 1));
	note("readv", readv(ends[0], both, 2));
	note("across", read(ends[0], page - 1, 2));
	note("stat", stat(page + 100, (struct stat *)plain));
	note("fstat", fstat(lines, (struct stat *)page));
	note("write", write(ends[1], page, 2));
	note("writev", writev(ends[1], both, 2));
	pkey_set(key, 0);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	note("left", read(ends[0], plain, 100));
	fcntl(ends[0], F_SETFL, 0);
	pkey_set(key, rights);
}

int main(void)
{
	plain = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page = plain + PAGE;
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	key = pkey_alloc(0, 0);
	if (key < 0)
		return 77;
	if (pipe(ends) || pkey_mprotect(page, PAGE, PROT_READ | PROT_WRITE, key))
		return 2;
	while (access("enough", F_OK)) {
		*said = 0;
		calls(0);
		calls(PKEY_DISABLE_WRITE);
		calls(PKEY_DISABLE_ACCESS);
		strcat(said, "\n");
		if (write(lines, said, strlen(said)) != (long)strlen(said))
			return 2;
		usleep(20000);
	}
	return 0;
}
