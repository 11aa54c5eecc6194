/* counter PATH COUNT INTERVAL_MS MEGABYTES: appends COUNT numbered lines to PATH, one each INTERVAL_MS milliseconds, and
 * checks its own memory before each.
 *
 * The memory is a block whose word i holds mix(generation, i); each step checks one sixteenth and rewrites it for the next
 * generation, so a page that was lost, stale or moved elsewhere is found within sixteen steps, and all of it at the end.
 * Exit status: 0; 3 memory is not what was written; 4 a call failed that never fails. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PARTS = 16 };

static uint64_t mix(uint64_t generation, uint64_t index)
{
	uint64_t word = generation * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
	word ^= word >> 29;
	return word * 0x94d049bb133111ebu;
}

static void check(const uint64_t *block, size_t from, size_t to, uint64_t generation, long step)
{
	for (size_t i = from; i < to; i++)
		if (block[i] != mix(generation, i)) {
			printf("step %ld: word %zu is %#llx, not %#llx\n", step, i, (unsigned long long)block[i],
			       (unsigned long long)mix(generation, i));
			exit(3);
		}
}

static void must(int good, const char *what)
{
	if (!good) {
		printf("%s: %s\n", what, strerror(errno));
		exit(4);
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 64;
	const char *path = argv[1];
	long count = atol(argv[2]), interval = atol(argv[3]);
	size_t words = (size_t)atol(argv[4]) << 17, part = words / PARTS;
	uint64_t *block = malloc(words * sizeof *block);
	uint64_t generation[PARTS] = {0}, sum = 0;
	must(block != NULL, "malloc");
	for (size_t i = 0; i < words; i++)
		block[i] = mix(0, i);
	int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	must(file >= 0, "open");
	for (long step = 0; step < count; step++) {
		size_t which = (size_t)step % PARTS, from = which * part, to = from + part;
		check(block, from, to, generation[which], step);
		generation[which]++;
		for (size_t i = from; i < to; i++) {
			block[i] = mix(generation[which], i);
			sum += block[i];
		}
		char line[64];
		int length = snprintf(line, sizeof line, "%ld %016llx\n", step, (unsigned long long)sum);
		must(write(file, line, (size_t)length) == length, "write");
		struct timespec pause = {interval / 1000, interval % 1000 * 1000000};
		must(nanosleep(&pause, NULL) == 0, "nanosleep");
	}
	for (size_t which = 0; which < PARTS; which++)
		check(block, which * part, (which + 1) * part, generation[which], count);
	must(close(file) == 0, "close");
	printf("counted %ld, sum %016llx\n", count, (unsigned long long)sum);
	return 0;
}
