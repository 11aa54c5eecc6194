/* sandbox: the namespaces and the small root that a guest lives in, and what has to happen inside them.
 *
 *   sandbox create [CGROUP...]            reads requests from stdin, prints the id of the sandbox's process 1, and stays
 *   sandbox try                           whether this kernel lets us make user namespaces: status 0, or says why not
 *   sandbox mount PID                     reads `bind` requests and carries them out in the sandbox of process 1 PID
 *   sandbox unmount PID PATH...           lazily; PATH "-" makes the root read-only
 *   sandbox run PID UID GID LAST [CGROUP...] -- PROGRAM [ARGUMENT...]
 *                                         PID 0: no sandbox. UID -1: as root of it. -2: as we are. Otherwise as that user with every capability
 *                                         except CAP_SYS_RESOURCE. LAST (0: as it comes): the pid before the one that the
 *                                         program gets in there. Exit status: the program's, 128 + signal when killed
 *
 * Requests are strings, each ended by NUL: `hostname NAME`, `domainname NAME`, `size BYTES`, `clocks MONOTONIC:BOOTTIME` (how
 * many ns ahead of the caller's they are inside), `uids MAP` and `gids MAP` (lines as in /proc/PID/uid_map: a user namespace; none without)
 * and `root ID` (which user root inside is outside), `numbers FD` (a socket through which process 1 gets the last pid, in digits,
 * or `v` and the pid of a vessel that it is to make, a process without a descriptor that waits for ever), `files FD` (one through which
 * the holder, this program, is given the mount of a file and the path at which the guest shall see it; both answer by '+' or '-'),
 * `bind ro|rw SOURCE TARGET` (every word its own string). Sources are opened in the caller's mount namespace, targets inside the sandbox, after its
 * root has become the only root: no target can lead out of it. CGROUP is the directory of a cgroup to join.
 *
 * Whatever fails ends this program with one line on stderr, status 125 and nothing left: mounts and namespaces die with
 * it. Every process here dies with the one that started it (PR_SET_PDEATHSIG), process 1 of the sandbox last in the row,
 * and with it all that is in the sandbox. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)

/* ---- from outside */

static void enter(const char *pid, int namespaces)
{
	int fd = syscall(SYS_pidfd_open, atoi(pid), 0);
	if (fd < 0 || setns(fd, namespaces) || chdir("/"))
		sandbox_fail("entering the sandbox");
	close(fd);
}

/* The user namespace of a process, -1 if it is ours. */
static int other_users(const char *pid)
{
	char path[64];
	struct stat ours, theirs;
	snprintf(path, sizeof path, "/proc/%d/ns/user", atoi(pid));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &theirs) || stat("/proc/self/ns/user", &ours))
		sandbox_fail(path);
	if (theirs.st_ino != ours.st_ino || theirs.st_dev != ours.st_dev)
		return fd;
	close(fd);
	return -1;
}

static int mount_into(const char *pid)
{
	struct requests q = sandbox_read_requests();
	enter(pid, CLONE_NEWNS);
	for (int i = 0; i < q.count; i++)
		sandbox_place(&q.binds[i]);
	return 0;
}

static int unmount(const char *pid, char **paths)
{
	enter(pid, CLONE_NEWNS);
	for (; *paths; paths++) {
		if (!strcmp(*paths, "-")) {
			if (sandbox_remount_root(1))
				sandbox_fail("making the root read-only");
		} else if (umount2(*paths, MNT_DETACH) && errno != EINVAL && errno != ENOENT)
			sandbox_fail(*paths);
	}
	return 0;
}

/* Another user, but with all capabilities that we have, except CAP_SYS_RESOURCE: also after exec. */
static void become(unsigned uid, unsigned gid)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	if (prctl(PR_SET_KEEPCAPS, 1) || setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
		sandbox_fail("becoming the user");
	if (syscall(SYS_capget, &header, data))
		sandbox_fail("capget");
	data[0].permitted &= ~(1u << CAP_SYS_RESOURCE);
	for (int i = 0; i < 2; i++)
		data[i].effective = data[i].inheritable = data[i].permitted;
	if (syscall(SYS_capset, &header, data))
		sandbox_fail("capset");
	for (int cap = 0; cap < 64; cap++)
		if (data[cap / 32].permitted & (1u << (cap % 32)))
			if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0))
				sandbox_fail("ambient capability");
}

/* Keeps the program and its children off the pids that it is to give out. Only a process inside the namespace can. */
static void set_last_pid(const char *last)
{
	int status;
	pid_t child = fork();
	if (child < 0)
		sandbox_fail("fork");
	if (!child) {
		int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
		if (fd < 0 || write(fd, last, strlen(last)) < 0)
			sandbox_fail("ns_last_pid");
		_exit(0);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			sandbox_fail("waitpid");
	if (status)
		exit(125);
}

static int run(char **arguments)
{
	const char *pid = arguments[0];
	long uid = atol(arguments[1]), gid = atol(arguments[2]);
	const char *last = arguments[3];
	char **program = arguments + 4;
	int status;
	for (; *program && strcmp(*program, "--"); program++)
		sandbox_enter_cgroup(sandbox_open_cgroup(*program));
	if (!*program || !*++program) {
		errno = EINVAL;
		sandbox_fail("run");
	}
	sandbox_die_with_parent();
	int users = strcmp(pid, "0") && uid != -2 ? other_users(pid) : -1;
	if (strcmp(pid, "0"))
		enter(pid, NAMESPACES | CLONE_NEWCGROUP | CLONE_NEWTIME);
	if (strcmp(last, "0"))
		set_last_pid(last);
	pid_t child = fork();
	if (child < 0)
		sandbox_fail("fork");
	if (!child) {
		if (strcmp(pid, "0") && uid != -2)
			sandbox_offer_to_oom_killer();
		/* A process inside has no more rights than root inside. */
		if (users >= 0 && setns(users, CLONE_NEWUSER))
			sandbox_fail("the users of the sandbox");
		if (users >= 0)
			sandbox_become_root();
		if (uid >= 0)
			become(uid, gid);
		sandbox_die_with_parent(); /* after become(): a change of credentials clears it */
		execv(*program, program);
		sandbox_fail(*program);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			sandbox_fail("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);     /* our caller's memory may be merged, a guest's is nobody's to compare */
	if (argc >= 2 && !strcmp(argv[1], "create"))
		return sandbox_create(argv + 2);
	if (argc == 2 && !strcmp(argv[1], "try"))
		return sandbox_try();
	if (argc == 3 && !strcmp(argv[1], "mount"))
		return mount_into(argv[2]);
	if (argc >= 3 && !strcmp(argv[1], "unmount"))
		return unmount(argv[2], argv + 3);
	if (argc >= 7 && !strcmp(argv[1], "run"))
		return run(argv + 2);
	fprintf(stderr, "sandbox: create | try | mount PID | unmount PID PATH... | run PID UID GID LAST [CGROUP...] -- PROGRAM...\n");
	return 125;
}
