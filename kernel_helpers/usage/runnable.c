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

#include "usage/runnable.h"

#define TEXT 512   /* bytes of a `stat` file that are looked at: all that comes before the count of threads */
#define THREADS 17 /* words between the state and the count of threads */
#define ASLEEP 20  /* calls on end in which a process has not run or wanted to: it may be looked at less often */
#define SELDOM 4   /* every so manieth call looks at those, and for new ones */

/* Of a thread's or process's open `stat` what comes after the program's name, in `text`; NULL if it has ended. */
static const char *after_name(int stat, char *text)
{
	ssize_t size = pread(stat, text, TEXT - 1, 0);

	if (size <= 0)
		return NULL;
	text[size] = 0;
	const char *name_ends = strrchr(text, ')');
	return name_ends && name_ends[1] == ' ' ? name_ends + 2 : NULL;
}

/* Those of a process that has more than one. */
static int of_threads(int proc, int pid)
{
	char path[64], text[TEXT];
	int count = 0;

	snprintf(path, sizeof path, "%d/task", pid);
	int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *tasks = fd < 0 ? NULL : fdopendir(fd);
	if (!tasks) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	for (struct dirent *one; (one = readdir(tasks));) {
		if (one->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%.20s/stat", one->d_name);
		int stat = openat(fd, path, O_RDONLY | O_CLOEXEC);
		if (stat < 0)
			continue;
		const char *state = after_name(stat, text);
		count += state && *state == 'R';
		close(stat);
	}
	closedir(tasks);
	return count;
}

/* -1: it has ended. */
static int of_process(int proc, int pid, int stat)
{
	char text[TEXT];
	const char *state = after_name(stat, text), *word = state;

	for (int i = 0; word && i < THREADS; i++)
		if ((word = strchr(word, ' ')))
			word++;
	if (!word)
		return -1;
	return atoi(word) == 1 ? *state == 'R' : of_threads(proc, pid);
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

static bool is_awake(const struct proc *proc, int pid)
{
	for (int i = 0; i < proc->count_awake; i++)
		if (proc->awake[i].pid == pid)
			return true;
	return false;
}

static void look_at_those_awake(struct proc *proc, struct runnable *found, const int *without, int count)
{
	int kept = 0;

	for (int i = 0; i < proc->count_awake; i++) {
		int pid = proc->awake[i].pid, stat = proc->awake[i].stat;
		unsigned asleep = proc->awake[i].asleep + 1;
		int threads = is_among(pid, without, count) ? -1 : of_process(dirfd(proc->directory), pid, stat);
		if (threads > 0) {
			note(found, pid, threads);
			asleep = 0;
		}
		if (threads < 0 || asleep == ASLEEP) {
			proc->asleep[pid % PROCESSES_KNOWN] = threads < 0 ? 0 : pid;
			close(stat);
			continue;
		}
		proc->awake[kept].pid = pid;
		proc->awake[kept].stat = stat;
		proc->awake[kept++].asleep = asleep;
	}
	proc->count_awake = kept;
}

/* At a process that is not among those awake. From now on it is, if it is new or is. */
static void look_at_another(struct proc *proc, struct runnable *found, int pid)
{
	char path[64];
	int *asleep = &proc->asleep[pid % PROCESSES_KNOWN];
	bool is_known = *asleep == pid;

	snprintf(path, sizeof path, "%d/stat", pid);
	int stat = openat(dirfd(proc->directory), path, O_RDONLY | O_CLOEXEC);
	if (stat < 0)
		return;
	int threads = of_process(dirfd(proc->directory), pid, stat);
	if (threads > 0)
		note(found, pid, threads * (is_known ? SELDOM : 1));
	if (threads >= 0)
		*asleep = pid;
	if (threads < 0 || (!threads && is_known) || proc->count_awake == MOST_AWAKE) {
		close(stat);
		return;
	}
	proc->awake[proc->count_awake].pid = pid;
	proc->awake[proc->count_awake].stat = stat;
	proc->awake[proc->count_awake++].asleep = !threads;
}

int find_runnable_of_processes(struct proc *proc, struct runnable *found, const int *without, int count)
{
	int own = getpid();

	found->count = found->rest = 0;
	if (!proc->directory && !(proc->directory = opendir("/proc")))
		return -errno;
	look_at_those_awake(proc, found, without, count);
	if (proc->calls++ % SELDOM)
		return 0;
	if (proc->processes)
		seekdir(proc->directory, proc->processes);
	else
		rewinddir(proc->directory);
	for (;;) {
		long before = proc->processes ? 0 : telldir(proc->directory);
		struct dirent *one = readdir(proc->directory);
		if (!one)
			return 0;
		int pid = atoi(one->d_name);
		if (pid <= 0)
			continue;
		if (!proc->processes)
			proc->processes = before;
		if (pid != own && !is_among(pid, without, count) && !is_awake(proc, pid))
			look_at_another(proc, found, pid);
	}
}

void forget_processes(struct proc *proc)
{
	while (proc->count_awake)
		close(proc->awake[--proc->count_awake].stat);
	if (proc->directory)
		closedir(proc->directory);
	proc->directory = NULL;
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
