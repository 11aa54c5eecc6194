/* mosrun-private DIRECTORY... -- DESCRIPTOR PROGRAM ARGUMENT...: becomes PROGRAM with these arguments, and what it reads from DESCRIPTOR as its
 * environment, where each DIRECTORY is an empty one of its own and of its children's: mosrun -X starts itself anew by it.
 *
 * It has CAP_SYS_ADMIN by its file, for every caller, for a mount namespace of its own and a tmpfs in it for each directory; before it
 * becomes the program it has given that up. Nobody gains rights by it: the one thing that changes is what is seen below the directories,
 * and of those the caller could choose the content anyway (see may_hide), and nothing on them has setuid bits or is a device. All that is on
 * them goes with the last process of the namespace, however it ends.
 *
 * The kernel has the loader take variables out of the environment of anyone who has capabilities by a file: so they come in one.
 * Exit status: the program's; 64, 77 or 126 with a line on stderr, and nothing left. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SOURCE "farhome-private" /* engine/leaving/private.py knows a process's mounts by it */
#define SIZE "25%%" /* of the machine's memory; for snprintf() */

enum { MOST = 10, USAGE = 64, NOT_PERMITTED = 77, NOT_EXECUTABLE = 126 };

static _Noreturn void fail(int status, const char *format, ...)
{
	char line[2 * PATH_MAX + 256] = "mosrun: ";
	va_list values;
	va_start(values, format);
	vsnprintf(line + 8, sizeof line - 9, format, values);
	va_end(values);
	strcat(line, "\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(status);
	_exit(status);
}

/* Whether a directory lies in another, or is it. */
static int is_within(const char *path, const char *directory)
{
	size_t length = strlen(directory);
	return !strncmp(path, directory, length) && (path[length] == '/' || !path[length]);
}

/* Whether a file system describes the kernel, and holds no files: root's programs believe what they read there. */
static int is_kernels(int directory)
{
	static const unsigned long kinds[] = {
		PROC_SUPER_MAGIC,         SYSFS_MAGIC,        DEBUGFS_MAGIC,           TRACEFS_MAGIC,
		SECURITYFS_MAGIC,         CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,     BPF_FS_MAGIC,
		DEVPTS_SUPER_MAGIC,       SELINUX_MAGIC,      0x19800202 /* mqueue */, 0x62656570 /* configfs */,
		0x65735543 /* fusectl */, NSFS_MAGIC};
	struct statfs found;
	if (fstatfs(directory, &found))
		return 1;
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if ((unsigned long)found.f_type == kinds[i])
			return 1;
	return 0;
}

/* A program that has rights of its own (setuid) trusts what root has put into a directory, and would believe what stands there instead. So
 * a user may hide directories of his own, and those where everybody may put what he likes (/tmp), which stay root's and sticky. */
static int may_hide(const struct stat *directory)
{
	int is_everybodys = !directory->st_uid && (directory->st_mode & S_ISVTX) && (directory->st_mode & S_IWOTH);
	return !geteuid() || directory->st_uid == geteuid() || is_everybodys;
}

/* Our own from now on; the caller's rights find it. Its whole path is put to `path`. */
static int take(const char *name, char path[PATH_MAX])
{
	struct stat status;
	char link[32];
	int directory = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*name != '/' || directory < 0 || fstat(directory, &status))
		fail(USAGE, "-X needs a directory that is there, by its whole path, not %s", name);
	snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
	ssize_t length = readlink(link, path, PATH_MAX - 1);
	path[length > 0 ? length : 0] = 0;
	if (length <= 1)
		fail(USAGE, "-X needs a directory below /, not %s", name);
	if (is_kernels(directory))
		fail(NOT_PERMITTED, "-X %s: it is a directory of the kernel's own", name);
	if (is_within("/run/farhome", path))
		fail(NOT_PERMITTED, "-X %s: it holds what farhome itself needs", name);
	if (!may_hide(&status))
		fail(NOT_PERMITTED, "-X %s: it is not your directory, nor one like /tmp that is everybody's", name);
	return directory;
}

static void cover(int directory, const char *name)
{
	char link[32], options[128];
	struct stat status;
	snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
	if (fstat(directory, &status))
		fail(NOT_PERMITTED, "-X %s: %s", name, strerror(errno));
	snprintf(options, sizeof options, "size=" SIZE ",mode=%o,uid=%u,gid=%u", status.st_mode & 07777, status.st_uid, status.st_gid);
	if (mount(SOURCE, link, "tmpfs", MS_NOSUID | MS_NODEV, options))
		fail(NOT_PERMITTED, "-X %s: %s", name, strerror(errno));
	close(directory);
}

static void give_up_rights(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[2];
	if (syscall(SYS_capget, &header, sets))
		fail(NOT_PERMITTED, "capget: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
		sets[i].effective = sets[i].permitted = 0;
	if (syscall(SYS_capset, &header, sets))
		fail(NOT_PERMITTED, "capset: %s", strerror(errno));
}

/* The variables in that file, one after the other, each with its end. */
static char **read_environment(int file)
{
	struct stat status;
	size_t have = 0, count = 0;
	if (fstat(file, &status) || !S_ISREG(status.st_mode) || lseek(file, 0, SEEK_SET))
		fail(USAGE, "this program is a part of mosrun -X");
	/* One piece of memory: the addresses, and the text behind them. */
	char **variables = malloc((status.st_size + 1) * (sizeof *variables + 1));
	if (!variables)
		fail(NOT_PERMITTED, "%s", strerror(errno));
	char *text = (char *)(variables + status.st_size + 1);
	for (ssize_t size; have < (size_t)status.st_size && (size = read(file, text + have, status.st_size - have)) > 0;)
		have += size;
	close(file);
	text[have] = 0;
	for (size_t at = 0; at < have; at += strlen(text + at) + 1)
		variables[count++] = text + at;
	variables[count] = NULL;
	return variables;
}

int main(int argc, char **argv)
{
	static char paths[MOST][PATH_MAX], here[PATH_MAX];
	int directories[MOST], count = 0;
	while (1 + count < argc && strcmp(argv[1 + count], "--"))
		count++;
	char **program = argv + count + 3;
	if (count < 1 || count > MOST || argc < count + 4)
		fail(USAGE, "this program is a part of mosrun -X");
	char **variables = read_environment(atoi(argv[count + 2]));
	if (geteuid() != getuid())
		fail(NOT_PERMITTED, "-X: not with mixed user ids");
	if (!getcwd(here, sizeof here))
		*here = 0;
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		fail(NOT_PERMITTED, "-X needs the capability that tools/setup and tools/install give to %s: %s", argv[0], strerror(errno));
	for (int i = 0; i < count; i++)
		directories[i] = take(argv[1 + i], paths[i]);
	for (int i = 0; i < count; i++)
		for (int j = 0; j < count; j++)
			if (i != j && is_within(paths[i], paths[j]))
				fail(USAGE, "-X %s lies in another one, %s", argv[1 + i], argv[1 + j]);
	for (int i = 0; i < count; i++)
		cover(directories[i], argv[1 + i]);
	give_up_rights();
	for (int i = 0; i < count; i++)
		if (is_within(here, paths[i]) && chdir(here))
			fail(USAGE, "-X %s hides the working directory, %s", argv[1 + i], here);
	execve(*program, program, variables);
	fail(NOT_EXECUTABLE, "%s: %s", *program, strerror(errno));
}
