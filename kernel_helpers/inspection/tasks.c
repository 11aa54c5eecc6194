/* A file of /proc of all threads of a process at a time. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_FILE = 1 << 16, MOST_LINES = 1024, MOST_WANTED = 32 };

/* Before the text of each thread: whose it is, and how long. */
struct task {
	int32_t tid;
	uint32_t size;
};

/* Whether a line is one of those that are wanted, by how it begins; all are if none is named. */
static int is_wanted(const char *line, size_t size, char *const *wanted, int count)
{
	for (int i = 0; i < count; i++) {
		size_t length = strlen(wanted[i]);
		if (length <= size && !memcmp(line, wanted[i], length))
			return 1;
	}
	return !count;
}

static ssize_t read_whole(int directory, const char *path, char *text, size_t most)
{
	int file = openat(directory, path, O_RDONLY | O_CLOEXEC);
	ssize_t size = 0, some;

	if (file < 0)
		return -errno;
	while ((some = read(file, text + size, most - size)) > 0)
		size += some;
	some = some < 0 ? -errno : size;
	close(file);
	return some;
}

/* Of `text`, the lines that are wanted, moved to `to`; how much that is. */
static size_t sift(const char *text, size_t size, char *to, char *const *wanted, int count)
{
	size_t kept = 0;

	for (const char *line = text, *end = text + size; line < end;) {
		const char *behind = memchr(line, '\n', end - line);
		size_t length = (behind ? behind + 1 : end) - line;
		if (is_wanted(line, length, wanted, count)) {
			memcpy(to + kept, line, length);
			kept += length;
		}
		line += length;
	}
	return kept;
}

/* As farhome_tasks_read(), from a directory that is open. text: MOST_FILE bytes. */
static int64_t read_all(DIR *tasks, const char *name, char *const *wanted, int count, char *text, char *found, size_t room)
{
	size_t at = 0;

	for (struct dirent *entry; (entry = readdir(tasks));) {
		char file[300];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(file, sizeof file, "%s/%s", entry->d_name, name);
		ssize_t size = read_whole(dirfd(tasks), file, text, MOST_FILE);
		if (size == -ENOENT || size == -ESRCH)
			continue;
		if (size < 0)
			return size;
		if (room - at < sizeof(struct task) + size)
			return -E2BIG;
		struct task task = {atoi(entry->d_name), sift(text, size, found + at + sizeof task, wanted, count)};
		memcpy(found + at, &task, sizeof task);
		at += sizeof task + task.size;
	}
	return at;
}

/* /proc/PID/task/TID/NAME of each thread, or the lines of it that begin with one of `lines` (with a newline between two of these), into
 * `found`: a struct task and its text, one behind the other. Threads that have ended meanwhile are left out. Bytes; -E2BIG: `room` is not
 * enough; another negative errno. */
int64_t farhome_tasks_read(int pid, const char *name, const char *lines, char *found, size_t room)
{
	char path[64], list[MOST_LINES], *wanted[MOST_WANTED], *state = NULL;
	int count = 0;

	if (strlen(lines) >= sizeof list)
		return -EINVAL;
	strcpy(list, lines);
	for (char *line = strtok_r(list, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
		if (count == MOST_WANTED)
			return -EINVAL;
		wanted[count++] = line;
	}
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *tasks = opendir(path);
	if (!tasks)
		return -errno;
	char *text = malloc(MOST_FILE);
	int64_t size = text ? read_all(tasks, name, wanted, count, text, found, room) : -ENOMEM;
	free(text);
	closedir(tasks);
	return size;
}
