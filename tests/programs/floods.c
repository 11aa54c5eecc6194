/* floods: writes 400,000 bytes to a pipe at once, again and again, until there is a file `enough`; another thread reads 4 kB in 2 ms. A line to
 * `lines` for each, and says how many of them were not whole. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { SIZE = 400000 };

static char given[SIZE];
static int ends[2];

static void *take(void *nothing)
{
	char taken[4096];
	while (read(ends[0], taken, sizeof taken) > 0)
		usleep(2000);
	return nothing;
}

int main(void)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), cut = 0;
	pthread_t reader;
	if (pipe(ends) || pthread_create(&reader, NULL, take, NULL))
		return 2;
	for (int i = 0; access("enough", F_OK); i++) {
		cut += write(ends[1], given, SIZE) != SIZE;
		dprintf(lines, "%d\n", i);
	}
	printf("cut %d\n", cut);
	fflush(stdout);
	_exit(0);
}
