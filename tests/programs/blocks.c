/* blocks HOW: writes blocks of known bytes into the pipe `pipe`, which it makes, and says what each write(2) gives, and what SIGUSR1 does:
 *
 *   plain     a handler returns
 *   restart   likewise, with SA_RESTART
 *   waits     it returns when there is a file `go`
 *   jumps     it leaves by siglongjmp(3), upon which the block is begun anew
 *   none      there is none
 *
 * A handler makes the file `handles` first. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCKS = 3, SIZE = 1 << 18 };

static unsigned char blocks[BLOCKS][SIZE];
static const char *how;
static sigjmp_buf begin;
static volatile sig_atomic_t handled;

static void handle(int number)
{
	(void)number;
	handled++;
	close(open("handles", O_WRONLY | O_CREAT, 0600));
	while (!strcmp(how, "waits") && access("go", F_OK))
		usleep(10000);
	if (!strcmp(how, "jumps"))
		siglongjmp(begin, 1);
}

int main(int count, char **words)
{
	if (count < 2)
		return 2;
	how = words[1];
	for (unsigned i = 0; i < BLOCKS * SIZE; i++)
		blocks[i / SIZE][i % SIZE] = i * 2654435761u >> 13;
	struct sigaction action = {.sa_handler = handle, .sa_flags = strcmp(how, "restart") ? 0 : SA_RESTART};
	if (strcmp(how, "none"))
		sigaction(SIGUSR1, &action, NULL);
	mkfifo("pipe", 0600);
	int pipe = open("pipe", O_WRONLY);
	for (volatile int block = 0; block < BLOCKS; block++) {
		if (sigsetjmp(begin, 1))
			printf("jumped out of block %d\n", block);
		for (ssize_t done = 0, n; done < SIZE; done += n) {
			if ((n = write(pipe, blocks[block] + done, SIZE - done)) < 0)
				return 3;
			printf("block %d: wrote %zd at %zd, handled %d\n", block, n, done, (int)handled);
		}
	}
	return 0;
}
