/* stack: sets its own stack limit to 32 MiB and uses 24 of them, then to 1 MiB and sees that no more is had; by setrlimit and prlimit. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static sigjmp_buf over;

static void on_fault(int number)
{
	siglongjmp(over, number);
}

static int __attribute__((noinline)) use(int mebibytes)
{
	volatile char room[MIB];
	memset((char *)room, mebibytes, sizeof room);
	return mebibytes > 1 ? use(mebibytes - 1) + room[7] : room[9];
}

static int fits(int mebibytes)
{
	if (sigsetjmp(over, 1))
		return 0;
	use(mebibytes);
	return 1;
}

int main(void)
{
	FILE *lines = fopen("lines", "w");
	stack_t aside = {.ss_sp = malloc(SIGSTKSZ), .ss_size = SIGSTKSZ};
	struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};
	sigaltstack(&aside, NULL);
	sigaction(SIGSEGV, &action, NULL);
	fputs("ready\n", lines);
	fflush(lines);
	while (access("go", F_OK))
		usleep(10000);
	struct rlimit before, limit, seen;
	getrlimit(RLIMIT_STACK, &before);
	limit = before;
	limit.rlim_cur = 32 * MIB;
	printf("prlimit %d, ", prlimit(0, RLIMIT_STACK, &limit, &seen));
	printf("old %d, 24 MiB %d; ", seen.rlim_cur == before.rlim_cur, fits(24));
	prlimit(0, RLIMIT_STACK, NULL, &seen);
	printf("new %d; ", seen.rlim_cur == 32 * MIB && seen.rlim_max == before.rlim_max);
	limit.rlim_cur = 40 * MIB;
	printf("setrlimit %d, ", setrlimit(RLIMIT_STACK, &limit));
	printf("36 MiB %d; ", fits(36));
	limit.rlim_cur = 1;
	limit.rlim_max = 0;
	printf("nonsense %d", setrlimit(RLIMIT_STACK, &limit));
	printf(" %s; 38 MiB %d, 50 MiB %d\n", strerror(errno), fits(38), fits(50));
	fflush(stdout);
	fputs("done\n", lines);
	fflush(lines);
	while (access("end", F_OK))
		usleep(10000);
	return 0;
}
