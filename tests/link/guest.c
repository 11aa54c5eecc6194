/* The program under test: `guest FAMILY [ARGUMENT]` runs natively; with FARHOME_SPLIT=N set it forks, and parent and
 * child make N-1 more threads each; all of them wait in pause(). The parent becomes the stub, the child the guest.
 * Everything it finds out goes to standard output, so that both runs can be compared. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/sem.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

static void files(void)
{
	char buffer[4096] = "", other[100];
	struct stat st;
	TRY(open("/nonexistent/file", O_RDONLY));
	TRY(open(wild, O_RDONLY));
	TRY(write(77, "x", 1));
	TRY(write(1, wild, 5));
	TRY(write(77, wild, 5));
	int fd = open("scratch", O_RDWR | O_CREAT | O_TRUNC, 0640);
	say("fd %d\n", fd);
	TRY(write(fd, "hello, world\n", 13));
	TRY(pwrite(fd, "HELLO", 5, 0));
	TRY(lseek(fd, 0, SEEK_SET));
	TRY(read(fd, buffer, sizeof buffer));
	say("%s", buffer);
	TRY(read(fd, wild, 10));
	TRY(pread(fd, buffer, 3, 100));
	TRY(pread(fd, NULL, 0, 0));
	struct iovec v[3] = {{buffer, 2}, {other, 3}, {buffer + 2, 100}};
	lseek(fd, 0, SEEK_SET);
	TRY(readv(fd, v, 3));
	say("%.2s|%.3s|%.8s\n", buffer, other, buffer + 2);
	struct iovec w[4] = {{"one", 3}, {NULL, 0}, {"three", 5}, {"\n", 1}};
	TRY(writev(fd, w, 4));
	struct iovec bad[2] = {{"abc", 3}, {wild, 3}};
	TRY(writev(fd, bad, 2));
	TRY(writev(fd, bad, -1));
	TRY(writev(fd, bad, 2000));
	TRY(pwritev(fd, w, 4, 50));
	TRY(preadv(fd, v, 3, 1));
	TRY(fstat(fd, &st));
	say("size %ld mode %o links %ld\n", (long)st.st_size, st.st_mode, (long)st.st_nlink);
	TRY(ftruncate(fd, 7));
	TRY(fsync(fd));
	TRY(fallocate(fd, 0, 0, 100));
	TRY(stat("scratch", &st));
	say("size %ld\n", (long)st.st_size);
	TRY(lstat("missing", &st));
	TRY(access("scratch", R_OK));
	TRY(chmod("scratch", 0600));
	TRY(fchmod(fd, 04755));
	TRY(symlink("scratch", "link"));
	memset(buffer, 'x', 20);
	TRY(readlink("link", buffer, 20));
	say("%.10s\n", buffer);
	TRY(link("scratch", "hard"));
	TRY(rename("hard", "moved"));
	TRY(unlink("moved"));
	TRY(mkdir("dir", 0755));
	TRY(chdir("dir"));
	char *cwd = getcwd(buffer, sizeof buffer);
	say("%s\n", cwd ? strrchr(cwd, '/') : "none");
	TRY(chdir(".."));
	TRY(rmdir("dir"));
	struct statfs fs;
	TRY(fstatfs(fd, &fs));
	TRY(statfs(".", &fs));
	say("bsize %ld\n", (long)fs.f_bsize);
	struct statx sx;
	TRY(statx(AT_FDCWD, "scratch", 0, STATX_SIZE, &sx));
	say("size %ld\n", (long)sx.stx_size);
	TRY(umask(027));
	TRY(umask(022));
	struct timespec times[2] = {{1000, 5}, {2000, 7}};
	TRY(futimens(fd, times));
	TRY(fstat(fd, &st));
	say("%ld.%ld %ld.%ld\n", (long)st.st_atim.tv_sec, st.st_atim.tv_nsec, (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	TRY(flock(fd, LOCK_EX | LOCK_NB));
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
	TRY(fcntl(fd, F_SETLK, &lock));
	lock.l_type = F_RDLCK;
	TRY(fcntl(fd, F_GETLK, &lock));
	say("type %d\n", lock.l_type);
	TRY(fcntl(fd, F_GETFL));
	TRY(fcntl(fd, F_SETFD, FD_CLOEXEC));
	TRY(fcntl(fd, F_GETFD));
	TRY(dup(fd));
	TRY(dup2(fd, 40));
	TRY(close(40));
	TRY(close(40));
	TRY(fcntl(fd, F_DUPFD, 30));
	char name[5000];
	memset(name, 'a', sizeof name);
	name[4999] = 0;
	TRY(open(name, O_RDONLY));
	name[4095] = 0;
	TRY(open(name, O_RDONLY));
	TRY(setxattr("scratch", "user.test", "value", 5, 0));
	memset(buffer, 0, 20);
	TRY(getxattr("scratch", "user.test", buffer, 20));
	TRY(getxattr("scratch", "user.test", NULL, 0));
	TRY(listxattr("scratch", buffer, 3));
	int in = open("scratch", O_RDONLY), out = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0600);
	off_t offset = 2;
	TRY(sendfile(out, in, &offset, 4));
	say("offset %ld\n", (long)offset);
	loff_t from = 1, to = 30;
	TRY(copy_file_range(in, &from, out, &to, 5, 0));
	say("%ld %ld\n", (long)from, (long)to);
	int value = 0;
	TRY(ioctl(fd, FIONREAD, &value));
	say("%d\n", value);
	TRY(ioctl(fd, TCGETS, buffer));
	TRY(unlink("link"));
}

static void directories(void)
{
	char name[40];
	mkdir("many", 0755);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof name, "many/file-with-some-length-%03d", i);
		close(open(name, O_CREAT | O_WRONLY, 0600));
	}
	DIR *d = opendir("many");
	int count = 0;
	unsigned long h = 0;
	for (struct dirent *e; (e = readdir(d)); count++)
		h += sum(e->d_name, strlen(e->d_name));
	say("%d entries %lx\n", count, h);
	closedir(d);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof name, "many/file-with-some-length-%03d", i);
		unlink(name);
	}
	TRY(rmdir("many"));
}

static void pipes(void)
{
	int p[2], n = 0;
	char buffer[100] = "";
	TRY(pipe(p));
	TRY(write(p[1], "abcdef", 6));
	TRY(ioctl(p[0], FIONREAD, &n));
	say("%d waiting\n", n);
	struct pollfd fds[3] = {{p[0], POLLIN, 9}, {p[1], POLLOUT, 9}, {77, POLLIN, 9}};
	TRY(poll(fds, 3, 0));
	say("%d %d %d\n", fds[0].revents, fds[1].revents, fds[2].revents);
	fd_set set, wset;
	FD_ZERO(&set);
	FD_ZERO(&wset);
	FD_SET(p[0], &set);
	FD_SET(p[1], &wset);
	struct timeval tv = {3, 500};
	TRY(select(p[1] + 1, &set, &wset, NULL, &tv));
	say("%d %d %d\n", FD_ISSET(p[0], &set) != 0, FD_ISSET(p[1], &wset) != 0, tv.tv_sec <= 3);
	struct timespec ts = {0, 1000000};
	TRY(read(p[0], buffer, 100));
	TRY(ppoll(fds, 1, &ts, NULL));
	FD_SET(p[0], &set);
	sigset_t mask;
	sigemptyset(&mask);
	ts = (struct timespec){0, 2000000};
	TRY(pselect(p[0] + 1, &set, NULL, NULL, &ts, &mask));
	int e = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {EPOLLIN, {.u64 = 0x1234567890abcdef}}, events[4];
	TRY(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event));
	TRY(epoll_ctl(e, EPOLL_CTL_ADD, 99, &event));
	TRY(epoll_wait(e, events, 4, 0));
	write(p[1], "x", 1);
	TRY(epoll_wait(e, events, 4, -1));
	say("%x %lx\n", events[0].events, (unsigned long)events[0].data.u64);
	TRY(epoll_pwait(e, events, 4, 0, &mask));
	int v = eventfd(3, EFD_NONBLOCK);
	uint64_t count = 0;
	TRY(read(v, &count, 8));
	say("%lu\n", (unsigned long)count);
	TRY(read(v, &count, 8));
	int t = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec its = {{0, 0}, {0, 3000000}}, old;
	TRY(timerfd_settime(t, 0, &its, &old));
	TRY(read(t, &count, 8));
	say("%lu\n", (unsigned long)count);
	int q[2];
	TRY(pipe2(q, O_NONBLOCK));
	TRY(read(q[0], buffer, 1));
	write(p[1], "spliced", 7);
	TRY(splice(p[0], NULL, q[1], NULL, 8, 0));
	TRY(tee(q[0], p[1], 3, 0));
	TRY(read(q[0], buffer, 100));
	say("%.8s\n", buffer);
	TRY(close(p[1]));
	TRY(read(p[0], buffer, 100));
	TRY(read(p[0], buffer, 100));
	int i = inotify_init1(IN_NONBLOCK);
	TRY(inotify_add_watch(i, ".", IN_CREATE));
	close(open("watched", O_CREAT, 0600));
	TRY(read(i, buffer, 100));
	unlink("watched");
}

static void sockets(void)
{
	int one = 1, value;
	socklen_t length = sizeof value;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char buffer[200] = "", part[10] = "";
	int l = socket(AF_INET, SOCK_STREAM, 0);
	TRY(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	TRY(getsockopt(l, SOL_SOCKET, SO_REUSEADDR, &value, &length));
	say("%d %d\n", value, (int)length);
	TRY(bind(l, (void *)&a, sizeof a));
	TRY(bind(l, (void *)&a, 3));
	TRY(listen(l, 5));
	socklen_t n = sizeof a;
	TRY(getsockname(l, (void *)&a, &n));
	say("%d %d\n", a.sin_family, (int)n);
	int c = socket(AF_INET, SOCK_STREAM, 0);
	TRY(connect(c, (void *)&a, sizeof a));
	struct sockaddr_in from;
	n = 8;
	memset(&from, 0x55, sizeof from);
	int s = accept(l, (void *)&from, &n);
	say("accept %d: %d, %x after\n", s, (int)n, ((unsigned char *)&from)[9]);
	TRY(send(c, "hello", 5, 0));
	TRY(recv(s, buffer, 200, MSG_PEEK));
	TRY(recvfrom(s, buffer, 200, 0, NULL, NULL));
	say("%s\n", buffer);
	TRY(recv(s, buffer, 200, MSG_DONTWAIT));
	struct iovec v[2] = {{"scat", 4}, {"tered", 5}}, r[2] = {{part, 3}, {buffer, 100}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	TRY(sendmsg(c, &m, 0));
	struct msghdr g = {.msg_iov = r, .msg_iovlen = 2};
	TRY(recvmsg(s, &g, 0));
	say("%s|%s\n", part, buffer);
	TRY(shutdown(c, SHUT_WR));
	TRY(recv(s, buffer, 10, 0));
	int u[2];
	TRY(socketpair(AF_UNIX, SOCK_DGRAM, 0, u));
	char control[64];
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(4)};
	memset(control, 0, sizeof control);
	struct cmsghdr *k = CMSG_FIRSTHDR(&h);
	k->cmsg_level = SOL_SOCKET, k->cmsg_type = SCM_RIGHTS, k->cmsg_len = CMSG_LEN(4);
	memcpy(CMSG_DATA(k), &s, 4);
	TRY(sendmsg(u[0], &h, 0));
	memset(control, 0, sizeof control);
	struct msghdr in = {.msg_iov = r, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
	TRY(recvmsg(u[1], &in, 0));
	k = CMSG_FIRSTHDR(&in);
	memcpy(&value, CMSG_DATA(k), 4);
	say("descriptor %d, control %d, flags %d\n", value, (int)in.msg_controllen, in.msg_flags);
	for (int i = 0; i < 3; i++)
		send(u[0], "datagram" + i, 8 - i, 0);
	char box[3][12];
	memset(box, 'z', sizeof box);
	struct iovec bv[3] = {{box[0], 12}, {box[1], 12}, {box[2], 4}};
	struct mmsghdr mm[3] = {{{.msg_iov = bv, .msg_iovlen = 1}, 0},
	                        {{.msg_iov = bv + 1, .msg_iovlen = 1}, 0},
	                        {{.msg_iov = bv + 2, .msg_iovlen = 1}, 0}};
	TRY(recvmmsg(u[1], mm, 3, MSG_DONTWAIT, NULL));
	say("%d %d %d %.36s flags %d\n", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len, box[0], mm[2].msg_hdr.msg_flags);
	TRY(sendmmsg(u[0], mm, 2, 0));
	say("%d %d\n", mm[0].msg_len, mm[1].msg_len);
	TRY(recv(u[1], buffer, 3, MSG_TRUNC));
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "sock"};
	int us = socket(AF_UNIX, SOCK_DGRAM, 0);
	TRY(bind(us, (void *)&name, sizeof name));
	TRY(sendto(u[0], "x", 1, 0, (void *)&name, sizeof name));
	n = sizeof name;
	TRY(recvfrom(us, buffer, 10, 0, (void *)&name, &n));
	say("name length %d\n", (int)n);
	unlink("sock");
	TRY(getpeername(us, (void *)&name, &n));
}

static void identity(void)
{
	struct utsname u;
	struct rlimit limit;
	struct rusage usage;
	struct itimerval it;
	char name[20] = "";
	int value = 7;
	TRY(uname(&u));
	say("%s %s %s\n", u.sysname, u.nodename, u.release);
	TRY(getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = 200;
	TRY(setrlimit(RLIMIT_NOFILE, &limit));
	TRY(prlimit(0, RLIMIT_NOFILE, NULL, &limit));
	say("%ld\n", (long)limit.rlim_cur);
	TRY(getrusage(RUSAGE_CHILDREN, &usage));
	TRY(getpriority(PRIO_PROCESS, 0));
	TRY(nice(1));
	TRY(getpgrp() == getpgid(0));
	TRY(getsid(0) > 0);
	TRY(getppid() > 0);
	TRY(getuid());
	TRY(times(NULL) > 0);
	TRY(kill(1 << 22, 0));
	TRY(kill(getpid(), 0) <= 0);
	TRY(prctl(PR_SET_NAME, "renamed-to-long-name"));
	TRY(prctl(PR_GET_NAME, name));
	say("%s\n", name);
	TRY(prctl(PR_GET_DUMPABLE));
	struct sigaction sa = {.sa_handler = SIG_IGN}, old;
	TRY(sigaction(SIGCHLD, &sa, &old));
	TRY(sigaction(SIGCHLD, NULL, &old));
	say("%d\n", old.sa_handler == SIG_IGN);
	TRY(getitimer(ITIMER_REAL, &it));
	TRY(alarm(100));
	TRY(alarm(0));
	struct timespec t = {0, 3000000}, rem = {9, 9};
	TRY(nanosleep(&t, &rem));
	TRY(clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL));
	t.tv_nsec = 2000000000;
	TRY(clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL));
	TRY(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t));
	cpu_set_t set;
	TRY(sched_getaffinity(0, sizeof set, &set));
	TRY(isatty(1));
	TRY(semget(IPC_PRIVATE, 1, 0600) >= 0);
}

static long nanoseconds(clockid_t clock)
{
	struct timespec t = {0, 0};
	if (clock_gettime(clock, &t))
		say("clock %d: %s\n", (int)clock, strerrorname_np(errno));
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

/* Reads the cpu clocks often; each must go on by what is computed in between, also across a call that is made at home. */
static void clocks(void)
{
	long first[2] = {nanoseconds(CLOCK_PROCESS_CPUTIME_ID), nanoseconds(CLOCK_THREAD_CPUTIME_ID)}, last[2] = {first[0], first[1]};
	for (int i = 0; i < 3000; i++) {
		for (volatile int j = 0; j < 20000; j++)
			;
		if (i % 1000 == 999)
			getppid();
		for (int which = 0; which < 2; which++) {
			long now = nanoseconds(which ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID);
			if (now <= last[which])
				say("clock %d stood still or went back in round %d: %ld, %ld\n", which, i, last[which], now);
			last[which] = now;
		}
	}
	say("%d %d\n", last[0] - first[0] > 5000000, last[1] - first[1] > 5000000);
	TRY(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, wild));
	TRY(syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, NULL));
	TRY(clock_gettime((~1 << 3) | 2, wild));
	TRY(clock_getres(CLOCK_PROCESS_CPUTIME_ID, NULL));
}

static void big(size_t size)
{
	unsigned char *data = malloc(size), *back = calloc(1, size);
	for (size_t i = 0; i < size; i++)
		data[i] = i * 2654435761u >> 13;
	int fd = open("big", O_RDWR | O_CREAT | O_TRUNC, 0600);
	say("%ld\n", (long)write(fd, data, size));
	say("%ld\n", (long)pread(fd, back, size, 0));
	say("%d %lx\n", memcmp(data, back, size), sum(back, size));
	struct iovec v[5] = {{data, 10}, {data + 10, size / 3}, {NULL, 0}, {data + 7, size / 3}, {data, 4097}};
	say("%ld\n", (long)pwritev(fd, v, 5, 3));
	memset(back, 0, size);
	struct iovec r[3] = {{back, 4095}, {back + 4095, size / 2 - 4095}, {back + size / 2, 99}};
	say("%ld\n", (long)preadv(fd, r, 3, 0));
	say("%lx\n", sum(back, size));
	unlink("big");
}

/* Appends numbered lines until it has `count`: each must be there exactly once. */
static void append(int count)
{
	int fd = open("appended", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	char line[32];
	for (int i = 0; i < count; i++) {
		int n = snprintf(line, sizeof line, "line %d\n", i);
		if (write(fd, line, n) != n)
			say("short at %d\n", i);
	}
	say("appended %d\n", count);
}

static pthread_barrier_t barrier;

static void *worker(void *argument)
{
	long index = (long)argument;
	char name[20], line[40];
	snprintf(name, sizeof name, "thread-%ld", index);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (int i = 0; i < 500; i++) {
		int n = snprintf(line, sizeof line, "%ld:%d\n", index, i);
		if (write(fd, line, n) != n)
			say("short\n");
		if (i % 50 == 0)
			pthread_barrier_wait(&barrier);
	}
	char *back = calloc(1, 20000);
	ssize_t n = pread(fd, back, 20000, 0);
	unsigned long h = sum(back, n);
	free(back);
	close(fd);
	unlink(name);
	return (void *)h;
}

static volatile int started;

static void *wait_and_work(void *argument)
{
	__atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
	pause();
	return worker(argument);
}

static void *stand(void *argument)
{
	__atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
	for (;;)
		pause();
	return argument;
}

/* One blocking call, reported before and after; the test sends signals meanwhile. */
static void on_signal(int number)
{
	(void)number;
}

static void blocking(const char *what)
{
	char buffer[10];
	struct timespec t = {1, 0}, rem = {0, 0}, begin, end;
	struct pollfd p = {0, POLLIN, 0};
	struct sigaction sa = {.sa_handler = on_signal};
	sigaction(SIGUSR1, &sa, NULL);
	say("waiting\n");
	clock_gettime(CLOCK_MONOTONIC, &begin);
	if (!strcmp(what, "read"))
		TRY(read(0, buffer, 10));
	else if (!strcmp(what, "nanosleep"))
		TRY(nanosleep(&t, &rem));
	else if (!strcmp(what, "poll"))
		TRY(poll(&p, 1, 1000));
	else if (!strcmp(what, "epoll")) {
		struct epoll_event e = {EPOLLIN, {.fd = 0}};
		int fd = epoll_create1(0);
		epoll_ctl(fd, EPOLL_CTL_ADD, 0, &e);
		TRY(epoll_wait(fd, &e, 1, -1));
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	long ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
	if (!strcmp(what, "nanosleep") || !strcmp(what, "poll"))
		say("took %s, remaining %s\n",
		    ms < 950    ? "too short"
		    : ms > 1400 ? "too long"
		                : "a second",
		    rem.tv_sec || rem.tv_nsec ? "some" : "none");
}

/* `leave CALL`: the parent is interrupted in a call when it becomes the stub; the guest makes the same call first. */
static struct timespec two_seconds = {2, 0}, rest;
static struct pollfd nothing = {0, POLLIN, 0};
static struct timespec leave_begin;

static long leave_call(const char *what)
{
	return !strcmp(what, "poll") ? poll(&nothing, 1, 2000) : nanosleep(&two_seconds, &rest);
}

static long since(const struct timespec *begin, const struct timespec *end)
{
	return (end->tv_sec - begin->tv_sec) * 1000 + (end->tv_nsec - begin->tv_nsec) / 1000000;
}

/* Reports milliseconds since the call was made first, and since it was made here. */
static void leaving(const char *what)
{
	struct timespec here, end;
	clock_gettime(CLOCK_MONOTONIC, &here);
	long result = leave_call(what);
	clock_gettime(CLOCK_MONOTONIC, &end);
	say("%ld %ld %ld\n", result, since(&leave_begin, &end), since(&here, &end));
}

/* Speed: `bench KIND COUNT` reports nanoseconds per call. */
static void make_call(char kind, int fd, char *data)
{
	struct stat st;
	struct timespec used;
	switch (kind) {
	case 'g':
		syscall(SYS_getppid);
		return;
	case 'w':
		pwrite(fd, data, 4096, 0);
		return;
	case 'r':
		pread(fd, data, 4096, 0);
		return;
	case 's':
		stat("bench", &st);
		return;
	case 'p':
		syscall(SYS_getpid);
		return;
	case 'm':
		munmap(mmap(NULL, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 65536);
		return;
	case 'c':
		syscall(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, &used);
	}
}

static void bench(const char *kind, int count)
{
	static char data[4096];
	struct timespec begin, end;
	int fd = open("bench", O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (write(fd, data, sizeof data) != sizeof data)
		_exit(91);
	for (int round = 0; round < 5; round++) {
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (int i = 0; i < count; i++)
			make_call(*kind, fd, data);
		clock_gettime(CLOCK_MONOTONIC, &end);
		say("%ld\n", ((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) / count);
	}
}

int main(int count, char **arguments)
{
	const char *what = arguments[1], *argument = count > 2 ? arguments[2] : "0";
	const char *split = getenv("FARHOME_SPLIT");
	int threads = split ? atoi(split) : 1, workers = !strcmp(what, "threads") ? 4 : 1;
	pthread_t thread[8];
	int child = 1;
	clock_gettime(CLOCK_MONOTONIC, &leave_begin);
	if (split) {
		child = fork();
		if (child && !strcmp(what, "leave"))
			leave_call(argument);
		for (long i = 1; i < threads; i++)
			pthread_create(&thread[i], NULL, child ? stand : wait_and_work, (void *)i);
		if (child == 0)
			pthread_barrier_init(&barrier, NULL, workers);
		pause();
		if (child)
			for (;;)
				pause();
	} else if (workers > 1) {
		pthread_barrier_init(&barrier, NULL, workers);
		for (long i = 1; i < workers; i++)
			pthread_create(&thread[i], NULL, worker, (void *)i);
	}
	if (!strcmp(what, "files"))
		files();
	else if (!strcmp(what, "directories"))
		directories();
	else if (!strcmp(what, "pipes"))
		pipes();
	else if (!strcmp(what, "sockets"))
		sockets();
	else if (!strcmp(what, "identity"))
		identity();
	else if (!strcmp(what, "clocks"))
		clocks();
	else if (!strcmp(what, "big"))
		big(atol(argument));
	else if (!strcmp(what, "append"))
		append(atoi(argument));
	else if (!strcmp(what, "block"))
		blocking(argument);
	else if (!strcmp(what, "leave"))
		leaving(argument);
	else if (!strcmp(what, "bench"))
		bench(argument, atoi(arguments[3]));
	else if (!strcmp(what, "threads")) {
		void *result = worker((void *)0);
		say("%lx\n", (unsigned long)result);
		for (int i = 1; i < workers; i++) {
			pthread_join(thread[i], &result);
			say("%lx\n", (unsigned long)result);
		}
	}
	_exit(7);
}
