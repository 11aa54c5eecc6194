/* Threads that run or want to, of the processes that /proc shows: for nodes whose kernel counts more than their own (virtual ones), ten times
 * a second. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT 512   /* bytes of a `stat` file that are looked at: all that comes before the count of threads */
#define THREADS 17 /* words between the state and the count of threads */

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

/* How many there are, those of the `count` processes `without` not among them; -errno. */
int farhome_runnable(const int *without, int count)
{
	DIR *proc = opendir("/proc");
	int found = 0;

	if (!proc)
		return -errno;
	for (struct dirent *one; (one = readdir(proc));) {
		int pid = atoi(one->d_name), i = 0;
		while (i < count && without[i] != pid)
			i++;
		if (pid > 0 && i == count)
			found += of_process(dirfd(proc), one->d_name);
	}
	closedir(proc);
	return found;
}
