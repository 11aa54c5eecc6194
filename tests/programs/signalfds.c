/* signalfds [early|held]: makes signalfds, and reads what comes by them, until `enough` is there; writes a line into `lines` after each round,
 * and says what was not as it has to be. early: holds one from the beginning on. held: executes itself after each round, which has one then,
 * and a signal that waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIRST SIGRTMIN
#define TICK (SIGRTMIN + 1)
#define EXPECT(is) ((is) ? (void)0 : wrong(__LINE__, #is))

static volatile sig_atomic_t handled;
static int failures;

static void wrong(int line, const char *what)
{
	printf("line %d: %s (errno %d)\n", line, what, errno);
	fflush(stdout);
	failures++;
}

static void on_signal(int number)
{
	handled = number;
}

static void compute(long milliseconds)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
}

static sigset_t set_of(int number)
{
	sigset_t set;
	sigemptyset(&set);
	if (number)
		sigaddset(&set, number);
	return set;
}

static int nothing(int fd)
{
	struct signalfd_siginfo info;
	return read(fd, &info, sizeof info) == -1 && errno == EAGAIN;
}

static int next(int fd, struct signalfd_siginfo *info)
{
	struct pollfd wait = {fd, POLLIN, 0};
	return poll(&wait, 1, 20000) == 1 && read(fd, info, sizeof *info) == sizeof *info ? (int)info->ssi_signo : -1;
}

static void waits_already(void)
{
	sigset_t set = set_of(SIGUSR1);
	struct signalfd_siginfo info;
	EXPECT(!kill(getpid(), SIGUSR1));
	int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	compute(5);
	EXPECT(fd >= 0 && next(fd, &info) == SIGUSR1 && info.ssi_pid == (unsigned)getpid() && info.ssi_code == SI_USER);
	EXPECT(nothing(fd));
	set = set_of(SIGUSR2);
	EXPECT(signalfd(fd, &set, 0) == fd && !kill(getpid(), SIGUSR1) && nothing(fd) && !kill(getpid(), SIGUSR2));
	EXPECT(next(fd, &info) == SIGUSR2);
	set = set_of(SIGUSR1);
	EXPECT(signalfd(fd, &set, 0) == fd && next(fd, &info) == SIGUSR1 && !close(fd));
}

static void queues(int fd)
{
	struct signalfd_siginfo info[4];
	for (int i = 0; i < 3; i++) {
		EXPECT(!sigqueue(getpid(), FIRST, (union sigval){.sival_int = 40 + i}));
		compute(2);
	}
	EXPECT(read(fd, info, sizeof info) == 3 * sizeof *info);
	for (int i = 0; i < 3; i++)
		EXPECT(info[i].ssi_int == 40 + i && info[i].ssi_code == SI_QUEUE && info[i].ssi_pid == (unsigned)getpid());
	EXPECT(nothing(fd));
}

static void is_polled(int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
	struct signalfd_siginfo info;
	int poller = epoll_create1(EPOLL_CLOEXEC);
	EXPECT(poller >= 0 && !epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) && epoll_wait(poller, &event, 1, 0) == 0);
	pid_t parent = getpid(), child = fork();
	if (!child) {
		compute(10);
		kill(parent, SIGUSR1);
		_exit(7);
	}
	EXPECT(epoll_wait(poller, &event, 1, 20000) == 1);
	EXPECT(next(fd, &info) == SIGUSR1 && info.ssi_pid == (unsigned)child);
	EXPECT(next(fd, &info) == SIGCHLD && info.ssi_pid == (unsigned)child && info.ssi_status == 7 && info.ssi_code == CLD_EXITED);
	EXPECT(waitpid(child, NULL, 0) == child && epoll_wait(poller, &event, 1, 0) == 0 && !close(poller));
}

static void is_inherited(int fd)
{
	int status;
	pid_t child = fork();
	struct signalfd_siginfo info;
	if (!child) {
		sigset_t all;
		kill(getpid(), SIGUSR1);
		int good = next(fd, &info) == SIGUSR1 && info.ssi_pid == (unsigned)getpid();
		sigfillset(&all);
		sigprocmask(SIG_UNBLOCK, &all, NULL);
		kill(getpid(), SIGUSR1);
		_exit(good && handled == SIGUSR1 && nothing(fd) ? 3 : 4);
	}
	EXPECT(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
	EXPECT(next(fd, &info) == SIGCHLD && nothing(fd));
}

static int shared;
static volatile int ready;

static void *worker(void *result)
{
	struct signalfd_siginfo info;
	ready = (int)syscall(SYS_gettid);
	*(int *)result = next(shared, &info) == SIGUSR2 && info.ssi_code == SI_TKILL && nothing(shared);
	return NULL;
}

static void are_a_threads(int fd)
{
	pthread_t thread;
	int good = 0;
	ready = 0;
	shared = fd;
	EXPECT(!pthread_create(&thread, NULL, worker, &good));
	while (!ready)
		compute(1);
	EXPECT(!syscall(SYS_tgkill, getpid(), ready, SIGUSR2));
	EXPECT(nothing(fd) && !pthread_join(thread, NULL) && good);
}

static void are_waited_for(int fd)
{
	sigset_t set = set_of(SIGUSR1), waiting;
	siginfo_t info;
	struct timespec soon = {0, 20000000};
	EXPECT(!kill(getpid(), SIGUSR1) && !sigpending(&waiting) && sigismember(&waiting, SIGUSR1) && !sigismember(&waiting, SIGUSR2));
	EXPECT(sigtimedwait(&set, &info, &soon) == SIGUSR1 && info.si_pid == getpid() && info.si_code == SI_USER);
	EXPECT(!sigpending(&waiting) && !sigismember(&waiting, SIGUSR1) && nothing(fd));
	EXPECT(sigtimedwait(&set, &info, &soon) == -1 && errno == EAGAIN);
	pid_t parent = getpid(), child = fork();
	if (!child) {
		compute(10);
		kill(parent, SIGUSR1);
		_exit(0);
	}
	EXPECT(sigwaitinfo(&set, &info) == SIGUSR1 && info.si_pid == child && waitpid(child, NULL, 0) == child);
	struct signalfd_siginfo end;
	EXPECT(next(fd, &end) == SIGCHLD && end.ssi_pid == (unsigned)child);
}

static void are_let_in(int fd)
{
	sigset_t set = set_of(SIGUSR1), none = set_of(0), old;
	struct signalfd_siginfo info;
	handled = 0;
	EXPECT(!kill(getpid(), SIGUSR1) && !handled);
	EXPECT(!sigprocmask(SIG_UNBLOCK, &set, &old) && handled == SIGUSR1 && sigismember(&old, SIGUSR1) && nothing(fd));
	handled = 0;
	EXPECT(!kill(getpid(), SIGUSR1) && handled == SIGUSR1 && nothing(fd));
	handled = 0;
	EXPECT(!sigprocmask(SIG_BLOCK, &set, NULL) && !kill(getpid(), SIGUSR1) && !handled && next(fd, &info) == SIGUSR1);
	EXPECT(!kill(getpid(), SIGUSR1) && !handled);
	EXPECT(sigsuspend(&none) == -1 && errno == EINTR && handled == SIGUSR1 && nothing(fd));
	handled = 0;
	EXPECT(!kill(getpid(), SIGUSR1) && !handled && next(fd, &info) == SIGUSR1 && nothing(fd));
}

static void are_ignored(int fd)
{
	struct sigaction old, ignored = {.sa_handler = SIG_IGN};
	struct signalfd_siginfo info;
	EXPECT(!kill(getpid(), SIGUSR2) && !sigaction(SIGUSR2, &ignored, &old) && nothing(fd));
	EXPECT(!kill(getpid(), SIGUSR2) && next(fd, &info) == SIGUSR2);
	EXPECT(!sigaction(SIGUSR2, &old, NULL) && !kill(getpid(), SIGWINCH) && next(fd, &info) == SIGWINCH);
}

/* Made by a child, which has its own signals in it, it shows ours. */
static void is_passed(void)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct signalfd_siginfo info;
	sigset_t set = set_of(SIGURG);
	int sockets[2], fd = -1;
	EXPECT(!sigprocmask(SIG_BLOCK, &set, NULL) && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t child = fork();
	if (!child) {
		fd = signalfd(-1, &set, SFD_NONBLOCK);
		control.head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
		_exit(sendmsg(sockets[1], &message, 0) == 1 ? 0 : 1);
	}
	EXPECT(!kill(getpid(), SIGURG) && recvmsg(sockets[0], &message, 0) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
	EXPECT(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGURG && info.ssi_pid == (unsigned)getpid());
	EXPECT(waitpid(child, NULL, 0) == child && nothing(fd) && !close(fd) && !close(sockets[0]) && !close(sockets[1]));
}

/* By children that have our memory (vfork), and change their own masks and actions there. */
static void are_of_programs(int fd)
{
	char *argv[] = {"true", NULL}, *environment[] = {NULL};
	sigset_t all, none = set_of(0);
	struct signalfd_siginfo info;
	posix_spawnattr_t how;
	pid_t child;
	sigfillset(&all);
	EXPECT(!posix_spawnattr_init(&how) && !posix_spawnattr_setsigdefault(&how, &all) && !posix_spawnattr_setsigmask(&how, &none));
	EXPECT(!posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
	EXPECT(!kill(getpid(), SIGUSR1) && !kill(getpid(), SIGWINCH));
	EXPECT(!posix_spawn(&child, "/bin/true", NULL, &how, argv, environment) && !posix_spawnattr_destroy(&how));
	EXPECT(waitpid(child, NULL, 0) == child && next(fd, &info) == SIGUSR1);
	EXPECT(next(fd, &info) == SIGCHLD && info.ssi_pid == (unsigned)child && info.ssi_status == 0 && next(fd, &info) == SIGWINCH);
	int status = system("exit 3");
	EXPECT(WEXITSTATUS(status) == 3 && next(fd, &info) == SIGCHLD && nothing(fd));
}

static void are_ticks(int fd)
{
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = TICK, .sigev_value.sival_int = 17};
	struct itimerspec value = {{0, 3000000}, {0, 3000000}}, still = {{0, 0}, {0, 0}};
	struct signalfd_siginfo info;
	EXPECT(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &value, NULL));
	compute(20);
	EXPECT(next(fd, &info) == TICK && info.ssi_code == SI_TIMER && info.ssi_int == 17 && info.ssi_overrun >= 4);
	EXPECT(next(fd, &info) == TICK && !timer_settime(timer, 0, &still, NULL));
	while (!nothing(fd))
		;
	EXPECT(!timer_delete(timer));
	EXPECT(!setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 10000}}, NULL));
	EXPECT(next(fd, &info) == SIGALRM && info.ssi_code == SI_KERNEL);
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigset_t set;
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), early = -1;
	sigemptyset(&set);
	for (size_t i = 0; i < 7; i++)
		sigaddset(&set, (int[]){SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGWINCH, FIRST, TICK}[i]);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (argc > 1 && !strcmp(argv[1], "early"))
		early = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	else if (argc > 1)
		early = argc > 2 ? atoi(argv[2]) : signalfd(-1, &set, SFD_NONBLOCK);
	if (argc > 2) {
		struct signalfd_siginfo info;
		EXPECT(next(early, &info) == SIGUSR2 && info.ssi_pid == (unsigned)getpid());
	}
	do {
		waits_already();
		is_passed();
		sigset_t child = set_of(SIGCHLD);
		EXPECT(sigtimedwait(&child, NULL, &(struct timespec){0, 0}) == SIGCHLD);
		int fd = early < 0 ? signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC) : early;
		queues(fd);
		is_polled(fd);
		is_inherited(fd);
		are_a_threads(fd);
		are_waited_for(fd);
		are_let_in(fd);
		are_ignored(fd);
		are_of_programs(fd);
		are_ticks(fd);
		if (early < 0)
			close(fd);
		dprintf(lines, "round\n");
		compute(20);
		if (argc > 1 && strcmp(argv[1], "early") && !failures && access("enough", F_OK)) {
			char number[16];
			snprintf(number, sizeof number, "%d", early);
			EXPECT(!kill(getpid(), SIGUSR2));
			execl(argv[0], argv[0], "held", number, NULL);
		}
	} while (access("enough", F_OK) && failures < 20);
	return failures ? 1 : 0;
}
