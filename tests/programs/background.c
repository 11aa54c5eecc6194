/* background: what a terminal does with callers in its background, by what they block, ignore or handle. Waits for a file `go`; then, on a
 * terminal of its own, has children in the background make each call, and writes a line for each into `lines`: its result, whether the
 * child was stopped, how many signals it handled, and how many another process of its group had. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static const char *const calls[] = {"tcsetpgrp", "tcsetattr", "tcflush", "tcflow", "tcsendbreak", "write", "writev", "read"};
static const char *const ways[] = {"blocked", "ignored", "default", "handled", "orphaned"};
static volatile sig_atomic_t handled;
static int lines;

static void on_signal(int number)
{
	(void)number;
	handled++;
}

static void rest(long milliseconds)
{
	struct timespec left = {0, milliseconds * 1000000};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static int call(const char *what)
{
	struct termios t;
	struct iovec part = {".", 1};
	char buffer[8];
	if (!strcmp(what, "tcsetpgrp"))
		return tcsetpgrp(0, getpgrp());
	if (!strcmp(what, "tcsetattr"))
		return tcgetattr(0, &t) || tcsetattr(0, TCSANOW, &t);
	if (!strcmp(what, "tcflush"))
		return tcflush(0, TCIFLUSH);
	if (!strcmp(what, "tcflow"))
		return tcflow(0, TCOON);
	if (!strcmp(what, "tcsendbreak"))
		return tcsendbreak(0, 0);
	if (!strcmp(what, "read"))
		return read(0, buffer, sizeof buffer) < 0 ? -1 : 0;
	if (!strcmp(what, "writev"))
		return writev(1, &part, 1) == 1 ? 0 : -1;
	return write(1, ".", 1) == 1 ? 0 : -1;
}

static void child(const char *what, const char *how)
{
	int number = !strcmp(what, "read") ? SIGTTIN : SIGTTOU;
	struct sigaction action = {.sa_handler = on_signal};
	sigset_t set;
	signal(SIGTTOU, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, number);
	if (!strcmp(how, "blocked"))
		sigprocmask(SIG_BLOCK, &set, NULL);
	else if (!strcmp(how, "ignored"))
		signal(number, SIG_IGN);
	else if (how[0] == 'h')
		sigaction(number, &action, NULL);
	int result = call(what), error = errno;
	dprintf(lines, "  %s, handled %d\n", result ? strerrorname_np(error) : "done", (int)handled);
}

/* One call in one way. In a group of its own, with another process that counts what its group gets. */
static void try(const char *what, const char *how)
{
	int status, ready[2], orphan = !strcmp(how, "orphaned");
	char byte;
	dprintf(lines, "%s, %s\n", what, how);
	if (pipe(ready))
		_exit(1);
	pid_t parent = orphan ? fork() : 0;
	if (orphan && parent) {
		waitpid(parent, &status, 0);
		close(ready[1]);
		if (read(ready[0], &byte, 1))   /* the end of the orphan */
			_exit(1);
		close(ready[0]);
		return;
	}
	pid_t witness = orphan ? 0 : fork();
	if (!orphan && !witness) {
		struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
		setpgid(0, 0);
		sigaction(SIGTTOU, &action, NULL);
		sigaction(SIGTTIN, &action, NULL);
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		while (access("over", F_OK) && getppid() != 1)
			rest(10);
		dprintf(lines, "  its group had %s\n", handled ? "some" : "none");
		_exit(0);
	}
	if (!orphan && read(ready[0], &byte, 1) != 1)
		_exit(1);
	pid_t middle = getpid(), pid = fork();
	if (!pid) {
		setpgid(0, witness);
		while (orphan && getppid() == middle)   /* until no process is left that could continue it */
			rest(10);
		child(what, how);
		_exit(0);
	}
	setpgid(pid, witness ? witness : pid);
	if (orphan)
		_exit(0);
	if (waitpid(pid, &status, WUNTRACED) != pid)
		_exit(1);
	dprintf(lines, "  %s %d\n", WIFSTOPPED(status) ? "stopped by" : "ended with",
	        WIFSTOPPED(status) ? WSTOPSIG(status) : WEXITSTATUS(status));
	if (WIFSTOPPED(status)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	tcsetpgrp(0, getpgrp());
	close(open("over", O_WRONLY | O_CREAT, 0644));
	waitpid(witness, &status, 0);
	unlink("over");
}

int main(void)
{
	int master, status;
	char buffer[256];
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	dprintf(lines, "waits\n");
	while (access("go", F_OK))
		rest(20);
	pid_t pid = forkpty(&master, NULL, NULL, NULL);
	if (!pid) {
		struct termios t;
		signal(SIGTTOU, SIG_IGN);
		tcgetattr(0, &t);
		for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
			for (unsigned k = 0; k < sizeof ways / sizeof *ways; k++) {
				int stops = !strncmp(calls[i], "write", 5);
				t.c_lflag = stops ? t.c_lflag | TOSTOP : t.c_lflag & ~TOSTOP;
				tcsetattr(0, TCSANOW, &t);
				try(calls[i], ways[k]);
			}
		_exit(0);
	}
	while (read(master, buffer, sizeof buffer) > 0)
		;
	waitpid(pid, &status, 0);
	printf("ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}
