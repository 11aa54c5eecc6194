/* halted: children wait in calls, are stopped and continued there, and say how these calls have ended. Begins when the file `go`
 * is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct {
	const char *name;
	long number;
} ways[] = {
	{"epoll_wait", SYS_epoll_wait},
	{"epoll_pwait2", SYS_epoll_pwait2},
	{"semop", SYS_semop},
	{"rt_sigtimedwait", SYS_rt_sigtimedwait},
	{"recv with a limit", SYS_recvfrom},
	{"read", SYS_read},
	{"poll", SYS_poll},
	{"msgrcv", SYS_msgrcv},
};

static int ends[2], pair[2], epoll, semaphore, queue;

static long wait_in(size_t way)
{
	struct epoll_event event;
	struct timespec minute = {60, 0};
	struct pollfd both = {ends[0], POLLIN, 0};
	struct sembuf take = {0, -1, 0};
	struct {
		long kind;
		char text[8];
	} message;
	sigset_t set;
	char byte;
	switch (way) {
	case 0:
		return epoll_wait(epoll, &event, 1, 60000);
	case 1:
		return syscall(SYS_epoll_pwait2, epoll, &event, 1, &minute, NULL, 8);
	case 2:
		return syscall(SYS_semop, semaphore, &take, 1);
	case 3:
		sigemptyset(&set);
		sigaddset(&set, SIGUSR2);
		return syscall(SYS_rt_sigtimedwait, &set, NULL, &minute, 8);
	case 4:
		return recv(pair[0], &byte, 1, 0);
	case 5:
		return read(ends[0], &byte, 1);
	case 6:
		return syscall(SYS_poll, &both, 1, 60000);
	default:
		return msgrcv(queue, &message, sizeof message.text, 1, 0);
	}
}

static void provide(size_t way)
{
	struct {
		long kind;
		char text[8];
	} message = {1, "text"};
	if (way == 7)
		msgsnd(queue, &message, sizeof message.text, 0);
	else if (write(ends[1], "x", 1) != 1)
		_exit(2);
}

/* Until the process waits in that call. */
static void await_call(pid_t pid, long number)
{
	char path[64], text[64];
	snprintf(path, sizeof path, "/proc/%d/syscall", pid);
	for (int i = 0; i < 4000; i++, usleep(5000)) {
		int file = open(path, O_RDONLY);
		ssize_t size = read(file, text, sizeof text - 1);
		close(file);
		text[size > 0 ? size : 0] = 0;
		if (size > 0 && text[0] != 'r' && strtol(text, NULL, 10) == number)
			return;
	}
	printf("does not come to its call\n");
}

int main(void)
{
	sigset_t set;
	struct timeval minute = {60, 0};
	int status, lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	semaphore = semget(IPC_PRIVATE, 1, 0600);
	queue = msgget(IPC_PRIVATE, 0600);
	epoll = epoll_create1(0);
	if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute))
		return 2;
	struct epoll_event event = {.events = EPOLLIN};
	epoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event);
	dprintf(lines, "ready\n");
	while (access("go", F_OK))
		usleep(10000);
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
		for (int by = 0; by < 2; by++) {
			fflush(stdout);
			pid_t pid = fork();
			if (!pid) {
				setpgid(0, 0);
				long result = wait_in(way);
				printf("%s, %s: %s\n", ways[way].name, by ? "by SIGTSTP" : "by SIGSTOP",
				       result < 0 ? strerrorname_np(errno) : "went on");
				fflush(stdout);
				_exit(0);
			}
			await_call(pid, ways[way].number);
			kill(pid, by ? SIGTSTP : SIGSTOP);
			if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
				printf("not stopped\n");
			kill(pid, SIGCONT);
			if (way >= 5)
				provide(way);
			alarm(60);
			waitpid(pid, &status, 0);
			alarm(0);
			char byte;
			if (way == 6 && read(ends[0], &byte, 1) != 1)
				return 3;
		}
	}
	semctl(semaphore, 0, IPC_RMID);
	msgctl(queue, IPC_RMID, NULL);
	return 0;
}
