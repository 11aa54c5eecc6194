/* burns MS [THREADS [wait]]: uses so many milliseconds of processor time, in so many threads each; wait: when it has read a byte. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long wanted;

static void *burn(void *nothing)
{
	struct timespec used;
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	while (used.tv_sec * 1000 + used.tv_nsec / 1000000 < wanted);
	return nothing;
}

int main(int count, char **arguments)
{
	int threads = count > 2 ? atoi(arguments[2]) : 1;
	pthread_t others[16];
	wanted = count > 1 ? atol(arguments[1]) : 0;
	char byte;
	if (count > 3 && read(0, &byte, 1) != 1)
		return 2;
	for (int i = 1; i < threads && i < 16; i++)
		if (pthread_create(&others[i], NULL, burn, NULL))
			return 1;
	burn(NULL);
	for (int i = 1; i < threads && i < 16; i++)
		pthread_join(others[i], NULL);
	return 0;
}
