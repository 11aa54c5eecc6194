/* freeze MEGABYTES FILE [RATE]: holds that much touched memory, goes from page to page of it and counts its visits there: RATE pages a
 * second, in steps of a millisecond (0: none), or as many as it can; or (RATE -2) reads them only, and reports in FILE.samples how many
 * pages it had read when (seconds of the day's clock), in steps of two milliseconds.
 *
 * FILE says "ready" once the memory is filled. On SIGTERM everything is verified: FILE then says "intact VISITS" and the
 * exit status is 0, or "damaged" and 3. No file is open in between. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, VISITS = 1 };

static volatile sig_atomic_t ended;
static struct sample {
	double when;
	uint64_t read;
} samples[1 << 16];
static unsigned count;

static void on_end(int number)
{
	(void)number;
	ended = 1;
}

static uint64_t content(uint64_t page, uint64_t word)
{
	uint64_t value = (page * WORDS + word + 1) * UINT64_C(0x9E3779B97F4A7C15);

	return value ^ value >> 29;
}

static void say(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text) || close(file))
		_exit(4);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Returns whether memory is not what it was. */
static uint64_t read_at_random(const uint64_t *memory, uint64_t pages)
{
	uint64_t damaged = 0, at = 0, next = 0;

	for (uint64_t number = 0; !ended; number++) {
		at = (at * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407));
		next = (at >> 20) % pages;
		damaged |= memory[next * WORDS] ^ content(next, 0);
		if (number % 128)
			continue;
		double when = now();
		if (count < sizeof samples / sizeof *samples && (!count || when - samples[count - 1].when >= 0.002))
			samples[count++] = (struct sample){when, number};
	}
	return damaged;
}

static void tell_samples(const char *path)
{
	char name[4096];

	snprintf(name, sizeof name, "%s.samples", path);
	FILE *file = fopen(name, "w");
	for (unsigned i = 0; file && i < count; i++)
		fprintf(file, "%.6f %llu\n", samples[i].when, (unsigned long long)samples[i].read);
	if (file)
		fclose(file);
}

int main(int argc, char **argv)
{
	uint64_t pages, visits = 0, seen = 0, damaged = 0, at = 0;
	uint64_t *memory;
	char text[64];

	if (argc < 3 || argc > 4)
		return 64;
	long rate = argc == 4 ? strtol(argv[3], NULL, 10) : -1;
	pages = strtoull(argv[1], NULL, 10) << 20 >> 12;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 4;
	for (uint64_t page = 0; page < pages; page++)
		for (uint64_t word = 0; word < WORDS; word++)
			memory[page * WORDS + word] = word == VISITS ? 0 : content(page, word);
	signal(SIGTERM, on_end);
	say(argv[2], "ready\n");
	while (rate == 0 && !ended)
		usleep(1000);
	if (rate == -2) {
		damaged = read_at_random(memory, pages);
		tell_samples(argv[2]);
	}
	for (; !ended; visits++) {
		if (rate > 0 && visits % (rate / 1000) == 0)
			usleep(1000);
		at = (at * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407));
		uint64_t page = (at >> 20) % pages;

		memory[page * WORDS + VISITS]++;
		damaged |= memory[page * WORDS] ^ content(page, 0);
	}
	for (uint64_t page = 0; page < pages; page++)
		for (uint64_t word = 0; word < WORDS; word++)
			if (word == VISITS)
				seen += memory[page * WORDS + word];
			else
				damaged |= memory[page * WORDS + word] ^ content(page, word);
	snprintf(text, sizeof text, damaged || seen != visits ? "damaged\n" : "intact %llu\n", (unsigned long long)visits);
	say(argv[2], text);
	return damaged || seen != visits ? 3 : 0;
}
