/* leaver COUNT: two threads append numbered lines, each to a file of its own; the second ends when `go` is there, and is joined. The first
 * goes on to COUNT. Exit status: 0; 3 the second thread did not return what it should. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void line(int file, long number)
{
	struct timespec pause = {0, 20000000};
	dprintf(file, "%ld\n", number);
	nanosleep(&pause, NULL);
}

static void *until_go(void *nothing)
{
	int file = open("second", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	for (long number = 0; access("go", F_OK); number++)
		line(file, number);
	close(file);
	(void)nothing;
	return (void *)42;
}

int main(int argc, char **argv)
{
	pthread_t second;
	void *result = NULL;
	if (argc != 2)
		return 64;
	int file = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	pthread_create(&second, NULL, until_go, NULL);
	for (long number = 0, count = atol(argv[1]); number < count; number++) {
		line(file, number);
		if (!result && !access("go", F_OK)) {
			pthread_join(second, &result);
			dprintf(file, "joined\n");
		}
	}
	return result == (void *)42 ? 0 : 3;
}
