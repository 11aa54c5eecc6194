/* Does a fixed piece of work again and again and writes the nanoseconds that each took, its line included. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int main(void)
{
	static volatile uint32_t table[1 << 14];
	uint64_t state = 88172645463325252ULL;
	int64_t last = now();

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (;;) {
		int64_t end;

		for (int i = 0; i < 120000000; i++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			table[state & ((1 << 14) - 1)] += (uint32_t)state;
		}
		end = now();
		if (printf("%lld\n", (long long)(end - last)) < 0)
			return 0;
		last = end;
	}
}
