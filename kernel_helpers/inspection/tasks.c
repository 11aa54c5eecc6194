/* A file of /proc of all threads of a process at a time. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MOST_FILE = 1 << 16, MOST_LINES = 1024, MOST_WANTED = 32, MANY = 64 /* threads that are worth one more of ours */ };

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

/* What is to be read, and of which threads. */
struct wish {
	int directory;
	const char *name;
	char *const *lines;
	int line_count;
	const int *tids;
	size_t count;
	char *found;
	size_t room;
	int64_t size; /* of what was found, or a negative errno */
};

static void *read_each(void *argument)
{
	struct wish *wish = argument;
	char *text = malloc(MOST_FILE);
	size_t at = 0;

	wish->size = text ? 0 : -ENOMEM;
	for (size_t i = 0; i < wish->count && wish->size >= 0; i++) {
		char file[300];
		snprintf(file, sizeof file, "%d/%s", wish->tids[i], wish->name);
		ssize_t size = read_whole(wish->directory, file, text, MOST_FILE);
		if (size == -ENOENT || size == -ESRCH)
			continue;
		if (size < 0 || wish->room - at < sizeof(struct task) + size) {
			wish->size = size < 0 ? size : -E2BIG;
			break;
		}
		struct task task = {wish->tids[i], sift(text, size, wish->found + at + sizeof task, wish->lines, wish->line_count)};
		memcpy(wish->found + at, &task, sizeof task);
		wish->size = at += sizeof task + task.size;
	}
	free(text);
	return NULL;
}

/* The first half by ourselves, and of many threads the second by a thread of its own; what it finds moves up behind the first. */
static int64_t read_all(struct wish wish)
{
	struct wish first = wish, second = wish;
	pthread_t other;

	if (wish.count <= MANY) {
		read_each(&wish);
		return wish.size;
	}
	first.count = wish.count / 2, first.room = wish.room / 2;
	second.tids += first.count, second.count -= first.count, second.found += first.room, second.room -= first.room;
	int has_other = !pthread_create(&other, NULL, read_each, &second);
	read_each(&first);
	if (has_other)
		pthread_join(other, NULL);
	else
		read_each(&second);
	if (first.size < 0 || second.size < 0)
		return first.size < 0 ? first.size : second.size;
	memmove(first.found + first.size, second.found, second.size);
	return first.size + second.size;
}

/* The threads that a directory lists, in its order, in memory that is to be freed; their number in `count`. NULL: there is no memory. */
static int *tids_of(DIR *tasks, size_t *count)
{
	size_t room = 0;
	int *tids = NULL;

	*count = 0;
	for (struct dirent *entry; (entry = readdir(tasks));) {
		if (entry->d_name[0] == '.')
			continue;
		if (*count == room) {
			int *more = realloc(tids, (room += 1024) * sizeof *tids);
			if (!more) {
				free(tids);
				return NULL;
			}
			tids = more;
		}
		tids[(*count)++] = atoi(entry->d_name);
	}
	return tids ? tids : calloc(1, sizeof *tids);
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
	size_t threads;
	int *tids = tids_of(tasks, &threads);
	int64_t size = -ENOMEM;
	if (tids)
		size = read_all((struct wish){dirfd(tasks), name, wanted, count, tids, threads, found, room, 0});
	free(tids);
	closedir(tasks);
	return size;
}

/* What threads are known by elsewhere: `request` is that of an ioctl(2) of a pid namespace that says so. 0, or a negative errno. */
int farhome_tasks_translate(int namespace, uint64_t request, const int32_t *tids, int32_t *found, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if ((found[i] = ioctl(namespace, request, (unsigned long)tids[i])) < 0)
			return -errno;
	return 0;
}
