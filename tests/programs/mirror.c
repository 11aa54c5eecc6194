// Reads its own state in a way that only home can serve: when there is a file `read`, opens what its argument names and checks it.
//   mirror mem: its own memory, again and again by one descriptor; mirror relative: its status, by a path that begins in /proc
// Writes a line into `lines` in each turn until there is a file `enough`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile long known;

static void must(int good, const char *what)
{
	if (!good) {
		printf("not so: %s (%s)\n", what, strerror(errno));
		exit(3);
	}
}

int main(int argc, char **argv)
{
	int relative = argc > 1 && !strcmp(argv[1], "relative"), reads = 0, fd = -1;
	FILE *lines = fopen("lines", "w");
	for (int turn = 0; access("enough", F_OK); turn++) {
		char text[4096] = "";
		long found = -1;
		known = turn;
		if (relative && !access("read", F_OK)) {
			int directory = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
			fd = openat(directory, "status", O_RDONLY);
			must(directory >= 0 && fd >= 0 && read(fd, text, sizeof text - 1) > 0, "a status");
			must(strstr(text, "State:\tR (running)") && strstr(text, "TracerPid:\t0\n"), text);
			must(!close(fd) && !close(directory) && !unlink("read"), "an end of it");
			reads++;
		} else if (!relative && fd < 0 && !access("read", F_OK))
			must((fd = open("/proc/self/mem", O_RDWR)) >= 0 && ++reads, "a way to its memory");
		if (!relative && fd >= 0)
			must(pread(fd, &found, sizeof found, (uintptr_t)&known) == sizeof found && found == turn, "its own memory");
		fprintf(lines, "turn %d, read %d times\n", turn, reads);
		fflush(lines);
		nanosleep(&(struct timespec){0, 30000000}, NULL);
	}
	printf("read %d times\n", reads);
	return 0;
}
