/* The tree of files of a sandbox: nothing but what was asked for. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 4
#endif

/* They belong to who the root does: CRIU makes files there that have lost their names. */
static int make_parents(const char *path)
{
	char copy[4096];
	struct stat root;
	if (path[0] != '/' || strlen(path) >= sizeof copy) {
		errno = EINVAL;
		return -1;
	}
	if (stat("/", &root))
		return -1;
	strcpy(copy, path);
	for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (!mkdir(copy, 0755) ? chown(copy, root.st_uid, root.st_gid) : errno != EEXIST)
			return -1;
		*slash = '/';
	}
	return 0;
}

static int try_to_place(const struct bind *bind)
{
	if (make_parents(bind->target))
		return -1;
	if (bind->is_directory) {
		if (mkdir(bind->target, 0755) && errno != EEXIST)
			return -1;
	} else {
		int fd = open(bind->target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
		if (fd >= 0)
			close(fd);
		else if (errno != EEXIST)
			return -1;
	}
	return syscall(SYS_move_mount, bind->tree, "", AT_FDCWD, bind->target, MOVE_MOUNT_F_EMPTY_PATH);
}

void sandbox_place(const struct bind *bind)
{
	if (try_to_place(bind))
		sandbox_fail(bind->target);
	close(bind->tree);
}

static void make_directory(const char *path)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		sandbox_fail(path);
}

void sandbox_make_root(const struct requests *q)
{
	char options[128];
	snprintf(options, sizeof options, "mode=0755,size=%s,uid=%u,gid=%u", q->size, q->root, q->root);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		sandbox_fail("making mounts private");
	/* Any directory will do to stack the new root on; every system has this one. */
	if (mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV, options) || chdir("/proc"))
		sandbox_fail("tmpfs");
	/* Both roots at one place; the old one is then on top and goes with all its mounts. */
	if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		sandbox_fail("pivot_root");
	make_directory("/proc");
	make_directory("/dev");
	make_directory("/run");
	make_directory("/tmp"); /* CRIU's kernel probes want it */
	make_directory("/.farhome");
	make_directory("/.farhome/criu");
	make_directory("/.farhome/images");
	/* CRIU keeps what it learned of the kernel on /run, if that is a tmpfs. */
	snprintf(options, sizeof options, "mode=0755,size=16m,uid=%u,gid=%u", q->root, q->root);
	if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, options) || chown("/tmp", q->root, q->root))
		sandbox_fail("/run");
	for (int i = 0; i < q->count; i++)
		sandbox_place(&q->binds[i]);
}

int sandbox_remount_root(int read_only)
{
	return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0), NULL);
}

int sandbox_show_file(int tree, const char *target)
{
	struct bind bind = {tree, 0, target};
	if (sandbox_remount_root(0))
		return 0;
	int is_placed = !try_to_place(&bind);
	return !sandbox_remount_root(1) && is_placed;
}
