/* trapped: is sent SIGTRAP, SIGSTOP and SIGCONT by a child, time and again, and handles each SIGTRAP, of which the child waits for word.
 * The child writes a line into the file `lines` for every tenth, until `go` is there; then `ended`, or `lost` when no word comes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 20000

static int word[2];

static void handle(int number)
{
	char byte = (char)number;
	if (write(word[1], &byte, 1) != 1)
		_exit(3);
}

static int child(pid_t parent)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0666);
	struct pollfd readable = {word[0], POLLIN, 0};
	char byte;
	for (int round = 1; access("go", F_OK); round++) {
		if (round % 2 ? kill(parent, SIGTRAP) : (int)syscall(SYS_tgkill, parent, parent, SIGTRAP))
			return 4;
		kill(parent, SIGSTOP);
		kill(parent, SIGCONT);
		if (poll(&readable, 1, PATIENCE_MS) != 1 || read(word[0], &byte, 1) != 1)
			return dprintf(lines, "lost: %d\n", round), kill(parent, SIGKILL);
		if (round % 10 == 0)
			dprintf(lines, "%d\n", round);
	}
	return dprintf(lines, "ended\n"), 0;
}

int main(void)
{
	int status;
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	if (pipe(word) || sigaction(SIGTRAP, &action, NULL))
		return 2;
	pid_t parent = getpid(), pid = fork();
	if (!pid)
		_exit(child(parent));
	for (volatile long rounds = 0; !waitpid(pid, &status, WNOHANG);)
		for (int i = 0; i < 100000; i++)
			rounds++;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
