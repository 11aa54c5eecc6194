/* uffd_guard PID: stands by while a deputy serves the missing pages of process PID, which runs (engine/pour/postcopy.py).
 *
 * It holds the userfaultfd that it was started with, so that a deputy which dies leaves the process waiting and not with zeros in place of
 * its memory. It reads from standard input: `f`, pages are missing from now on (it answers `r`); `k`, all are there, and it goes. If the
 * input ends after an `f`, they never will be: the process and all that have descended from it are killed. Else it goes at its end. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 65536

static pid_t found[MOST];
static size_t count;

static void add_children(pid_t pid)
{
	char path[320];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *tasks = opendir(path);
	struct dirent *entry;

	while (tasks && (entry = readdir(tasks))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, entry->d_name);
		FILE *children = fopen(path, "r");
		int child;
		while (children && count < MOST && fscanf(children, "%d", &child) == 1)
			found[count++] = child;
		if (children)
			fclose(children);
	}
	if (tasks)
		closedir(tasks);
}

int main(int argc, char **argv)
{
	pid_t pid = argc == 2 ? atoi(argv[1]) : 0;
	int handle = pid > 0 ? syscall(SYS_pidfd_open, pid, 0) : -1;
	bool follows = false;
	char word;

	if (handle < 0)
		return 1;
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_IGN); /* it goes when the deputy says so, or ends */
	while (read(0, &word, 1) == 1) {
		if (word == 'k')
			return 0;
		follows = true;
		if (write(1, "r", 1) != 1)
			return 1;
	}
	if (!follows)
		return 0;
	/* Stopped first, so that none is born while they are looked for. */
	syscall(SYS_pidfd_send_signal, handle, SIGSTOP, NULL, 0);
	found[count++] = pid;
	for (size_t i = 0; i < count; i++) {
		if (i)
			kill(found[i], SIGSTOP);
		add_children(found[i]);
	}
	syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0);
	for (size_t i = 1; i < count; i++)
		kill(found[i], SIGKILL);
	return 0;
}
