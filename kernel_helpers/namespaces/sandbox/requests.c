/* What a sandbox is to be, as its maker asks for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
struct mount_attributes { /* struct mount_attr */
	unsigned long long set, clear, propagation, userns;
};
#define ATTRIBUTE_RDONLY 1
#define ATTRIBUTE_NOSUID 2
#define ATTRIBUTE_NODEV 4
#define MAX_REQUEST (16 << 20)
#define MAX_BINDS 20000

static char *read_all(size_t *length)
{
	char *buffer = malloc(MAX_REQUEST + 1);
	size_t n = 0;
	ssize_t r;
	if (!buffer)
		sandbox_fail("memory");
	while ((r = read(0, buffer + n, MAX_REQUEST - n)) > 0)
		n += r;
	if (r < 0)
		sandbox_fail("requests");
	buffer[n] = 0;
	*length = n;
	return buffer;
}

static void open_source(struct bind *bind, const char *mode, const char *source)
{
	struct mount_attributes a = {ATTRIBUTE_NOSUID, 0, 1 << 18 /* MS_PRIVATE */, 0};
	struct stat st;
	if (!strcmp(mode, "ro"))
		a.set |= ATTRIBUTE_RDONLY;
	if (!strcmp(mode, "dev"))
		a.set = 0;
	else
		a.set |= ATTRIBUTE_NODEV;
	bind->tree = syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | O_CLOEXEC);
	if (bind->tree < 0 || syscall(SYS_mount_setattr, bind->tree, "", AT_EMPTY_PATH, &a, sizeof a))
		sandbox_fail(source);
	if (fstat(bind->tree, &st))
		sandbox_fail(source);
	bind->is_directory = S_ISDIR(st.st_mode);
}

struct requests sandbox_read_requests(void)
{
	static struct bind binds[MAX_BINDS];
	struct requests q = {0};
	size_t length;
	char *at = read_all(&length), *end = at + length;
	const char *words[4];
	q.size = "1g";
	q.numbers = q.files = -1;
	q.binds = binds;
	while (at < end) {
		int want = !strcmp(at, "bind") ? 4 : 2;
		for (int i = 0; i < want; i++) {
			if (at >= end) {
				errno = EINVAL;
				sandbox_fail("requests");
			}
			words[i] = at;
			at += strlen(at) + 1;
		}
		if (!strcmp(words[0], "hostname"))
			q.hostname = words[1];
		else if (!strcmp(words[0], "domainname"))
			q.domainname = words[1];
		else if (!strcmp(words[0], "size"))
			q.size = words[1];
		else if (!strcmp(words[0], "clocks"))
			q.clocks = words[1];
		else if (!strcmp(words[0], "uids"))
			q.uids = words[1];
		else if (!strcmp(words[0], "gids"))
			q.gids = words[1];
		else if (!strcmp(words[0], "root"))
			q.root = strtoul(words[1], NULL, 10);
		else if (!strcmp(words[0], "files"))
			q.files = atoi(words[1]);
		else if (!strcmp(words[0], "numbers"))
			q.numbers = atoi(words[1]);
		else if (want == 4 && q.count < MAX_BINDS) {
			open_source(&q.binds[q.count], words[1], words[2]);
			q.binds[q.count++].target = words[3];
		} else {
			errno = EINVAL;
			sandbox_fail(words[0]);
		}
	}
	return q;
}
