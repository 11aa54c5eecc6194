/* A sandbox is made: the holder, which stays, and process 1 of the new namespaces.
 *
 *   holder (all rights of the caller)                     process 1 (root of the new user namespace)
 *   a mount namespace, the clocks
 *   clone3 -----------------------------------------------> waits
 *   its maps of users and groups; the root; /proc
 *   "go" --------------------------------------------------> becomes root inside, joins the cgroups
 *   shows files, when it is asked to                       reaps, gives out pids, makes vessels
 *
 * The mount namespace is the holder's, and so of the user namespace outside: no capability inside changes a mount of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

#define CGROUPS 32 /* hierarchies */
#define INSIDE (CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)

/* What the kernel counts for each user: for all of the sandbox together as well, by what its maker may have. */
static const int counted[] = {RLIMIT_NPROC, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_MEMLOCK};
#define COUNTED (sizeof counted / sizeof *counted)

/* CRIU's kernel probes connect to themselves. */
static void raise_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
		sandbox_fail("loopback");
	close(fd);
}

/* The children's clocks run ahead of ours. Offsets are counted against the first time namespace of all, so that ours count too. */
static void shift_clocks(const char *ahead)
{
	static const char *names[] = {"monotonic", "boottime"};
	long long shift[2], offset[2] = {0, 0};
	char line[128], name[32];
	long long seconds, nanoseconds;
	if (sscanf(ahead, "%lld:%lld", &shift[0], &shift[1]) != 2) {
		errno = EINVAL;
		sandbox_fail("clocks");
	}
	if (unshare(CLONE_NEWTIME))
		sandbox_fail("time namespace");
	FILE *file = fopen("/proc/self/timens_offsets", "re");
	if (!file)
		sandbox_fail("timens_offsets");
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "%31s %lld %lld", name, &seconds, &nanoseconds) == 3)
			for (int i = 0; i < 2; i++)
				if (!strcmp(name, names[i]))
					offset[i] = seconds * 1000000000LL + nanoseconds;
	fclose(file);
	int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
	for (int i = 0; i < 2; i++) {
		long long wanted = offset[i] + shift[i];
		seconds = wanted / 1000000000LL;
		nanoseconds = wanted % 1000000000LL;
		if (nanoseconds < 0) {
			nanoseconds += 1000000000LL;
			seconds--;
		}
		int size = snprintf(line, sizeof line, "%s %lld %lld\n", names[i], seconds, nanoseconds);
		if (fd < 0 || write(fd, line, size) != size)
			sandbox_fail("timens_offsets");
	}
	close(fd);
}

/* As fork(), with namespaces. */
static pid_t clone_into(unsigned long long flags)
{
	struct {
		unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
	} a = {.flags = flags, .exit_signal = SIGCHLD};
	return syscall(SYS_clone3, &a, sizeof a);
}

static void write_map(pid_t pid, const char *which, const char *lines)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, which);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t size = strlen(lines);
	if (fd < 0 || write(fd, lines, size) != size)
		sandbox_fail(which);
	close(fd);
}

static void lift_limits(struct rlimit before[COUNTED])
{
	struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
	for (size_t i = 0; i < COUNTED; i++)
		if (getrlimit(counted[i], &before[i]) || setrlimit(counted[i], &none))
			before[i].rlim_max = 0; /* it is as it was */
}

static void put_back_limits(const struct rlimit before[COUNTED])
{
	for (size_t i = 0; i < COUNTED; i++)
		if (before[i].rlim_max)
			setrlimit(counted[i], &before[i]);
}

static void wait_for(pid_t child)
{
	int status;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			sandbox_fail("waitpid");
	if (status)
		exit(125); /* it has said why */
}

/* /proc shows the pid namespace of who mounts it. */
static void mount_proc(pid_t first)
{
	pid_t helper = fork();
	if (helper < 0)
		sandbox_fail("fork");
	if (!helper) {
		int fd = syscall(SYS_pidfd_open, first, 0);
		if (fd < 0 || setns(fd, CLONE_NEWPID))
			sandbox_fail("the pids of the sandbox");
		pid_t inside = fork();
		if (inside < 0)
			sandbox_fail("fork");
		if (!inside) {
			if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
				sandbox_fail("/proc");
			_exit(0);
		}
		wait_for(inside);
		_exit(0);
	}
	wait_for(helper);
}

static void set_names(const struct requests *q)
{
	if (q->hostname && sethostname(q->hostname, strlen(q->hostname)))
		sandbox_fail("hostname");
	if (q->domainname && setdomainname(q->domainname, strlen(q->domainname)))
		sandbox_fail("domainname");
}

/* Only process 1 is in the guest's cgroups, and not before it is ready: there it has to wait for its turn among other guests. */
static void be_first(const struct requests *q, int up, int go, const int *groups, int count)
{
	char ok;
	if (read(go, &ok, 1) != 1)
		_exit(125); /* the holder has said why */
	sandbox_offer_to_oom_killer(); /* while its file is ours */
	if (q->uids)
		sandbox_become_root();
	sandbox_die_with_parent(); /* after that: a change of credentials clears it */
	struct pollfd holder = {go, 0, 0};
	if (poll(&holder, 1, 0) && holder.revents & POLLHUP)
		_exit(125);
	setsid();
	sigset_t children;
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	sigprocmask(SIG_BLOCK, &children, NULL);
	set_names(q);
	raise_loopback();
	prctl(PR_SET_NAME, "farhome-sandbox");
	int last_pid = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
	int orphans = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
	if (last_pid < 0 || orphans < 0)
		sandbox_fail("process 1");
	for (int i = 0; i < count; i++)
		sandbox_enter_cgroup(groups[i]);
	if (unshare(CLONE_NEWCGROUP))
		sandbox_fail("unshare");
	if (write(up, "+", 1) != 1)
		sandbox_fail("pipe");
	/* Nothing else stays open: first out of the way, for what is needed may have one of these numbers. */
	int kept[3] = {q->numbers, last_pid, orphans};
	for (int i = 0; i < 3; i++)
		kept[i] = kept[i] < 0 ? -1 : fcntl(kept[i], F_DUPFD_CLOEXEC, 64);
	for (int i = 0; i < 3; i++)
		if (kept[i] < 0 || dup2(kept[i], i) < 0)
			close(i);
	syscall(SYS_close_range, 3, ~0u, 0);
	sandbox_serve_forever(2, q->numbers < 0 ? -1 : 0, 1);
}

/* Shows files until process 1 has ended. */
static void keep(pid_t first, int files)
{
	char text[4096];
	int end = syscall(SYS_pidfd_open, first, 0), status;
	struct pollfd watched[2] = {{end, POLLIN, 0}, {files, POLLIN, 0}};
	while (end >= 0 && !(watched[0].revents & POLLIN)) {
		if (poll(watched, 2, -1) > 0 && watched[1].revents) {
			int tree;
			ssize_t length = sandbox_take_request(files, text, sizeof text, &tree);
			char answer = tree >= 0 && sandbox_show_file(tree, text) ? '+' : '-';
			if (tree >= 0)
				close(tree);
			if (length <= 0 || write(files, &answer, 1) != 1)
				watched[1].fd = -1;
		}
	}
	while (waitpid(first, &status, __WALL) < 0 && errno == EINTR)
		;
}

int sandbox_create(char **cgroups)
{
	int up[2], go[2], groups[CGROUPS], count = 0;
	char ok;
	struct rlimit before[COUNTED];
	struct requests q = sandbox_read_requests();
	sandbox_die_with_parent();
	for (; *cgroups && count < CGROUPS; cgroups++)
		groups[count++] = sandbox_open_cgroup(*cgroups);
	if (*cgroups) {
		errno = E2BIG;
		sandbox_fail(*cgroups);
	}
	if (unshare(CLONE_NEWNS))
		sandbox_fail("unshare");
	if (q.clocks)
		shift_clocks(q.clocks);
	if (pipe2(up, O_CLOEXEC) || pipe2(go, O_CLOEXEC))
		sandbox_fail("pipe");
	lift_limits(before);
	pid_t first = clone_into(INSIDE | (q.uids ? CLONE_NEWUSER : 0));
	if (first < 0)
		sandbox_fail(q.uids ? "namespaces, one for users among them" : "namespaces");
	put_back_limits(before);
	if (!first) {
		close(up[0]);
		close(go[1]);
		be_first(&q, up[1], go[0], groups, count);
	}
	close(up[1]);
	close(go[0]);
	if (q.numbers >= 0)
		close(q.numbers);
	if (q.uids) {
		write_map(first, "uid_map", q.uids);
		write_map(first, "gid_map", q.gids ? q.gids : q.uids);
	}
	sandbox_make_root(&q);
	mount_proc(first);
	if (write(go[1], "+", 1) != 1 || read(up[0], &ok, 1) != 1)
		exit(125); /* it has said why */
	printf("%d\n", first);
	fflush(stdout);
	close(1);
	keep(first, q.files);
	return 0;
}

int sandbox_try(void)
{
	pid_t child = clone_into(CLONE_NEWUSER | INSIDE);
	if (child < 0)
		sandbox_fail("a user namespace");
	if (!child)
		_exit(0);
	wait_for(child);
	return 0;
}
