/* seeks FILE: sets the position of a sparse file in every way there is, and must get what a fresh open of the file gives: where there is
 * data, where there are holes, and what is too far. A round writes a line into the file `lines`; it ends when there is a file `enough`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096l
#define READS 20
#define FAR ((1l << 42) - 1) /* bytes: a few times as much is more than an ext4 may have */

static const long places[] = {0,         4095,      8 * PAGE, 9 * PAGE + 1, 12 * PAGE, 40 * PAGE,
                              64 * PAGE, 65 * PAGE, -1,       1l << 33,     1l << 43,  LONG_MAX};
static const int whences[] = {SEEK_DATA, SEEK_HOLE, SEEK_END, SEEK_CUR, SEEK_SET, 17};

static void fail(const char *what, long got, long wanted)
{
	printf("%s: %ld, not %ld (errno %d)\n", what, got, wanted, errno);
	fflush(stdout);
	_exit(1);
}

static void seek_both(int fd, int other, long place, int whence)
{
	errno = 0;
	long wanted = lseek(other, place, whence), error = errno;
	errno = 0;
	long got = lseek(fd, place, whence);
	if (got != wanted || errno != error || lseek(fd, 0, SEEK_CUR) != lseek(other, 0, SEEK_CUR))
		fail("seek", got, wanted);
}

static void read_some(int fd)
{
	char byte;

	for (int i = 0; i < READS; i++)
		if (pread(fd, &byte, 1, 8 * PAGE) != 1 || byte != 1)
			fail("a byte", byte, 1);
	if (lseek(fd, 33 * PAGE - 1, SEEK_SET) != 33 * PAGE - 1 || read(fd, &byte, 1) != 1 || byte != 1 || read(fd, &byte, 1) != 1 || byte)
		fail("a byte before a hole", byte, 0);
}

int main(int argc, char **argv)
{
	char bytes[4 * PAGE];
	const char *name = argc > 1 ? argv[1] : "sparse";
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600), other;

	memset(bytes, 1, sizeof bytes);
	if (ftruncate(fd, 64 * PAGE) || pwrite(fd, bytes, 4 * PAGE, 8 * PAGE) < 0 || pwrite(fd, bytes, PAGE, 32 * PAGE) < 0 || close(fd))
		fail("sparse file", fd, 0);
	fd = open(name, O_RDONLY);
	for (unsigned round = 0; access("enough", F_OK); round++) {
		for (unsigned i = 0; i < sizeof places / sizeof *places * (sizeof whences / sizeof *whences); i++) {
			read_some(fd);
			other = open(name, O_RDONLY);
			long at = lseek(fd, rand() % (70 * PAGE), SEEK_SET);
			if (lseek(other, at, SEEK_SET) != at)
				fail("where another is to be", at, -1);
			seek_both(fd, other, places[i % (sizeof places / sizeof *places)], whences[i / (sizeof places / sizeof *places)]);
			close(other);
		}
		read_some(fd);
		other = open(name, O_RDONLY);
		lseek(fd, 0, SEEK_SET);
		for (int i = 0; i < 6; i++)
			seek_both(fd, other, FAR, SEEK_CUR);
		close(other);
		FILE *lines = fopen("lines", "a");
		fprintf(lines, "%u\n", round);
		fclose(lines);
	}
	unlink(name);
	printf("all as it should be\n");
	return 0;
}
