/* reaps: what becomes of children is the kernel's own affair, by what their parent does with SIGCHLD; again and again until there is a file
 * `enough`; each round writes a line into `lines`.
 *
 * Exit status: 0; 3 with one line about the first thing that was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
			fflush(stdout); \
			_exit(3); \
		} \
	} while (0)

static volatile sig_atomic_t handled;

static void on_child(int number)
{
	(void)number;
	handled++;
}

static pid_t child(int milliseconds, int status)
{
	pid_t pid = fork();
	EXPECT(pid >= 0);
	if (!pid) {
		usleep(milliseconds * 1000);
		_exit(status);
	}
	return pid;
}

static void act(void (*handler)(int), int flags)
{
	EXPECT(!sigaction(SIGCHLD, &(struct sigaction){.sa_handler = handler, .sa_flags = flags}, NULL));
	handled = 0;
}

/* How a wait for any child ends that goes on after handlers: its errno. */
static int waited(void)
{
	while (wait(NULL) == -1)
		if (errno != EINTR)
			return errno;
	return 0;
}

int main(void)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), status;
	while (access("enough", F_OK)) {
		/* ignored, or not wanted: they are gone at once, and a wait ends when the last one is */
		act(SIG_IGN, 0);
		child(20, 0);
		child(5, 1);
		EXPECT(waited() == ECHILD);
		act(SIG_DFL, SA_NOCLDWAIT);
		child(20, 0);
		EXPECT(waited() == ECHILD);
		act(on_child, SA_NOCLDWAIT);
		child(20, 0);
		EXPECT(waited() == ECHILD);
		while (!handled)
			usleep(1000);

		/* a child that had ended before is not there any more, one that was there before stays */
		act(SIG_DFL, 0);
		pid_t early = child(0, 4);
		siginfo_t info;
		EXPECT(!waitid(P_PID, early, &info, WEXITED | WNOWAIT) && info.si_pid == early);
		act(SIG_IGN, 0);
		EXPECT(waitpid(early, &status, 0) == early && WEXITSTATUS(status) == 4);
		EXPECT(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);

		/* SA_NOCLDSTOP */
		act(on_child, SA_NOCLDSTOP | SA_RESTART);
		pid_t long_one = child(60000, 0);
		EXPECT(!kill(long_one, SIGSTOP) && waitpid(long_one, &status, WUNTRACED) == long_one && WIFSTOPPED(status) && !handled);
		EXPECT(!kill(long_one, SIGCONT) && waitpid(long_one, &status, WCONTINUED) == long_one && WIFCONTINUED(status) && !handled);
		EXPECT(!kill(long_one, SIGKILL) && waitpid(long_one, &status, 0) == long_one && WTERMSIG(status) == SIGKILL);
		while (!handled)
			usleep(1000);

		/* what is too long for its limit, and SIGXFSZ ignored */
		signal(SIGXFSZ, SIG_IGN);
		struct rlimit before, small;
		EXPECT(!getrlimit(RLIMIT_FSIZE, &before));
		small = (struct rlimit){10, before.rlim_max};
		int file = open("limited", O_RDWR | O_CREAT | O_TRUNC, 0600);
		EXPECT(!setrlimit(RLIMIT_FSIZE, &small) && write(file, "0123456789abcdef", 16) == 10);
		EXPECT(write(file, "g", 1) == -1 && errno == EFBIG && !setrlimit(RLIMIT_FSIZE, &before) && !close(file));
		dprintf(lines, "so\n");
	}
	return 0;
}
