/* pushed ROUNDS MS: writes 16 MB to a full pipe without a reader, again and again, with a timer that goes off 2 to 2 + MS ms later: each
 * write must end with EINTR. A signal that comes while the call is on its way to where it waits must not be missed.
 * The timer goes off a second time after 2 s: that one is for a write that the first signal came just before; how many have needed it
 * is written in each line of `lines`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { BYTES = 16 << 20 };

static volatile sig_atomic_t signals;

static void on_alarm(int number)
{
	(void)number;
	signals++;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100, most = argc > 2 ? atoi(argv[2]) * 1000 : 30000, pipe_ends[2], lines, missed = 0;
	struct sigaction action = {.sa_handler = on_alarm};
	char *bytes = malloc(BYTES);
	if (!bytes || pipe2(pipe_ends, O_NONBLOCK) || sigaction(SIGALRM, &action, NULL))
		return 1;
	memset(bytes, 'x', BYTES);
	while (write(pipe_ends[1], bytes, 65536) > 0)
		;
	fcntl(pipe_ends[1], F_SETFL, 0);
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	for (int round = 0; round < rounds; round++) {
		struct itimerval soon = {{2, 0}, {0, 2000 + round * 7919 % most}};
		signals = 0;
		setitimer(ITIMER_REAL, &soon, NULL);
		for (int before = 0; !before;) {
			ssize_t written = write(pipe_ends[1], bytes, BYTES);
			if (written >= 0 || errno != EINTR) {
				printf("round %d: write gave %zd, %s\n", round, written, strerror(errno));
				return 3;
			}
			before = signals;
		}
		missed += signals > 1;
		memset(&soon, 0, sizeof soon);
		setitimer(ITIMER_REAL, &soon, NULL);
		dprintf(lines, "%d\n", missed);
	}
	return 0;
}
