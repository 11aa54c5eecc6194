/* appender PATH COUNT MICROSECONDS: appends COUNT numbered lines to PATH, one write each, and sends the same lines through a pipe of
 * its own, reading each back; each call must succeed and count once. The lines of PATH must be 0, 1, 2, ... exactly.
 * Exit status: 0; 3 and a line if a call had another result. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void must(int good, const char *what, long number)
{
	if (!good) {
		printf("%s, line %ld: %s\n", what, number, strerror(errno));
		exit(3);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 64;
	long count = atol(argv[2]), interval = atol(argv[3]);
	int ends[2], file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	must(file >= 0, "open", -1);
	must(pipe2(ends, O_CLOEXEC) == 0, "pipe", -1);
	for (long number = 0; number < count; number++) {
		char line[32], back[32];
		struct timespec pause = {0, interval * 1000};
		int length = snprintf(line, sizeof line, "%ld\n", number);
		must(write(file, line, (size_t)length) == length, "write", number);
		must(write(ends[1], line, (size_t)length) == length, "write to the pipe", number);
		must(read(ends[0], back, sizeof back) == length && !memcmp(line, back, (size_t)length), "read from the pipe", number);
		if (interval)
			must(nanosleep(&pause, NULL) == 0, "nanosleep", number);
	}
	printf("appended %ld\n", count);
	return 0;
}
