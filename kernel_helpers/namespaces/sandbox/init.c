/* Process 1 of a sandbox. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "namespaces/sandbox/sandbox.h"

/* Only a process inside the namespace can say which pid comes next. */
static int set_next_pid(int last_pid, const char *text, ssize_t length)
{
	return length > 0 && pwrite(last_pid, text, length, 0) == length;
}

static void reap(void)
{
	while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
		;
}

/* One that had this pid before may have to be reaped yet. */
static int make_vessel(pid_t pid)
{
	struct {
		unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
	} a = {.exit_signal = SIGCHLD, .set_tid = (unsigned long long)&pid, .set_tid_size = 1};
	for (int tries = 0; tries < 2000; tries++) {
		pid_t child = syscall(SYS_clone3, &a, sizeof a);
		if (child < 0 && errno == EEXIST) {
			usleep(250);
			reap();
			continue;
		}
		if (child)
			return child > 0;
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		setsid();
		syscall(SYS_close_range, 0, ~0u, 0);
		for (;;)
			pause();
	}
	return 0;
}

ssize_t sandbox_take_request(int numbers, char *text, size_t room, int *descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec where = {text, room - 1};
	struct msghdr message = {.msg_iov = &where, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t length = recvmsg(numbers, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *given = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	text[length > 0 ? length : 0] = 0;
	*descriptor = -1;
	if (given && given->cmsg_type == SCM_RIGHTS)
		memcpy(descriptor, CMSG_DATA(given), sizeof *descriptor);
	return length;
}

void sandbox_serve_forever(int children, int numbers, int last_pid)
{
	struct pollfd watched[2] = {{children, POLLIN, 0}, {numbers, POLLIN, 0}};
	char text[4096];
	for (;;) {
		reap();
		poll(watched, 2, 1000); /* a task with exit signal 0 reports its end to nobody */
		if (watched[0].revents && read(children, text, sizeof text) < 0 && errno != EAGAIN)
			watched[0].fd = -1;
		if (watched[1].revents) {
			int tree;
			ssize_t length = sandbox_take_request(numbers, text, sizeof text, &tree);
			int done = *text == 'v' ? make_vessel(atoi(text + 1)) : set_next_pid(last_pid, text, length);
			char answer = done ? '+' : '-';
			if (tree >= 0)
				close(tree);
			if (length <= 0 || write(numbers, &answer, 1) != 1)
				watched[1].fd = -1;
		}
	}
}
