/* Scenarios about pipes, terminals, devices and what one waits on descriptors with: see objects.h. */
#include "objects.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <termios.h>

SCENARIO(pipe)
{
	int ends[2], count = 0;
	CALL(pipe2(ends, O_NONBLOCK | O_CLOEXEC));
	CALL(fcntl(ends[1], F_SETPIPE_SZ, 8192));
	WRITE(ends[1], "one");
	WRITE(ends[1], "two");
	CALL(ioctl(ends[0], FIONREAD, &count));
	show("  %d", count);
	READ(ends[0], 4);
	CALL(fcntl(ends[1], F_GETPIPE_SZ));
	READ(ends[0], 4);
	READ(ends[0], 4);
	WRITE(ends[1], "last");
	CALL(close(ends[1]));
	READ(ends[0], 9);
	READ(ends[0], 9);
}

SCENARIO(broken_pipe)
{
	int ends[2];
	CALL(pipe(ends));
	signal(SIGPIPE, SIG_IGN);
	CALL(close(ends[0]));
	WRITE(ends[1], "nobody");
	pid_t child = CHILD((signal(SIGPIPE, SIG_DFL), write(ends[1], "nobody", 6)));
	reaped(child);
	WRITE(ends[1], "nobody");
}

SCENARIO(full_pipe)
{
	int ends[2];
	static char much[70000];
	CALL(pipe2(ends, O_NONBLOCK));
	CALL(write(ends[1], much, sizeof much));
	WRITE(ends[1], "more");
	CALL(read(ends[0], much, 4096));
	WRITE(ends[1], "more");
	CALL(read(ends[0], much, sizeof much));
	IS(!strcmp(much + 65536 - 4096, "more"));
}

SCENARIO(fifo)
{
	CALL(mkfifo("fifo", 0600));
	int reader = CALL(open("fifo", O_RDONLY | O_NONBLOCK));
	READ(reader, 4);
	int writer = CALL(open("fifo", O_WRONLY));
	READ(reader, 4);
	WRITE(writer, "through");
	CALL(unlink("fifo"));
	READ(reader, 4);
	READ(reader, 4);
	CALL(close(writer));
	READ(reader, 4);
}

SCENARIO(eventfd)
{
	int fd = CALL(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
	uint64_t value = 0;
	CALL(read(fd, &value, 8));
	value = 3;
	CALL(write(fd, &value, 8));
	struct pollfd polled = {.fd = fd, .events = POLLIN | POLLOUT};
	CALL(poll(&polled, 1, 0));
	show("  %d", polled.revents);
	for (int i = 0; i < 5; i++)
		CALL(read(fd, &value, 8));
	show("  %d", (int)value);
}

SCENARIO(timerfd)
{
	int fd = CALL(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
	struct itimerspec set = {.it_value = {1000, 0}, .it_interval = {500, 0}}, now = {0};
	uint64_t expired = 0;
	CALL(timerfd_settime(fd, 0, &set, NULL));
	CALL(timerfd_gettime(fd, &now));
	IS(now.it_interval.tv_sec == 500 && now.it_value.tv_sec > 800 && now.it_value.tv_sec < 1000);
	CALL(read(fd, &expired, 8));
	set = (struct itimerspec){.it_value = {0, 20000000}};
	timerfd_settime(fd, 0, &set, &now);
	IS(now.it_value.tv_sec > 800);
	struct pollfd polled = {.fd = fd, .events = POLLIN};
	CALL(poll(&polled, 1, 5000));
	CALL(read(fd, &expired, 8));
	show("  %d", (int)expired);
	CALL(timerfd_gettime(fd, &now));
	IS(!now.it_value.tv_sec && !now.it_value.tv_nsec);
	set = (struct itimerspec){.it_value = {1, 0}};
	CALL(timerfd_settime(fd, TFD_TIMER_ABSTIME, &set, NULL));
	CALL(read(fd, &expired, 8));
}

static void wait_epoll(int epoll, int timeout)
{
	struct epoll_event events[4] = {0};
	long found = CALL(epoll_wait(epoll, events, 4, timeout));
	for (long i = 0; i < found; i++)
		show("  events %#x, data %d", events[i].events, events[i].data.u32);
}

static void add_epoll(int epoll, int fd, int operation, unsigned events)
{
	CALL(epoll_ctl(epoll, operation, fd, (&(struct epoll_event){events, {.u32 = 100 + (unsigned)fd}})));
}

SCENARIO(epoll_level)
{
	int ends[2], epoll = CALL(epoll_create1(EPOLL_CLOEXEC));
	CALL(pipe(ends));
	add_epoll(epoll, ends[0], EPOLL_CTL_ADD, EPOLLIN);
	wait_epoll(epoll, 0);
	WRITE(ends[1], "ab");
	wait_epoll(epoll, -1);
	wait_epoll(epoll, -1);
	READ(ends[0], 8);
	wait_epoll(epoll, 1);
	CALL(close(ends[1]));
	wait_epoll(epoll, -1);
	add_epoll(epoll, ends[0], EPOLL_CTL_ADD, EPOLLIN);
	CALL(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL));
	wait_epoll(epoll, 0);
}

SCENARIO(epoll_edge)
{
	int ends[2], epoll = CALL(epoll_create1(0));
	CALL(pipe(ends));
	add_epoll(epoll, ends[0], EPOLL_CTL_ADD, EPOLLIN | EPOLLET);
	WRITE(ends[1], "ab");
	wait_epoll(epoll, 0);
	wait_epoll(epoll, 0);
	WRITE(ends[1], "c");
	wait_epoll(epoll, 0);
	READ(ends[0], 1);
	wait_epoll(epoll, 0);
	add_epoll(epoll, ends[0], EPOLL_CTL_MOD, EPOLLIN | EPOLLET);
	wait_epoll(epoll, 0);
}

SCENARIO(epoll_nested_once)
{
	int fd = CALL(eventfd(1, 0)), inner = CALL(epoll_create1(0)), outer = CALL(epoll_create1(0));
	add_epoll(inner, fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLONESHOT);
	add_epoll(outer, inner, EPOLL_CTL_ADD, EPOLLIN);
	wait_epoll(outer, -1);
	wait_epoll(inner, -1);
	wait_epoll(inner, 0);
	wait_epoll(outer, 0);
	add_epoll(inner, fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLONESHOT);
	wait_epoll(outer, -1);
	add_epoll(outer, outer, EPOLL_CTL_ADD, EPOLLIN);
}

SCENARIO(select)
{
	int ends[2];
	fd_set in, out;
	CALL(pipe(ends));
	struct timeval timeout = {0, 10000};
	FD_ZERO(&in);
	FD_SET(ends[0], &in);
	CALL(select(ends[0] + 1, &in, NULL, NULL, &timeout));
	IS(!FD_ISSET(ends[0], &in) && !timeout.tv_sec && !timeout.tv_usec);
	WRITE(ends[1], "x");
	FD_ZERO(&in);
	FD_SET(ends[0], &in);
	FD_ZERO(&out);
	FD_SET(ends[1], &out);
	CALL(select(ends[1] + 1, &in, &out, NULL, NULL));
	IS(FD_ISSET(ends[0], &in) && FD_ISSET(ends[1], &out) && !FD_ISSET(ends[1], &in));
	CALL(close(ends[0]));
	FD_ZERO(&in);
	FD_SET(ends[0], &in);
	CALL(select(ends[0] + 1, &in, NULL, NULL, NULL));
	FD_ZERO(&out);
	FD_SET(ends[1], &out);
	CALL(pselect(ends[1] + 1, NULL, &out, NULL, &(struct timespec){1, 0}, &(sigset_t){0}));
}

SCENARIO(poll)
{
	int ends[2];
	CALL(pipe(ends));
	struct pollfd polled[3] = {{ends[0], POLLIN, 9}, {-1, POLLIN, 9}, {77, POLLIN, 9}};
	CALL(poll(polled, 2, 10));
	show("  %d %d", polled[0].revents, polled[1].revents);
	CALL(poll(polled, 3, -1));
	show("  %d", polled[2].revents);
	WRITE(ends[1], "x");
	CALL(ppoll(polled, 1, &(struct timespec){5, 0}, NULL));
	show("  %d", polled[0].revents);
	CALL(close(ends[1]));
	CALL(poll(polled, 1, -1));
	show("  %d", polled[0].revents);
	READ(ends[0], 4);
	CALL(poll(polled, 1, -1));
	show("  %d", polled[0].revents);
}

static void read_inotify(int fd)
{
	char events[4096] __attribute__((aligned(8)));
	long size = CALL(read(fd, events, sizeof events));
	for (long at = 0; at < size;) {
		struct inotify_event *event = (void *)(events + at);
		show("  watch %d, mask %#x, cookie %s, \"%s\"", event->wd, event->mask, event->cookie ? "some" : "none",
		     event->len ? event->name : "");
		at += (long)sizeof *event + event->len;
	}
}

SCENARIO(inotify)
{
	int fd = CALL(inotify_init1(IN_NONBLOCK)), file;
	CALL(mkdir("watched", 0755));
	int watch = CALL(inotify_add_watch(fd, "watched", IN_CREATE | IN_DELETE | IN_MOVE | IN_CLOSE_WRITE));
	file = CALL(open("watched/a", O_CREAT | O_WRONLY, 0600));
	CALL(close(file));
	CALL(rename("watched/a", "watched/b"));
	read_inotify(fd);
	CALL(unlink("watched/b"));
	CALL(inotify_rm_watch(fd, watch));
	read_inotify(fd);
	read_inotify(fd);
}

SCENARIO(sendfile)
{
	int ends[2], file = CALL(open("from", O_RDWR | O_CREAT, 0600));
	off_t offset = 3;
	WRITE(file, "0123456789");
	CALL(pipe(ends));
	CALL(sendfile(ends[1], file, &offset, 4));
	show("  %d", (int)offset);
	CALL(lseek(file, 8, SEEK_SET));
	CALL(sendfile(ends[1], file, NULL, 9));
	CALL(lseek(file, 0, SEEK_CUR));
	READ(ends[0], 16);
}

SCENARIO(splice_and_tee)
{
	int from[2], to[2], file = CALL(open("spliced", O_RDWR | O_CREAT, 0600));
	loff_t offset = 2;
	CALL(pipe(from));
	CALL(pipe(to));
	WRITE(from[1], "splice");
	CALL(tee(from[0], to[1], 4, 0));
	CALL(splice(from[0], NULL, file, &offset, 6, SPLICE_F_MOVE));
	show("  %d", (int)offset);
	READ(to[0], 8);
	CALL(splice(from[0], NULL, file, NULL, 6, SPLICE_F_NONBLOCK));
	offset = 4;
	CALL(splice(file, &offset, to[1], NULL, 9, 0));
	READ(to[0], 8);
}

SCENARIO(terminal)
{
	int master = CALL(posix_openpt(O_RDWR | O_NOCTTY));
	struct termios modes;
	struct winsize size = {0};
	CALL(unlockpt(master));
	char name[64];
	ptsname_r(master, name, sizeof name);
	int slave = CALL(open(name, O_RDWR | O_NOCTTY));
	CALL(ioctl(slave, TIOCSWINSZ, (&(struct winsize){33, 111, 0, 0})));
	WRITE(master, "wrong\x7f\x7f right\n");
	READ(slave, 32);
	READ(master, 64);
	CALL(tcgetattr(slave, &modes));
	cfmakeraw(&modes);
	CALL(tcsetattr(slave, TCSANOW, &modes));
	WRITE(master, "raw\x7f");
	READ(slave, 4);
	CALL(ioctl(master, TIOCGWINSZ, &size));
	show("  %d x %d", size.ws_row, size.ws_col);
	memset(&modes, 0, sizeof modes);
	CALL(tcgetattr(master, &modes));
	show("  %#x %#x %#x %#x", modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag);
	CALL(close(slave));
	READ(master, 4);
}

SCENARIO(signalfd)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	CALL(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 41}));
	int fd = CALL(signalfd(-1, &set, SFD_NONBLOCK));
	CALL(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42}));
	struct signalfd_siginfo info = {0};
	for (int i = 0; i < 3; i++) {
		CALL(read(fd, &info, sizeof info));
		show("  %d", info.ssi_int);
		IS(info.ssi_pid == (unsigned)getpid());
	}
	CALL(close(fd));
}

SCENARIO(devices)
{
	char zeros[8] = "garbage";
	int null = CALL(open("/dev/null", O_RDWR)), zero = CALL(open("/dev/zero", O_RDONLY)), full = CALL(open("/dev/full", O_RDWR));
	WRITE(null, "away");
	READ(null, 4);
	CALL(read(zero, zeros, 8));
	IS(!memcmp(zeros, "\0\0\0\0\0\0\0", 8));
	WRITE(full, "no space");
	CALL(read(CALL(open("/dev/urandom", O_RDONLY)), zeros, 8));
	CALL(isatty(null));
}
