/* writes MILLISECONDS ROUNDS [PAUSE [REST]]: writes a MiB to a pipe at once, which another thread empties only then, with a pause of so many
 * milliseconds after each part. Says what write(2) says, each time, and rests for a second, or REST milliseconds. No rounds: until there is
 * a file "enough". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char given[1 << 20], taken[1 << 16];
static int ends[2], pause_ms;

static void rest(int milliseconds)
{
	nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000l}, NULL);
}

static void *empty(void *milliseconds)
{
	rest(*(int *)milliseconds);
	while (read(ends[0], taken, sizeof taken) > 0)
		if (pause_ms)
			rest(pause_ms);
	return NULL;
}

int main(int count, char **words)
{
	if (count < 3)
		return 2;
	int milliseconds = atoi(words[1]), rounds = atoi(words[2]), rest_ms = count > 4 ? atoi(words[4]) : 1000;
	pause_ms = count > 3 ? atoi(words[3]) : 0;
	FILE *lines = fopen("lines", "w");
	for (int round = 0; rounds ? round < rounds : access("enough", F_OK) != 0; round++) {
		pthread_t reader;
		if (pipe(ends))
			return 3;
		pthread_create(&reader, NULL, empty, &milliseconds);
		fputs("writes\n", lines);
		fflush(lines);
		ssize_t written = write(ends[1], given, sizeof given);
		close(ends[1]);
		pthread_join(reader, NULL);
		close(ends[0]);
		printf("wrote %zd\n", written);
		fflush(stdout);
		rest(rest_ms);
	}
	return 0;
}
