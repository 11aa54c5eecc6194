/* Memory of a call of which the kernel reads all and writes a part, or nothing: the rest is the program's. `beside WHAT`, when a file `go`
 * is there; then it writes `reported` to `lines`, and ends when a file `end` is there.
 *   read       constants, which can only be read
 *   meanwhile  another thread writes beside what the kernel writes
 *   grows      a result on a stack that has yet to grow that far */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TRY(call) \
	do { \
		errno = 0; \
		long r_ = (long)(call); \
		printf("%s = %ld %s\n", #call, r_, r_ < 0 ? strerrorname_np(errno) : ""); \
	} while (0)

static const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
static const struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0}, bad_head = {1, 0};
static const unsigned long hint = 2;
static const int one = 1;
static const struct timespec soon = {0, 1000000};
static const struct timeval also_soon = {0, 1000};
static int words[2], other[2], sockets[2];
static struct pollfd polled[2];
static struct epoll_event found[2];
static char tail[64];

static void only_read(void)
{
	struct __user_cap_data_struct data[2];
	int file = open("file", O_RDWR | O_CREAT, 0600), bytes[] = {O_RDONLY};
	struct pollfd fds = {words[0], POLLIN, 0};
	fd_set set;
	TRY(fcntl(file, F_SETLK, &whole));
	TRY(fcntl(file, F_SETLKW, &none));
	TRY(fcntl(file, F_OFD_SETLK, &whole));
	TRY(fcntl(file, F_OFD_SETLKW, &none));
	TRY(fcntl(file, F_SET_RW_HINT, &hint));
	TRY(syscall(SYS_capget, &head, data));
	TRY(syscall(SYS_capset, &head, data));
	TRY(syscall(SYS_capget, &bad_head, data));
	TRY(ioctl(file, FIONBIO, &one));
	TRY(syscall(SYS_ppoll, &fds, 1, &soon, 0, 8));
	TRY(syscall(SYS_ppoll, &fds, 1, &soon, bytes, 4));
	TRY(syscall(SYS_ppoll, &fds, 1, &soon, 16, 8));
	FD_ZERO(&set);
	FD_SET(words[0], &set);
	TRY(syscall(SYS_pselect6, words[0] + 1, &set, 0, 0, &soon, 0));
	TRY(syscall(SYS_pselect6, 0, 0, 0, 0, &soon, 16));
	TRY(syscall(SYS_pselect6, 0, 0, 0, 0, &soon, (const unsigned long[]){16, 8}));
	TRY(syscall(SYS_pselect6, 0, 0, 0, 0, &soon, (const unsigned long[]){16, 4}));
	TRY(syscall(SYS_select, 0, 0, 0, 0, &also_soon));
	TRY(syscall(SYS_nanosleep, &soon, &soon));
	TRY(syscall(SYS_nanosleep, &soon, 16));
	TRY(syscall(SYS_clock_nanosleep, 1, 0, &soon, &soon));
}

static void *later(void *unused)
{
	usleep(300000);
	polled[0].events = POLLIN | POLLPRI;
	polled[1].fd = other[0];
	memset(tail + 32, 'T', 32);
	memset(&found[1], 'T', sizeof found[1]);
	__sync_synchronize();
	if (write(words[1], "x", 1) != 1 || send(sockets[1], "abc", 3, 0) != 3)
		puts("cannot write");
	return unused;
}

/* A call that lasts until another thread has written beside. */
static void during(const char *what, int call)
{
	pthread_t thread;
	char byte[8];
	int queue = epoll_create1(0);
	struct epoll_event wanted = {.events = EPOLLIN};
	struct iovec part = {tail, 64};
	struct mmsghdr message = {{.msg_iov = &part, .msg_iovlen = 1}, 0};
	struct timespec time = {5, 0};
	long result = 0;
	polled[0] = (struct pollfd){words[0], POLLIN, 0};
	polled[1] = (struct pollfd){-1, 0, 0};
	memset(tail, 0, sizeof tail);
	memset(found, 0, sizeof found);
	epoll_ctl(queue, EPOLL_CTL_ADD, words[0], &wanted);
	pthread_create(&thread, NULL, later, NULL);
	if (call == 0)
		result = poll(polled, 2, 5000);
	else if (call == 1)
		result = syscall(SYS_ppoll, polled, 2, &time, 0, 8);
	else if (call == 2)
		result = recvmmsg(sockets[0], &message, 1, 0, 0);
	else if (call == 3)
		result = recvmmsg(sockets[0], &message, 1, MSG_TRUNC, 0);
	else if (call == 4)
		result = recv(sockets[0], tail, 64, MSG_TRUNC);
	else if (call == 5)
		result = recvmsg(sockets[0], &message.msg_hdr, MSG_TRUNC);
	else
		result = epoll_wait(queue, found, 2, 5000);
	pthread_join(thread, NULL);
	printf("%s: %ld; descriptor %s, events %s, behind the message '%c', behind the event '%c'\n", what, result,
	       polled[1].fd == other[0] ? "kept" : "LOST", polled[0].events == (POLLIN | POLLPRI) ? "kept" : "LOST",
	       tail[40] ? tail[40] : '0', *(char *)&found[1]);
	if (read(words[0], byte, 1) != 1)
		puts("nothing to read");
	recv(sockets[0], byte, sizeof byte, MSG_DONTWAIT);
	close(queue);
}

/* On the first thread's stack, a megabyte below; the kernel writes there first. */
static void grows(void)
{
	char *low = (char *)((unsigned long)__builtin_frame_address(0) & ~4095ul) - (1 << 20);
	if (write(words[1], "hello", 5) == 5)
		TRY(syscall(SYS_read, words[0], low, 5) - 5);
	printf("%.5s\n", low);
	low -= 1 << 20;
	TRY(syscall(SYS_newfstatat, AT_FDCWD, ".", low, 0));
	low -= 1 << 20;
	TRY(syscall(SYS_pipe, low));
}

int main(int argc, char **argv)
{
	static const char *const calls[] = {
		"poll", "ppoll", "recvmmsg", "recvmmsg, truncating", "recv, truncating", "recvmsg, truncating", "epoll_wait"};
	setlinebuf(stdout);
	if (argc < 2 || pipe(words) || pipe(other) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets))
		return 2;
	while (access("go", F_OK))
		usleep(20000);
	if (*argv[1] == 'r')
		only_read();
	else if (*argv[1] == 'g')
		grows();
	for (int i = 0; *argv[1] == 'm' && i < 7; i++)
		during(calls[i], i);
	int lines = open("lines", O_WRONLY | O_CREAT, 0644);
	if (write(lines, "reported\n", 9) != 9)
		return 3;
	while (access("end", F_OK))
		usleep(20000);
	return 0;
}
