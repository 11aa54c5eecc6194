/* dozes: computes for a moment, writes a byte, and waits up to a minute for one, time after time; on the processor that it began on, of which
 * three others want all. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static long used(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = epoll_create1(0);
	char byte;
	for (int i = 0; i < 3; i++)
		if (!fork())
			for (prctl(PR_SET_PDEATHSIG, SIGKILL);;)
				;
	epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
	for (int i = 0;; i++) {
		for (long end = used() + 2000000 * (1 + i % 4); used() < end;)
			;
		if (write(1, "", 1) != 1 || epoll_wait(epoll, &event, 1, 60000) != 1 || read(0, &byte, 1) != 1)
			return 0;
	}
}
