/* What no peer sees, whatever is exported: where the files of other nodes are, and farhome's own keys, state and configuration.
 *
 * A hidden directory is known by what it is and not by its name alone: by its device and inode, and by its place within its file system, so
 * that a bind mount of it, or of something in it, is hidden as well; and the keys are, under any further name that they may have. */
#define _GNU_SOURCE
#include "mfs/server/files/exports.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 24
#define LINE 9000

struct name { /* a name in a directory; the directory need not be on the way by which it was first found */
	dev_t device;
	ino_t inode;
	char name[NAME_MAX + 1];
};

struct place { /* within its file system, whatever that is mounted as */
	unsigned major, minor;
	char kind[32];
	char path[PATH_MAX];
};

static struct {
	char path[PATH_MAX];
	dev_t device;
	ino_t inode; /* 0: it was not there */
	struct place place;
} all[MOST];
static unsigned count;
static struct name names[2 * MOST]; /* as it was given, and as it is without links */
static unsigned names_count;
static int keys = -1;
static dev_t keys_device;

/* As the kernel writes it in its lists: \040 for a space. */
static void read_octal(char *text)
{
	char *to = text;

	for (char *from = text; *from; to++) {
		if (from[0] == '\\' && from[1] && from[2] && from[3]) {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = 0;
}

/* What that mount shows, and where; false: there is none of that number. */
static bool find_mount(uint64_t id, struct place *shown, char *point)
{
	char *line = malloc(LINE);
	FILE *list = line ? fopen("/proc/self/mountinfo", "re") : NULL;
	bool found = false;

	while (list && !found && fgets(line, LINE, list)) {
		unsigned long long number;
		const char *rest = strstr(line, " - ");
		found = rest &&
		        sscanf(line, "%llu %*u %u:%u %4095s %4095s", &number, &shown->major, &shown->minor, shown->path, point) == 5 &&
		        number == id && sscanf(rest, " - %31s", shown->kind) == 1;
	}
	if (list)
		fclose(list);
	free(line);
	if (found) {
		read_octal(shown->path);
		read_octal(point);
	}
	return found;
}

/* The mount that a descriptor is of, and whether it is the top of that mount; false: the kernel does not report it. */
static bool mount_of(int fd, uint64_t *id, bool *is_top)
{
	struct statx about;

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &about) || !(about.stx_mask & STATX_MNT_ID))
		return false;
	*id = about.stx_mnt_id;
	*is_top = about.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT ? about.stx_attributes & STATX_ATTR_MOUNT_ROOT : true;
	return true;
}

static bool is_below(const char *path, const char *above)
{
	size_t length = strlen(above);

	return !strcmp(above, "/") || (!strncmp(path, above, length) && (!path[length] || path[length] == '/'));
}

/* Where in its file system a descriptor's directory or file is, which has that path here. */
static bool place_in_file_system(int fd, const char *path, struct place *place)
{
	char point[PATH_MAX], above[PATH_MAX];
	uint64_t id;
	bool is_top;

	if (!mount_of(fd, &id, &is_top) || !find_mount(id, place, point) || !is_below(path, point))
		return false;
	const char *rest = path + (strcmp(point, "/") ? strlen(point) : 0);
	snprintf(above, sizeof above, "%s", strcmp(place->path, "/") ? place->path : "");
	if (strlen(above) + strlen(rest) >= sizeof place->path)
		return false;
	strcpy(place->path, above);
	strcat(place->path, rest);
	if (!place->path[0])
		strcpy(place->path, "/");
	return true;
}

static bool is_hidden_place(const struct place *place)
{
	if (!strcmp(place->kind, "fuse.mfs"))
		return true; /* another node's files, wherever they have been mounted once more */
	for (unsigned i = 0; i < count; i++)
		if (all[i].inode && all[i].place.path[0] && all[i].place.major == place->major && all[i].place.minor == place->minor &&
		    is_below(place->path, all[i].place.path))
			return true;
	return false;
}

static void add_name(const char *path)
{
	char parent[PATH_MAX], name[PATH_MAX];
	struct stat stat;

	snprintf(parent, sizeof parent, "%s", path);
	snprintf(name, sizeof name, "%s", path);
	if (fstatat(AT_FDCWD, dirname(parent), &stat, 0))
		return; /* whatever is made there will be hidden by its path */
	names[names_count].device = stat.st_dev;
	names[names_count].inode = stat.st_ino;
	snprintf(names[names_count++].name, sizeof names->name, "%.*s", NAME_MAX, basename(name));
}

int mfs_hide(const char *path)
{
	struct stat stat;

	if (count == MOST)
		return -E2BIG;
	if (!realpath(path, all[count].path))
		snprintf(all[count].path, sizeof all[count].path, "%s", path);
	add_name(path);
	if (strcmp(path, all[count].path))
		add_name(all[count].path);
	int fd = open(all[count].path, O_PATH | O_CLOEXEC);
	if (fd >= 0 && !fstat(fd, &stat)) {
		all[count].device = stat.st_dev;
		all[count].inode = stat.st_ino;
		place_in_file_system(fd, all[count].path, &all[count].place);
	}
	if (fd >= 0)
		close(fd);
	count++;
	return 0;
}

void mfs_hide_keys(const char *directory)
{
	struct stat stat;

	keys = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (keys >= 0 && !fstat(keys, &stat))
		keys_device = stat.st_dev;
}

/* Whether it is one of the keys, which has more names than one. They may have been made anew: so who they are is looked up. */
static bool is_key(const struct stat *stat)
{
	struct stat own;
	struct dirent *entry;
	bool found = false;

	if (keys < 0 || !S_ISREG(stat->st_mode) || stat->st_nlink < 2 || stat->st_dev != keys_device)
		return false;
	int again = openat(keys, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = again >= 0 ? fdopendir(again) : NULL;
	while (list && !found && (entry = readdir(list)))
		found = !fstatat(keys, entry->d_name, &own, AT_SYMLINK_NOFOLLOW) && own.st_ino == stat->st_ino &&
		        own.st_dev == stat->st_dev;
	if (list)
		closedir(list);
	else if (again >= 0)
		close(again);
	return found;
}

bool mfs_is_hidden(int parent, const char *name)
{
	struct stat stat = {0};

	for (unsigned i = 0; i < names_count; i++) {
		if (strcmp(name, names[i].name))
			continue;
		if (!stat.st_ino && fstatat(parent, "", &stat, AT_EMPTY_PATH))
			return false;
		if (stat.st_ino == names[i].inode && stat.st_dev == names[i].device)
			return true;
	}
	return false;
}

bool mfs_is_hidden_file(int fd, const struct stat *stat)
{
	char point[PATH_MAX];
	struct place shown;
	uint64_t id;
	bool is_top;

	for (unsigned i = 0; i < count; i++)
		if (all[i].inode == stat->st_ino && all[i].device == stat->st_dev && all[i].inode)
			return true;
	if (is_key(stat))
		return true;
	return count && mount_of(fd, &id, &is_top) && is_top && find_mount(id, &shown, point) && is_hidden_place(&shown);
}

bool mfs_is_hidden_path(const char *path)
{
	for (unsigned i = 0; i < count; i++)
		if (is_below(path, all[i].path))
			return true;
	return false;
}

bool mfs_is_within_hidden(int fd, const char *path)
{
	struct place place;
	struct stat stat;

	return mfs_is_hidden_path(path) || (!fstat(fd, &stat) && mfs_is_hidden_file(fd, &stat)) ||
	       (place_in_file_system(fd, path, &place) && is_hidden_place(&place));
}
