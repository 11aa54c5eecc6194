/* places CHILDREN RECORDS [ROUNDS]: a process and its children have one file open by one description. All read it at places of their own,
 * and from the position that they share, so that each record comes to exactly one of them in each round. The children of
 * a round end with it; the file is another one each tenth round. A round writes a line into the file `lines`; it ends when there is a
 * file `enough`, or after ROUNDS. Where FARHOME_SPLIT is set, it is a guest of bench/calls/link_pair.py, which cannot have children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 64 /* records of one read */
#define PLACES 40 /* reads of another place between two that go on */
#define CHILDREN 16

struct part {
	unsigned long first, count;
};

static unsigned long records, base;
static unsigned char *seen;
static int fd = -1;

static void fail(const char *what, long got, long wanted)
{
	printf("%s: %ld, not %ld (errno %d)\n", what, got, wanted, errno);
	fflush(stdout);
	_exit(1);
}

static void check(const char *what, const unsigned long *found, long bytes, long wanted, unsigned long first)
{
	if (bytes != wanted)
		fail(what, bytes, wanted);
	for (long i = 0; i < bytes / 8; i++)
		if (found[i] != base + first + i)
			fail(what, found[i], base + first + i);
}

static void read_at_places(unsigned *chance)
{
	unsigned long found[MOST];

	for (int i = 0; i < PLACES; i++) {
		unsigned long first = rand_r(chance) % records, count = 1 + rand_r(chance) % MOST, half = count / 2;
		long wanted = 8 * (first + count > records ? records - first : count);
		struct iovec parts[2] = {{found, 8 * half}, {found + half, 8 * (count - half)}};
		switch (i % 3) {
		case 0:
			check("pread", found, pread(fd, found, 8 * count, 8 * first), wanted, first);
			break;
		case 1:
			check("preadv", found, preadv(fd, parts, 2, 8 * first), wanted, first);
			break;
		default:
			check("preadv2", found, preadv2(fd, parts, 2, 8 * first, 0), wanted, first);
		}
	}
}

/* Takes its part of the file, and says which. */
static void read_on(int to, unsigned chance)
{
	unsigned long found[MOST];
	long bytes;

	for (;;) {
		read_at_places(&chance);
		struct iovec part = {found, 8 * (1 + rand_r(&chance) % MOST)};
		bytes = rand_r(&chance) % 2 ? read(fd, found, part.iov_len) : preadv2(fd, &part, 1, -1, 0);
		if (bytes <= 0)
			break;
		struct part got = {found[0] - base, bytes / 8};
		check("read", found, bytes, bytes, got.first);
		if (write(to, &got, sizeof got) != sizeof got)
			fail("write", -1, sizeof got);
	}
	if (bytes)
		fail("read", bytes, 0);
}

static void make(long round)
{
	unlink("records");
	fd = open("records", O_RDWR | O_CREAT | O_EXCL, 0600);
	base = round * 1000003;
	for (unsigned long i = 0; i < records; i++) {
		unsigned long value = base + i;
		if (write(fd, &value, 8) != 8)
			fail("write of a record", -1, 8);
	}
	close(fd);
	fd = open("records", O_RDONLY);
}

static void round_of(long round, int children)
{
	pid_t child[CHILDREN];
	struct part got;
	int ends[2], status;
	long at = lseek(fd, 0, SEEK_CUR);

	if (pipe(ends) || (round % 10 && at != (long)records * 8) || lseek(fd, 0, SEEK_SET))
		fail("position", at, records * 8);
	for (int i = 0; i < children; i++)
		if (!(child[i] = fork())) {
			read_on(ends[1], round * CHILDREN + i + 1);
			_exit(0);
		}
	read_on(ends[1], round * CHILDREN);
	close(ends[1]);
	memset(seen, 0, records);
	while (read(ends[0], &got, sizeof got) == sizeof got)
		for (unsigned long i = 0; i < got.count; i++)
			if (got.first + i >= records || seen[got.first + i]++)
				fail("a record", got.first + i, -1);
	for (unsigned long i = 0; i < records; i++)
		if (!seen[i])
			fail("a record that was not read", i, -1);
	for (int i = 0; i < children; i++)
		if (waitpid(child[i], &status, 0) != child[i] || status)
			fail("child", status, 0);
	close(ends[0]);
}

int main(int argc, char **argv)
{
	int children = argc > 1 && atoi(argv[1]) <= CHILDREN ? atoi(argv[1]) : 2;
	long rounds = argc > 3 ? atol(argv[3]) : 0;

	records = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
	seen = malloc(records);
	if (getenv("FARHOME_SPLIT"))
		for (int is_stub = fork();;)
			if (pause() && !is_stub)
				break;
	for (long round = 0; rounds ? round < rounds : access("enough", F_OK); round++) {
		if (!(round % 10)) {
			close(fd);
			make(round);
		}
		round_of(round, children);
		FILE *lines = fopen("lines", "a");
		fprintf(lines, "%ld\n", round);
		fclose(lines);
	}
	printf("all as it should be\n");
	return 0;
}
