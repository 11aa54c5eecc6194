/* What mfs-client and mfs-server say, and by which clock they go. */
#define _GNU_SOURCE
#include "mfs/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *mfs_program = "mfs";
const char *mfs_about;

long long mfs_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

static struct timespec moment(long long ms)
{
	return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
}

bool mfs_lock_until(pthread_mutex_t *lock, long long end)
{
	struct timespec then = moment(end);

	return !pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &then);
}

bool mfs_wait_until(pthread_cond_t *call, pthread_mutex_t *lock, long long end)
{
	struct timespec then = moment(end);

	return !pthread_cond_clockwait(call, lock, CLOCK_MONOTONIC, &then);
}

void mfs_log(const char *format, ...)
{
	va_list arguments;
	char line[1024];

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s%s%s: %s\n", mfs_program, mfs_about ? " " : "", mfs_about ? mfs_about : "", line);
}

int mfs_fail(const char *what, int error)
{
	mfs_log("%s: %s", what, strerror(error));
	return 1;
}
