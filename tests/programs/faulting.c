/* faulting SECONDS: writes to a page without access as fast as it can, until SIGTERM; the handler steps over the store. Each store must run
 * the handler exactly once, with its own address. Exit status: 0; 3 not so. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

static volatile long faults;
static char *volatile seen;
static volatile sig_atomic_t is_enough;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 3; /* the store below */
	faults++;
	seen = info->si_addr;
}

static void on_end(int signal)
{
	(void)signal;
	is_enough = 1;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (argc != 2 || page == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) || signal(SIGTERM, on_end) == SIG_ERR)
		return 1;
	printf("faulting\n");
	fflush(stdout);
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	time_t end = now.tv_sec + atol(argv[1]);
	for (long stores = 1; now.tv_sec < end && !is_enough; stores++) {
		__asm__ volatile("movb $1, (%%rax)" : : "a"(page + stores % 4096) : "memory");
		if (faults != stores || seen != page + stores % 4096)
			return 3;
		if (stores % 1000 == 0)
			clock_gettime(CLOCK_MONOTONIC, &now);
	}
	return 0;
}
