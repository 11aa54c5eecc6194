/* confined COUNT: forbids itself by Landlock to open files and, where the kernel can, to reach sockets outside, as xz does;
 * then appends COUNT numbered lines to `lines`, one each 20 ms, and says in each whether it may still open another file.
 * Exit 77: this kernel has no Landlock. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct attributes {         /* struct landlock_ruleset_attr of Linux 6.12 */
	uint64_t files, network, scoped;
};

int main(int argc, char **argv)
{
	struct attributes a = {(1 << 13) - 1, 0, 0};
	struct timespec pause = {0, 20000000};
	size_t size = 8;
	int count = argc > 1 ? atoi(argv[1]) : 10;
	int out = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	int version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	if (version < 1)
		return 77;
	if (version >= 6) {
		a.scoped = 3;
		size = sizeof a;
	}
	int rules = syscall(SYS_landlock_create_ruleset, &a, size, 0);
	if (out < 0 || rules < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_landlock_restrict_self, rules, 0)) {
		perror("confined");
		return 1;
	}
	close(rules);
	for (int i = 0; i < count; i++) {
		int other = open("/etc/passwd", O_RDONLY);
		dprintf(out, "line %d: %s\n", i, other < 0 ? strerror(errno) : "open");
		nanosleep(&pause, NULL);
	}
	return 0;
}
