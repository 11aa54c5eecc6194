/* Threads that run or want to: what the kernel counts, or, on nodes whose kernel counts more than their own (virtual ones), those of the
 * processes that /proc shows. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runnable.h"

#define TEXT 512   /* bytes of a `stat` file that are looked at: all that comes before the count of threads */
#define THREADS 17 /* words between the state and the count of threads */
#define ASLEEP 20  /* calls on end in which a process has not run or wanted to, */
#define SELDOM 4   /* after which only every so manieth looks at it */

/* The `stat` of a process or thread, after the program's name, in `text`; NULL if it has ended. */
static const char *after_name(int directory, const char *path, char *text)
{
	int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, TEXT - 1);

	if (fd >= 0)
		close(fd);
	if (size <= 0)
		return NULL;
	text[size] = 0;
	const char *name_ends = strrchr(text, ')');
	return name_ends && name_ends[1] == ' ' ? name_ends + 2 : NULL;
}

/* Those of a process that has more than one. */
static int of_threads(int proc, const char *name)
{
	char path[64], text[TEXT];
	int count = 0;

	snprintf(path, sizeof path, "%s/task", name);
	int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
	if (!tasks) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	for (struct dirent *one; (one = readdir(tasks));) {
		snprintf(path, sizeof path, "%.20s/stat", one->d_name);
		const char *state = one->d_name[0] == '.' ? NULL : after_name(fd, path, text);
		count += state && *state == 'R';
	}
	closedir(tasks);
	return count;
}

static int of_process(int proc, const char *name)
{
	char path[64], text[TEXT];

	snprintf(path, sizeof path, "%.20s/stat", name);
	const char *state = after_name(proc, path, text), *word = state;
	for (int i = 0; word && i < THREADS; i++)
		if ((word = strchr(word, ' ')))
			word++;
	if (!word)
		return 0;
	return atoi(word) == 1 ? *state == 'R' : of_threads(proc, name);
}

static void note(struct runnable *found, int pid, int threads)
{
	if (found->count == MOST_RUNNING) {
		found->rest += threads;
		return;
	}
	found->of[found->count].pid = pid;
	found->of[found->count++].threads = threads;
}

static bool is_among(int pid, const int *pids, int count)
{
	for (int i = 0; i < count; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

/* For how many calls what is found of a process now is to count; 0: it is not looked at. */
static int weight(struct proc *proc, int pid)
{
	if (proc->known[pid % PROCESSES_KNOWN].pid != pid) {
		proc->known[pid % PROCESSES_KNOWN].pid = pid;
		proc->known[pid % PROCESSES_KNOWN].asleep = 0;
	}
	if (proc->known[pid % PROCESSES_KNOWN].asleep < ASLEEP)
		return 1;
	return (proc->calls + (unsigned)pid) % SELDOM ? 0 : SELDOM;
}

static void learn(struct proc *proc, int pid, int threads)
{
	unsigned *asleep = &proc->known[pid % PROCESSES_KNOWN].asleep;

	*asleep = threads ? 0 : *asleep < ASLEEP ? *asleep + 1 : ASLEEP;
}

int find_runnable_of_processes(struct proc *proc, struct runnable *found, const int *without, int count)
{
	int own = getpid();

	found->count = found->rest = 0;
	proc->calls++;
	if (proc->directory)
		seekdir(proc->directory, proc->processes);
	else if ((proc->directory = opendir("/proc")))
		proc->processes = -1;
	else
		return -errno;
	for (;;) {
		long before = proc->processes < 0 ? telldir(proc->directory) : 0;
		struct dirent *one = readdir(proc->directory);
		if (!one)
			return 0;
		int pid = atoi(one->d_name);
		if (pid <= 0)
			continue;
		if (proc->processes < 0)
			proc->processes = before;
		if (pid == own || is_among(pid, without, count))
			continue;
		int times = weight(proc, pid);
		if (!times)
			continue;
		int threads = of_process(dirfd(proc->directory), one->d_name);
		learn(proc, pid, threads);
		if (threads > 0)
			note(found, pid, threads * times);
	}
}

int find_runnable_of_machine(struct runnable *found)
{
	char text[TEXT];
	int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, TEXT - 1);
	int error = errno, running = 0;

	if (fd >= 0)
		close(fd);
	if (size < 0)
		return -error;
	text[size] = 0;
	if (sscanf(text, "%*f %*f %*f %d/", &running) != 1)
		return -EINVAL;
	found->count = 0;
	found->rest = running - 1;
	return 0;
}
