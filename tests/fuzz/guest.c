/* See guest.h. */
#define _GNU_SOURCE
#include "guest.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

pid_t guest_begin(void)
{
	void *memory =
		mmap((void *)GUEST_MEMORY, GUEST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	pid_t pid = fork();
	if (pid < 0)
		abort();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}
