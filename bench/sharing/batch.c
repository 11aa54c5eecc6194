/* Work that is counted, not timed, for jobs, yardstick and owner.
 *
 *   batch PIECES NUMBER FILE   writes to 16 MB, does so many pieces of work, adds a line to FILE: NUMBER and the nanoseconds since the epoch
 *   batch for SECONDS          works until then, or until SIGTERM; prints the pieces done, the nanoseconds that they took, and those of processor
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 1 << 20, MEMORY = 16 << 20 };

static volatile sig_atomic_t stopped;

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

static int64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* About two milliseconds of a processor. */
static void piece(void)
{
	static volatile uint32_t table[1 << 10];
	static uint64_t state = 88172645463325252ULL;

	for (int i = 0; i < ROUNDS; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		table[state & ((1 << 10) - 1)] += (uint32_t)state;
	}
}

static int work_for(double seconds)
{
	int64_t begun = now(CLOCK_MONOTONIC), end = begun + (int64_t)(seconds * 1e9), last = begun;
	long done = 0;

	signal(SIGTERM, stop);
	for (; !stopped && last < end; done++) {
		piece();
		last = now(CLOCK_MONOTONIC);
	}
	return printf("%ld %lld %lld\n", done, (long long)(last - begun), (long long)now(CLOCK_PROCESS_CPUTIME_ID)) < 0;
}

int main(int argc, char **argv)
{
	char *memory = malloc(MEMORY), line[64];
	int file;

	if (argc == 3 && !strcmp(argv[1], "for"))
		return work_for(atof(argv[2]));
	if (argc != 4 || !memory)
		return 64;
	memset(memory, 1, MEMORY);
	for (long left = atol(argv[1]); left > 0; left--) {
		memory[(left * 4096) % MEMORY]++;
		piece();
	}
	snprintf(line, sizeof line, "%s %lld\n", argv[2], (long long)now(CLOCK_REALTIME));
	file = open(argv[3], O_WRONLY | O_CREAT | O_APPEND, 0666);
	return file < 0 || write(file, line, strlen(line)) != (ssize_t)strlen(line);
}
