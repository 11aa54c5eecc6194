/* Who has memory of a process together with it: its address space (vfork, clone with CLONE_VM), which only the kernel's own comparison
 * shows, or what it has mapped shared. Nothing lists who that is. So all processes that are to be seen are asked for. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The process that shares the memory of pid; 0: none does; -errno (ENOSYS: this kernel cannot compare). */
int farhome_shares_memory(int pid)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int found = 0;

	if (!processes)
		return -errno;
	while (!found && (entry = readdir(processes))) {
		char *end;
		long other = strtol(entry->d_name, &end, 10);
		if (*end || other <= 0 || other == pid)
			continue;
		long order = syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0);
		if (order == 0)
			found = other;
		else if (order < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
			found = -ENOSYS;
		/* else it has ended, or they differ */
	}
	closedir(processes);
	return found;
}

struct shared_object {
	uint64_t device, inode; /* as stat(2) has them */
};
struct holder {
	int32_t pid, object, how; /* object: the number of what it has */
};
enum { MAPPED = 1, OPEN = 2, UNDER_WAY = 3 /* some descriptor is, over a socket of that process */ };

struct search {
	const struct shared_object *objects;
	size_t count;
	bool only_shared; /* a mapping that is private, of who has no descriptor, writes to nothing */
	char (*lines)[64]; /* how each is named in /proc/PID/maps */
	char *text;
	size_t room;
	struct holder *found;
};

/* The file's content, with a NUL behind it. Returns its length or -errno. */
static ssize_t read_file(struct search *search, const char *path)
{
	size_t size = 0;
	ssize_t more = 0;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return -errno;
	do {
		size += more;
		if (search->room - size < 65536) {
			char *text = realloc(search->text, search->room + (1 << 18));
			if (!text) {
				close(file);
				return -ENOMEM;
			}
			search->text = text;
			search->room += 1 << 18;
		}
		more = read(file, search->text + size, search->room - size - 1);
	} while (more > 0 || (more < 0 && errno == EINTR && !(more = 0)));
	close(file);
	search->text[size] = 0;
	return size;
}

static bool report(struct search *search, int pid, size_t object, int how)
{
	*search->found = (struct holder){pid, object, how};
	return true;
}

/* Whether the mapping is, in whose line of a file that begins at `text` something was found. */
static bool is_shared(const char *text, const char *found)
{
	while (found > text && found[-1] != '\n')
		found--;
	const char *permissions = strchr(found, ' ');
	return permissions && strnlen(permissions, 5) == 5 && permissions[4] == 's';
}

/* Whether it has one mapped. A process whose main thread has ended has its memory still, which another thread shows. Or -errno. */
static int maps_any(struct search *search, int pid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	ssize_t size = read_file(search, path);

	if (!size) {
		snprintf(path, sizeof path, "/proc/%d/task", pid);
		DIR *tasks = opendir(path);
		struct dirent *entry;
		while (tasks && !size && (entry = readdir(tasks)))
			if (entry->d_name[0] != '.' && atoi(entry->d_name) != pid) {
				snprintf(path, sizeof path, "/proc/%d/task/%d/maps", pid, atoi(entry->d_name));
				size = read_file(search, path);
				size = size < 0 && size != -ENOMEM ? 0 : size;
			}
		if (tasks)
			closedir(tasks);
	}
	if (size < 0)
		return size == -ENOMEM ? -ENOMEM : 0; /* it has ended, or is not to be seen */
	for (size_t i = 0; size && search->text && i < search->count; i++)
		for (char *line = search->text; (line = strstr(line, search->lines[i])); line++)
			if (!search->only_shared || is_shared(search->text, line))
				return report(search, pid, i, MAPPED);
	return 0;
}

/* Whether descriptors are on their way over this socket. */
static bool carries(struct search *search, int pid, const char *number)
{
	char path[64], *line;
	snprintf(path, sizeof path, "/proc/%d/fdinfo/%.16s", pid, number);

	if (read_file(search, path) <= 0 || !search->text || !(line = strstr(search->text, "scm_fds:")))
		return false;
	return strtoul(line + strlen("scm_fds:"), NULL, 10) > 0;
}

/* Whether it has a descriptor of one, or one may be on its way to it. Only what has lost its name is looked at: no other file system is
 * asked for anything. */
static int opens_any(struct search *search, int pid)
{
	char path[64], target[4096];
	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), found = 0;
	DIR *descriptors = directory < 0 ? NULL : fdopendir(directory);
	struct dirent *entry;

	if (!descriptors) {
		if (directory >= 0)
			close(directory);
		return 0;
	}
	while (!found && (entry = readdir(descriptors))) {
		static const char lost[] = " (deleted)";
		ssize_t length = entry->d_name[0] == '.' ? -1 : readlinkat(directory, entry->d_name, target, sizeof target - 1);
		struct stat status;
		if (length < 0)
			continue;
		target[length] = 0;
		if (!strncmp(target, "socket:", 7))
			found = carries(search, pid, entry->d_name) && report(search, pid, 0, UNDER_WAY);
		else if (length >= (ssize_t)sizeof lost - 1 && !strcmp(target + length - (sizeof lost - 1), lost) &&
		         !fstatat(directory, entry->d_name, &status, 0))
			for (size_t i = 0; i < search->count && !found; i++)
				if (status.st_dev == search->objects[i].device && status.st_ino == search->objects[i].inode)
					found = report(search, pid, i, OPEN);
	}
	closedir(descriptors);
	return found;
}

/* Who has one of the objects of process pid, which has it mapped: another process that has mapped it, or any that has a descriptor of it.
 * without_descriptors: nobody can have one; only_shared: a private mapping does not count. Returns 1 and *found, 0: nobody, or -errno. */
int farhome_who_has(int pid, const struct shared_object *objects, size_t count, int without_descriptors, int only_shared,
                    struct holder *found)
{
	struct search search = {.objects = objects,
	                        .count = count,
	                        .only_shared = only_shared,
	                        .found = found,
	                        .lines = calloc(count + 1, sizeof *search.lines)};
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int result = processes && search.lines ? 0 : -ENOMEM;

	for (size_t i = 0; !result && i < count; i++)
		snprintf(search.lines[i], sizeof *search.lines, " %02x:%02x %llu ", major(objects[i].device), minor(objects[i].device),
		         (unsigned long long)objects[i].inode);
	while (!result && (entry = readdir(processes))) {
		char *end;
		long other = strtol(entry->d_name, &end, 10);
		if (*end || other <= 0)
			continue;
		if (other != pid)
			result = maps_any(&search, other);
		if (!result && !without_descriptors)
			result = opens_any(&search, other);
	}
	if (processes)
		closedir(processes);
	free(search.lines);
	free(search.text);
	return result;
}
