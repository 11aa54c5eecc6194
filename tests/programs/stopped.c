/* stopped WAY: what stops is continued, wherever it is. The parent (this program) writes to the file `lines` how its child stopped, went on
 * and ended, as waitpid(2) has it; the child counts in the file `count`, as `worker` does in two threads, or waits in a call.
 *   waits: in a read, until `go` is there. counts: computing, in two threads. sleeps: in nanosleep, one second in all.
 *   orders: it stops itself and writes a byte, again and again; each time that it is stopped it has to have written as often as it was
 *   continued. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int lines;
static volatile sig_atomic_t handled;
static volatile long rounds;

static void note(int number)
{
	handled = number;
}

static void *count(void *nothing)
{
	for (;;)
		rounds++;
	return nothing;
}

static void child(const char *way)
{
	setpgid(0, 0); /* else its group may be an orphan, which no terminal stops */
	struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	if (!strcmp(way, "counts")) {
		pthread_t thread;
		pthread_create(&thread, NULL, count, NULL);
		for (int file = open("count", O_WRONLY | O_CREAT, 0666);; usleep(10000)) {
			char text[64];
			pwrite(file, text, (size_t)snprintf(text, sizeof text, "%ld %d\n", rounds, handled), 0);
			if (!access("go", F_OK))
				_exit(handled == SIGUSR1 ? 7 : 8);
		}
	}
	if (!strcmp(way, "orders"))
		for (int file = open("count", O_WRONLY | O_APPEND); access("go", F_OK);)
			if (kill(getpid(), SIGTSTP) || write(file, "x", 1) != 1)
				_exit(9);
	if (!strcmp(way, "orders"))
		_exit(7);
	if (!strcmp(way, "waits")) {
		char byte;
		int fifo = open("fifo", O_RDONLY);
		while (read(fifo, &byte, 1) != 1)
			;
		_exit(handled == SIGUSR1 && byte == 'x' ? 7 : 8);
	}
	struct timespec left = {1, 0};
	while (nanosleep(&left, &left))
		;
	for (; access("go", F_OK); usleep(10000))
		;
	_exit(handled == SIGUSR1 ? 7 : 8);
}

/* A line for every 20 stops. Returns how the child ended. */
static int watch(pid_t pid)
{
	int status;
	struct stat written;
	for (long stops = 0; waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status); stops++) {
		usleep(1000); /* for what it might still do */
		if (stat("count", &written) || written.st_size != stops)
			dprintf(lines, "stopped for the time %ld it had written %ld times\n", stops + 1, (long)written.st_size);
		else if (stops % 20 == 19)
			dprintf(lines, "in order\n");
		kill(pid, SIGCONT);
	}
	return status;
}

int main(int argc, char **argv)
{
	int status;
	close(open("count", O_WRONLY | O_CREAT, 0666));
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0666);
	if (mkfifo("fifo", 0666))
		return 2;
	pid_t pid = fork();
	if (!pid)
		child(argc > 1 ? argv[1] : "counts");
	dprintf(lines, "child %d\n", pid);
	if (argc > 1 && !strcmp(argv[1], "orders"))
		return status = watch(pid), dprintf(lines, "ended with %d\n", WEXITSTATUS(status)), 0;
	while (waitpid(pid, &status, WUNTRACED | WCONTINUED) == pid) {
		if (WIFSTOPPED(status))
			dprintf(lines, "stopped by %d\n", WSTOPSIG(status));
		else if (WIFCONTINUED(status))
			dprintf(lines, "continued\n");
		else if (WIFSIGNALED(status))
			return dprintf(lines, "killed by %d\n", WTERMSIG(status)), 0;
		else
			return dprintf(lines, "ended with %d\n", WEXITSTATUS(status)), 0;
	}
	return 1;
}
