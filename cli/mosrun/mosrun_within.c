/* How mosrun -X begins anew where its directories are its own: see kernel_helpers/namespaces/private.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "mosrun_self.h"
#include "mosrun_within.h"

/* The environment in a file of its own, each variable with its end: as words of a command all users could read it. -1: it cannot be made. */
static int kept_environment(void)
{
	int file = memfd_create("environment", 0);
	for (char **variable = environ; file >= 0 && *variable; variable++) {
		size_t size = strlen(*variable) + 1;
		for (size_t done = 0; done < size;) {
			ssize_t written = write(file, *variable + done, size - done);
			if (written < 0 && errno != EINTR) {
				close(file);
				return -1;
			}
			done += written > 0 ? (size_t)written : 0;
		}
	}
	return file;
}

_Noreturn void begin_within(const char *const *directories, int directory_count, char **words)
{
	char self[PATH_MAX + 16], helper[PATH_MAX + 16], kept[96], environment[16], *none[] = {NULL};
	struct rlimit stack = {RLIM_INFINITY, RLIM_INFINITY};
	int signal_at_end = 0, arguments = 0, n = 0, file = kept_environment();
	getrlimit(RLIMIT_STACK, &stack);
	prctl(PR_GET_PDEATHSIG, &signal_at_end);
	snprintf(kept, sizeof kept, "%llu,%u,%d", (unsigned long long)stack.rlim_cur, (unsigned)personality(0xffffffff), signal_at_end);
	snprintf(helper, sizeof helper, "%s/mosrun-private", above(1));
	snprintf(self, sizeof self, "%s", above(0));
	while (words[arguments])
		arguments++;
	snprintf(environment, sizeof environment, "%d", file);
	if (file < 0) {
		say("%s", strerror(errno));
		_exit(NOT_PERMITTED);
	}
	const char **all = calloc((size_t)(directory_count + arguments + 8), sizeof *all);
	if (!all) {
		say("%s", strerror(errno));
		_exit(NOT_PERMITTED);
	}
	all[n++] = helper;
	for (int i = 0; i < directory_count; i++)
		all[n++] = directories[i];
	all[n++] = "--";
	all[n++] = environment;
	all[n++] = self;
	all[n++] = "--within";
	all[n++] = kept;
	for (int i = 0; i < arguments; i++)
		all[n++] = words[i];
	execve(helper, (char **)all, none);
	say("%s: %s", helper, strerror(errno));
	_exit(NOT_PERMITTED);
}

void go_on_within(const char *kept)
{
	unsigned long long stack = 0;
	unsigned kind = 0;
	int signal_at_end = 0;
	struct rlimit limit;
	if (sscanf(kept, "%llu,%u,%d", &stack, &kind, &signal_at_end) != 3) {
		say("--within is mosrun's own, and not %s", kept);
		_exit(USAGE);
	}
	if (!getrlimit(RLIMIT_STACK, &limit)) {
		limit.rlim_cur = stack;
		setrlimit(RLIMIT_STACK, &limit);
	}
	personality(kind);
	if (signal_at_end)
		prctl(PR_SET_PDEATHSIG, signal_at_end);
}
