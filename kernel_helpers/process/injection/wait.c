/* Waiting for a traced thread to stop. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_US 20000  /* between two looks whether a thread that is waited for has ended */

int64_t inject_now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Whether tid has ended. A main thread that has cannot be waited for before the other threads have been. */
static bool has_ended(int tid)
{
	char path[32], text[512], *name_end;
	snprintf(path, sizeof path, "/proc/%d/stat", tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT;
	ssize_t size = read(fd, text, sizeof text - 1);
	close(fd);
	text[size > 0 ? size : 0] = 0;
	name_end = strrchr(text, ')');
	return size < 0 ? errno == ESRCH : name_end && (name_end[2] == 'Z' || name_end[2] == 'X');
}

/* 0 and the wait status of tid; -ETIMEDOUT; -ESRCH: it has ended, and others have to be waited for before it. waitpid() has no
 * timeout, so this asks again and again: first giving way to the tracee (which often needs this very cpu), then in sleeps that
 * grow to 1 ms. */
int inject_wait(int tid, int64_t timeout_us, int *status)
{
	int64_t end = 0, look = 0;
	long pause_ns = 5000;
	bool ended = false;
	for (long tries = 0;; tries++) {
		int r = waitpid(tid, status, __WALL | WNOHANG);
		if (r == tid)
			return 0;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (tries < 40) {
			sched_yield();
			continue;
		}
		int64_t now = inject_now_us();
		if (!end) {
			end = now + timeout_us;
			look = now + LOOK_US;
		} else if (now >= end) {
			return -ETIMEDOUT;
		} else if (now >= look) {
			/* Twice: while another thread executes a program, the main one is seen to have ended, and its number goes over to that one. */
			bool before = ended;
			ended = has_ended(tid);
			if (before && ended)
				return -ESRCH;
			look = now + LOOK_US;
		}
		struct timespec pause = {0, pause_ns};
		nanosleep(&pause, NULL);
		if (pause_ns < 1000000)
			pause_ns += pause_ns / 2;
	}
}

/* Gives way, the longer the more often it was of no use. */
void inject_give_way(long tries)
{
	if (tries < FIRST_YIELDS) {
		sched_yield();
		return;
	}
	struct timespec pause = {0, tries < 60 ? 5000 : tries < 80 ? 50000 : 1000000};
	nanosleep(&pause, NULL);
}

/* Whether a thread that was let go, or asked to stop, has stopped or ended by now. 1: it has, see `status`; 0; a negative errno. */
int inject_has_stopped(int tid, int *status)
{
	int found = waitpid(tid, status, __WALL | WNOHANG);
	return found == tid ? 1 : found == 0 || errno == EINTR ? 0 : -errno;
}
