/* quiet ROUNDS: makes calls of every ordinary family and checks each result; no signal is ever sent to it, so no call may
 * ever be interrupted, shortened or repeated, however often the process moves.
 *
 * Prints what is the same in every run. Exit status: 0; 3 with one line about the first call whose result was wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static long round_number;

#define EXPECT(condition) \
	do { \
		errno = 0; \
		if (!(condition)) { \
			printf("round %ld, line %d: not so: %s (%s)\n", round_number, __LINE__, #condition, strerror(errno)); \
			exit(3); \
		} \
	} while (0)

static int64_t microseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Every way to wait: never shorter than asked, never an error. `ms` is milliseconds. */
static void waits(int ms)
{
	int64_t before, asked = (int64_t)ms * 1000;
	struct timespec pause = {0, ms * 1000000L};
	struct timeval pause_in_select = {0, ms * 1000};
	struct epoll_event event;
	int idle[2], set = epoll_create1(EPOLL_CLOEXEC);
	EXPECT(pipe2(idle, O_CLOEXEC) == 0);
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 42};
	EXPECT(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, idle[0], &event) == 0);

	before = microseconds();
	EXPECT(nanosleep(&pause, NULL) == 0);
	EXPECT(microseconds() - before >= asked);

	before = microseconds();
	EXPECT(clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL) == 0);
	EXPECT(microseconds() - before >= asked);

	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t end = (int64_t)until.tv_sec * 1000000 + until.tv_nsec / 1000 + asked;
	until = (struct timespec){end / 1000000, end % 1000000 * 1000};
	EXPECT(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == 0);
	EXPECT(microseconds() >= end);

	struct pollfd one = {.fd = idle[0], .events = POLLIN};
	before = microseconds();
	EXPECT(poll(&one, 1, ms) == 0);
	EXPECT(microseconds() - before >= asked - 1000);

	fd_set readable;
	FD_ZERO(&readable);
	FD_SET(idle[0], &readable);
	before = microseconds();
	EXPECT(select(idle[0] + 1, &readable, NULL, NULL, &pause_in_select) == 0);
	EXPECT(microseconds() - before >= asked - 1000);
	EXPECT(!FD_ISSET(idle[0], &readable) && pause_in_select.tv_sec == 0 && pause_in_select.tv_usec == 0);

	before = microseconds();
	EXPECT(epoll_wait(set, &event, 1, ms) == 0);
	EXPECT(microseconds() - before >= asked - 1000);

	EXPECT(write(idle[1], "x", 1) == 1);
	EXPECT(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 42 && event.events == EPOLLIN);
	EXPECT(poll(&one, 1, -1) == 1 && one.revents == POLLIN);

	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	struct itimerspec setting = {.it_value = pause};
	uint64_t fired = 0;
	EXPECT(timer >= 0 && timerfd_settime(timer, 0, &setting, NULL) == 0);
	before = microseconds();
	EXPECT(read(timer, &fired, sizeof fired) == sizeof fired && fired == 1);
	EXPECT(close(timer) == 0 && close(idle[0]) == 0 && close(idle[1]) == 0 && close(set) == 0);
}

static void descriptors(void)
{
	char buffer[256];
	int lowest = dup(1);
	EXPECT(lowest >= 0);
	EXPECT(dup2(lowest, 50) == 50 && fcntl(50, F_GETFD) == 0);
	EXPECT(fcntl(50, F_SETFD, FD_CLOEXEC) == 0 && fcntl(50, F_GETFD) == FD_CLOEXEC);
	EXPECT(close(50) == 0 && close(50) == -1 && errno == EBADF);
	EXPECT(close(lowest) == 0);
	EXPECT(dup(1) == lowest && close(lowest) == 0); /* the lowest free number, again */

	int counter = eventfd(3, EFD_CLOEXEC | EFD_SEMAPHORE);
	uint64_t value;
	EXPECT(counter >= 0 && read(counter, &value, 8) == 8 && value == 1);
	value = 5;
	EXPECT(write(counter, &value, 8) == 8);
	EXPECT(close(counter) == 0);

	int ends[2];
	EXPECT(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0);
	EXPECT(read(ends[0], buffer, sizeof buffer) == -1 && errno == EAGAIN);
	struct iovec out[3] = {{"one ", 4}, {"two ", 4}, {"three", 5}};
	char first[6], second[20];
	struct iovec in[2] = {{first, sizeof first}, {second, sizeof second}};
	EXPECT(writev(ends[1], out, 3) == 13);
	int waiting = 0;
	EXPECT(ioctl(ends[0], FIONREAD, &waiting) == 0 && waiting == 13);
	EXPECT(readv(ends[0], in, 2) == 13 && !memcmp(first, "one tw", 6) && !memcmp(second, "o three", 7));
	EXPECT(fcntl(ends[0], F_GETFL) == O_NONBLOCK);
	EXPECT(close(ends[1]) == 0 && read(ends[0], buffer, 1) == 0 && close(ends[0]) == 0);
}

static void files(void)
{
	char buffer[8192], name[64];
	struct stat status;
	snprintf(name, sizeof name, "quiet-%ld", round_number % 7);
	EXPECT(mkdir(name, 0750) == 0 && stat(name, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 0777) == 0750);
	EXPECT(mkdir(name, 0750) == -1 && errno == EEXIST);
	int directory = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	EXPECT(directory >= 0);
	int file = openat(directory, "a", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
	EXPECT(file >= 0);
	for (int i = 0; i < 8192; i++)
		buffer[i] = (char)(i * 7 + round_number);
	EXPECT(write(file, buffer, 8192) == 8192 && lseek(file, 0, SEEK_CUR) == 8192);
	EXPECT(pwrite(file, "0123456789", 10, 100) == 10 && lseek(file, 0, SEEK_CUR) == 8192);
	char back[10];
	EXPECT(pread(file, back, 10, 100) == 10 && !memcmp(back, "0123456789", 10));
	EXPECT(lseek(file, -92, SEEK_END) == 8100 && read(file, buffer, 8192) == 92);
	EXPECT(fstat(file, &status) == 0 && status.st_size == 8192 && status.st_nlink == 1);
	EXPECT(ftruncate(file, 5000) == 0 && fsync(file) == 0 && fdatasync(file) == 0);
	EXPECT(linkat(directory, "a", directory, "b", 0) == 0 && fstat(file, &status) == 0 && status.st_nlink == 2);
	EXPECT(symlinkat("a", directory, "c") == 0 && readlinkat(directory, "c", buffer, sizeof buffer) == 1 && buffer[0] == 'a');
	EXPECT(renameat(directory, "b", directory, "d") == 0 && faccessat(directory, "b", F_OK, 0) == -1 && errno == ENOENT);
	EXPECT(fchmod(file, 0600) == 0 && fstatat(directory, "d", &status, 0) == 0 && (status.st_mode & 0777) == 0600);
	struct timespec times[2] = {{1000000000, 0}, {1000000001, 0}};
	EXPECT(futimens(file, times) == 0 && fstat(file, &status) == 0 && status.st_mtime == 1000000001 && status.st_size == 5000);
	struct flock region = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
	EXPECT(fcntl(file, F_SETLK, &region) == 0 && flock(file, LOCK_EX | LOCK_NB) == 0);
	EXPECT(fallocate(file, 0, 0, 6000) == 0 && fstat(file, &status) == 0 && status.st_size == 6000);
	int entries = 0;
	DIR *listing = fdopendir(dup(directory));
	EXPECT(listing != NULL);
	for (struct dirent *entry; (entry = readdir(listing));)
		entries += entry->d_name[0] != '.';
	EXPECT(entries == 3 && closedir(listing) == 0);
	EXPECT(unlinkat(directory, "a", 0) == 0 && unlinkat(directory, "c", 0) == 0 && unlinkat(directory, "d", 0) == 0);
	EXPECT(fstat(file, &status) == 0 && status.st_nlink == 0 && pread(file, back, 10, 100) == 10); /* unlinked, still open */
	EXPECT(close(file) == 0 && close(directory) == 0);
	char here[4096], inside[4096];
	EXPECT(getcwd(here, sizeof here) && chdir(name) == 0 && getcwd(inside, sizeof inside));
	EXPECT(strlen(inside) > strlen(here) && !strcmp(strrchr(inside, '/') + 1, name));
	EXPECT(chdir("..") == 0 && rmdir(name) == 0 && access(name, F_OK) == -1 && errno == ENOENT);
	EXPECT(open("/nonexistent/file", O_RDONLY) == -1 && errno == ENOENT);
}

static void sockets(void)
{
	int pair[2];
	char buffer[128], control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	EXPECT(send(pair[0], "hello", 5, 0) == 5 && recv(pair[1], buffer, sizeof buffer, MSG_PEEK) == 5);
	EXPECT(recv(pair[1], buffer, sizeof buffer, 0) == 5 && !memcmp(buffer, "hello", 5));
	EXPECT(recv(pair[1], buffer, sizeof buffer, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	int passed = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	struct iovec part = {"f", 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &passed, sizeof(int));
	EXPECT(sendmsg(pair[0], &message, 0) == 1);
	struct iovec place = {buffer, sizeof buffer};
	memset(control, 0, sizeof control);
	message = (struct msghdr){.msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	EXPECT(recvmsg(pair[1], &message, 0) == 1 && buffer[0] == 'f');
	header = CMSG_FIRSTHDR(&message);
	EXPECT(header && header->cmsg_type == SCM_RIGHTS);
	int received;
	memcpy(&received, CMSG_DATA(header), sizeof(int));
	EXPECT(received > 2 && read(received, buffer, 16) == 16 && buffer[7] == 0);
	EXPECT(close(received) == 0 && close(passed) == 0);
	EXPECT(shutdown(pair[0], SHUT_WR) == 0 && recv(pair[1], buffer, 1, 0) == 0);
	EXPECT(close(pair[0]) == 0 && close(pair[1]) == 0);

	int one = 1, got = 0;
	socklen_t size = sizeof got;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	EXPECT(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	EXPECT(getsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &got, &size) == 0 && got == 1 && size == sizeof got);
	EXPECT(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
	EXPECT(getsockname(listener, (struct sockaddr *)&address, &length) == 0 && address.sin_port != 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	EXPECT(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
	struct sockaddr_in peer;
	length = sizeof peer;
	int server = accept4(listener, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC);
	EXPECT(server >= 0 && peer.sin_family == AF_INET && length == sizeof peer);
	EXPECT(write(client, "over tcp", 8) == 8 && recv(server, buffer, 8, MSG_WAITALL) == 8 && !memcmp(buffer, "over tcp", 8));
	EXPECT(close(client) == 0 && read(server, buffer, 1) == 0);
	EXPECT(close(server) == 0 && close(listener) == 0);

	int datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	address.sin_port = 0;
	length = sizeof address;
	EXPECT(bind(datagrams, (struct sockaddr *)&address, sizeof address) == 0);
	EXPECT(getsockname(datagrams, (struct sockaddr *)&address, &length) == 0);
	EXPECT(sendto(datagrams, "datagram", 8, 0, (struct sockaddr *)&address, sizeof address) == 8);
	length = sizeof peer;
	EXPECT(recvfrom(datagrams, buffer, sizeof buffer, 0, (struct sockaddr *)&peer, &length) == 8);
	EXPECT(peer.sin_port == address.sin_port && close(datagrams) == 0);
}

static void identity(pid_t pid, pid_t parent, const char *node)
{
	struct utsname names;
	struct rlimit limit, same;
	struct rusage usage;
	EXPECT(getpid() == pid && getppid() == parent && getpgid(0) == getpgrp() && getsid(0) > 0);
	EXPECT(uname(&names) == 0 && !strcmp(names.nodename, node));
	EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
	EXPECT(getrlimit(RLIMIT_NOFILE, &same) == 0 && same.rlim_cur == limit.rlim_cur);
	mode_t mask = umask(027);
	EXPECT(umask(mask) == 027);
	EXPECT(getuid() == geteuid() && getgid() == getegid() && getpriority(PRIO_PROCESS, 0) == 0);
	EXPECT(getrusage(RUSAGE_SELF, &usage) == 0);
	EXPECT(kill(pid, 0) == 0);
}

int main(int argc, char **argv)
{
	struct utsname names;
	if (argc != 2)
		return 64;
	long rounds = atol(argv[1]);
	pid_t pid = getpid(), parent = getppid();
	EXPECT(uname(&names) == 0);
	time_t before = time(NULL);
	for (; round_number < rounds; round_number++) {
		identity(pid, parent, names.nodename);
		descriptors();
		files();
		sockets();
		waits(10);
		EXPECT(time(NULL) >= before); /* the clock never runs backwards by a move */
		before = time(NULL);
	}
	printf("%ld quiet rounds\n", rounds);
	return 0;
}
