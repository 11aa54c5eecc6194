/* Scenarios about files, directories and what a process keeps of them: see objects.h. */
#include "objects.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/xattr.h>

static int created(const char *name, const char *content)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content) || lseek(fd, 0, SEEK_SET))
		exit(71);
	return fd;
}

SCENARIO(file_offset)
{
	int fd = CALL(open("offset", O_RDWR | O_CREAT | O_EXCL, 0600));
	WRITE(fd, "0123456789");
	CALL(lseek(fd, 2, SEEK_SET));
	READ(fd, 3);
	int copy = CALL(dup(fd)), other = CALL(open("offset", O_RDONLY));
	READ(copy, 2);
	CALL(lseek(fd, 0, SEEK_CUR));
	READ(other, 2);
	int status = 0;
	pid_t child = fork(); /* no step before it has ended: it moves what is ours, too */
	if (child == 0)
		_exit((int)lseek(fd, -1, SEEK_END));
	CALL(waitpid(child, &status, 0) == child);
	show("  %d", WEXITSTATUS(status));
	READ(fd, 4);
	CALL(lseek(fd, -1, SEEK_SET));
}

SCENARIO(append)
{
	int fd = CALL(open("append", O_WRONLY | O_CREAT | O_APPEND, 0600)), other = CALL(open("append", O_RDWR));
	WRITE(fd, "first ");
	CALL(lseek(fd, 0, SEEK_SET));
	WRITE(other, "FIRST, and longer ");
	WRITE(fd, "last");
	CALL(lseek(fd, 0, SEEK_CUR));
	CALL(fcntl(fd, F_SETFL, 0));
	CALL(lseek(fd, 1, SEEK_SET));
	WRITE(fd, "-");
	CALL(lseek(other, 0, SEEK_SET));
	READ(other, 64);
}

SCENARIO(pread_pwrite)
{
	char text[16] = "";
	int fd = CALL(open("pread", O_RDWR | O_CREAT, 0600));
	CALL(pwrite(fd, "pwrite", 6, 4));
	CALL(pwritev2(fd, (&(struct iovec){"end", 3}), 1, 0, RWF_APPEND));
	CALL(pread(fd, text, 15, 2));
	show("  %s", text + 2);
	CALL(preadv(fd, ((struct iovec[]){{text, 2}, {text + 8, 4}}), 2, 5));
	show("  %s", text);
	CALL(lseek(fd, 0, SEEK_CUR));
	CALL(pread(fd, text, 4, 99));
	CALL(pread(fd, text, 4, -1));
}

SCENARIO(readv_writev)
{
	char first[4] = "", second[8] = "";
	int fd = CALL(open("vectors", O_RDWR | O_CREAT, 0600));
	CALL(writev(fd, ((struct iovec[]){{"one", 3}, {"", 0}, {"twothree", 8}}), 3));
	CALL(lseek(fd, 0, SEEK_SET));
	CALL(readv(fd, ((struct iovec[]){{first, 3}, {second, 7}}), 2));
	show("  %s %s", first, second);
	CALL(readv(fd, ((struct iovec[]){{first, 3}, {second, 7}}), 2));
	show("  %s %s", first, second);
	CALL(syscall(SYS_writev, fd, NULL, 2));
}

SCENARIO(duplicates)
{
	int fd = created("dup", "0123456789");
	int copy = CALL(fcntl(fd, F_DUPFD_CLOEXEC, 20));
	CALL(dup2(fd, 30));
	CALL(dup3(fd, 31, O_CLOEXEC));
	CALL(dup3(fd, fd, O_CLOEXEC));
	show("  %d %d %d", fcntl(copy, F_GETFD), fcntl(30, F_GETFD), fcntl(31, F_GETFD));
	READ(30, 3);
	READ(31, 3);
	CALL(close(fd));
	CALL(close_range(30, 31, 0));
	READ(30, 3);
	READ(copy, 9);
	CALL(dup(-1));
}

SCENARIO(descriptor_flags)
{
	int fd = created("flags", "");
	CALL(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK | O_NOATIME));
	IS(CALL(fcntl(fd, F_GETFL)) & O_NONBLOCK);
	CALL(fcntl(fd, F_SETFD, 0));
	CALL(fcntl(fd, F_GETFD));
	CALL(fcntl(fd, F_SETOWN, getpid()));
	IS(DONE(fcntl(fd, F_GETOWN)) == getpid());
	CALL(fcntl(fd, F_SETSIG, SIGUSR1));
	CALL(fcntl(fd, F_GETSIG));
	CALL(ioctl(fd, FIONBIO, &(int){0}));
	IS(CALL(fcntl(fd, F_GETFL)) & O_NONBLOCK);
}

SCENARIO(flock)
{
	int fd = created("locked", ""), other = CALL(open("locked", O_RDWR));
	CALL(flock(fd, LOCK_SH));
	CALL(flock(other, LOCK_SH | LOCK_NB));
	CALL(flock(fd, LOCK_EX | LOCK_NB));
	CALL(close(other));
	CALL(flock(fd, LOCK_EX | LOCK_NB));
	other = CALL(open("locked", O_RDWR));
	CALL(flock(other, LOCK_SH | LOCK_NB));
	CALL(close(fd));
	CALL(flock(other, LOCK_EX | LOCK_NB));
}

static int locker(int fd, int whence)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = (short)whence, .l_start = 5, .l_len = 1};
	return fcntl(fd, F_GETLK, &lock) ? 9 : lock.l_type == F_UNLCK ? 0 : lock.l_pid == getppid() ? 1 : 2;
}

SCENARIO(posix_lock)
{
	int fd = created("posix", "0123456789");
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4, .l_len = 3};
	CALL(fcntl(fd, F_SETLK, &lock));
	reaped(CHILD(locker(fd, SEEK_SET)));
	lock = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1};
	CALL(fcntl(fd, F_SETLKW, &lock));
	reaped(CHILD(locker(fd, SEEK_SET)));
	lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5};
	CALL(fcntl(fd, F_SETLK, &lock));
	int other = CALL(open("posix", O_RDONLY));
	CALL(close(other)); /* lets all of them go: what POSIX asks for */
	reaped(CHILD(locker(fd, SEEK_SET)));
}

SCENARIO(ofd_lock)
{
	int fd = created("ofd", "0123456789"), other = CALL(open("ofd", O_RDWR));
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 5}, asked = {.l_type = F_RDLCK};
	CALL(fcntl(fd, F_OFD_SETLK, &lock));
	CALL(fcntl(other, F_OFD_GETLK, &asked));
	show("  type %d, %d bytes from %d, pid %d", asked.l_type, (int)asked.l_len, (int)asked.l_start, asked.l_pid);
	lock.l_start = 3;
	CALL(fcntl(other, F_OFD_SETLK, &lock));
	lock.l_type = F_UNLCK;
	CALL(fcntl(fd, F_OFD_SETLK, &lock));
	lock.l_type = F_WRLCK;
	CALL(fcntl(other, F_OFD_SETLK, &lock));
	CALL(close(fd));
	CALL(fcntl(other, F_OFD_SETLKW, (&(struct flock){.l_type = F_WRLCK})));
}

static volatile sig_atomic_t leases_asked_back;

static void lease_asked_back(int number)
{
	leases_asked_back += number == SIGIO;
}

SCENARIO(lease)
{
	int fd = created("lease", "leased");
	sigaction(SIGIO, &(struct sigaction){.sa_handler = lease_asked_back}, NULL);
	close(fd);
	fd = CALL(open("lease", O_RDONLY));
	CALL(fcntl(fd, F_SETLEASE, F_RDLCK));
	CALL(fcntl(fd, F_GETLEASE));
	CALL(open("lease", O_WRONLY | O_NONBLOCK));
	show("  asked back %d times", (int)leases_asked_back);
	CALL(fcntl(fd, F_GETLEASE));
	CALL(fcntl(fd, F_SETLEASE, F_UNLCK));
	CALL(open("lease", O_WRONLY | O_NONBLOCK));
}

SCENARIO(memory_file)
{
	int fd = CALL(memfd_create("memory", MFD_ALLOW_SEALING | MFD_CLOEXEC));
	WRITE(fd, "in memory");
	CALL(ftruncate(fd, 1 << 20));
	CALL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE));
	CALL(fcntl(fd, F_GET_SEALS));
	WRITE(fd, "sealed");
	CALL(ftruncate(fd, 1));
	CALL(lseek(fd, 0, SEEK_SET));
	READ(fd, 9);
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int again = CALL(open(path, O_RDONLY));
	READ(again, 2);
}

/* Reads the directory in small pieces; the names go behind one another. */
static int entries(int fd, char names[][16])
{
	int count = 0;
	char part[96];
	for (long size; (size = DONE(syscall(SYS_getdents64, fd, part, sizeof part))) > 0;)
		for (long at = 0; at < size; count++) {
			unsigned short length;
			strcpy(names[count], part + at + offsetof(struct dirent64, d_name));
			memcpy(&length, part + at + offsetof(struct dirent64, d_reclen), sizeof length);
			at += length;
		}
	return count;
}

SCENARIO(directory)
{
	char first[16][16] = {{0}}, second[16][16] = {{0}};
	CALL(mkdir("directory", 0755));
	for (int i = 0; i < 5; i++) {
		char name[32];
		snprintf(name, sizeof name, "directory/entry-%d", i);
		close(created(name, ""));
	}
	int fd = CALL(open("directory", O_RDONLY | O_DIRECTORY));
	show("  %d entries", entries(fd, first));
	CALL(lseek(fd, 0, SEEK_SET));
	show("  %d entries", entries(fd, second));
	IS(!memcmp(first, second, sizeof first));
}

SCENARIO(working_directory)
{
	char where[256];
	int before = CALL(open(".", O_RDONLY | O_DIRECTORY));
	CALL(mkdir("deep", 0755));
	CALL(chdir("deep"));
	CALL(mkdir("deeper", 0755));
	CALL(chdir("deeper"));
	IS(DONE(getcwd(where, sizeof where)) && !strcmp(where + strlen(where) - 12, "/deep/deeper"));
	close(created("../seen", ""));
	CALL(rmdir("../deeper"));
	DONE(getcwd(where, sizeof where));
	CALL(open("new", O_CREAT | O_RDWR, 0600));
	CALL(fchdir(before));
	CALL(access("deep/seen", F_OK));
	DONE(getcwd(where, 3));
}

SCENARIO(umask)
{
	struct stat status;
	CALL(umask(027));
	int fd = CALL(open("masked", O_CREAT | O_WRONLY, 0666));
	CALL(fstat(fd, &status));
	show("  %o", status.st_mode);
	CALL(mkdir("masked-directory", 0777));
	CALL(stat("masked-directory", &status));
	show("  %o", status.st_mode);
	CALL(umask(0));
	CALL(umask(022));
}

SCENARIO(limit_of_descriptors)
{
	struct rlimit limit;
	CALL(getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = 5;
	CALL(setrlimit(RLIMIT_NOFILE, &limit));
	CALL(open("/dev/null", O_RDONLY));
	CALL(open("/dev/null", O_RDONLY));
	CALL(open("/dev/null", O_RDONLY));
	CALL(dup2(0, 5));
	limit.rlim_cur = 6;
	CALL(prlimit(0, RLIMIT_NOFILE, &limit, NULL));
	CALL(open("/dev/null", O_RDONLY));
	CALL(prlimit(0, RLIMIT_NOFILE, NULL, &limit));
	show("  %d", (int)limit.rlim_cur);
}

SCENARIO(limit_of_file_size)
{
	int fd = CALL(open("short", O_CREAT | O_WRONLY, 0600));
	CALL(setrlimit(RLIMIT_FSIZE, (&(struct rlimit){8192, RLIM_INFINITY})));
	signal(SIGXFSZ, SIG_IGN);
	CALL(lseek(fd, 8190, SEEK_SET));
	WRITE(fd, "0123456789");
	WRITE(fd, "0123456789");
	CALL(ftruncate(fd, 8193));
	reaped(CHILD((signal(SIGXFSZ, SIG_DFL), write(fd, "x", 1))));
}

SCENARIO(extended_attributes)
{
	char text[64] = "";
	int fd = created("attributes", "");
	CALL(setxattr("attributes", "user.one", "first", 5, XATTR_CREATE));
	CALL(fsetxattr(fd, "user.two", "second", 6, 0));
	CALL(setxattr("attributes", "user.one", "again", 5, XATTR_CREATE));
	CALL(getxattr("attributes", "user.two", text, sizeof text));
	show("  %s", text);
	CALL(flistxattr(fd, NULL, 0));
	CALL(removexattr("attributes", "user.one"));
	CALL(fgetxattr(fd, "user.one", text, sizeof text));
	CALL(listxattr("attributes", text, sizeof text));
	IS(strstr(text, "user.two") || strstr(text, "security"));
}

SCENARIO(copy_file_range)
{
	int from = created("range-from", "0123456789"), to = created("range-to", "ABCDEFGHIJ");
	loff_t in = 2, out = 5;
	CALL(copy_file_range(from, &in, to, &out, 4, 0));
	show("  %d %d", (int)in, (int)out);
	READ(to, 16);
	CALL(lseek(from, 7, SEEK_SET));
	CALL(copy_file_range(from, NULL, to, NULL, 9, 0));
	CALL(lseek(from, 0, SEEK_CUR));
	CALL(lseek(to, 9, SEEK_SET));
	READ(to, 9);
}

SCENARIO(size_and_holes)
{
	struct stat status;
	int fd = created("holes", "data");
	CALL(ftruncate(fd, 1 << 16));
	CALL(pwrite(fd, "more", 4, 1 << 15));
	CALL(lseek(fd, 0, SEEK_HOLE));
	CALL(lseek(fd, 8192, SEEK_DATA));
	CALL(fallocate(fd, FALLOC_FL_KEEP_SIZE, 1 << 16, 4096));
	CALL(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 15, 4096));
	CALL(fstat(fd, &status));
	show("  %d bytes", (int)status.st_size);
	CALL(lseek(fd, 8192, SEEK_DATA));
	CALL(truncate("holes", 2));
	READ(fd, 9);
}

SCENARIO(names_of_an_open_file)
{
	struct stat status;
	int fd = created("name", "content");
	CALL(link("name", "second"));
	CALL(rename("name", "first"));
	CALL(symlink("first", "symbolic"));
	CALL(unlink("second"));
	CALL(open("symbolic", O_RDONLY | O_NOFOLLOW));
	CALL(renameat2(AT_FDCWD, "first", AT_FDCWD, "symbolic", RENAME_EXCHANGE));
	CALL(unlink("symbolic"));
	CALL(fstat(fd, &status));
	show("  %d names", (int)status.st_nlink);
	READ(fd, 16);
	CALL(access("first", F_OK));
}

SCENARIO(nameless_file)
{
	char path[32];
	int fd = CALL(open(".", O_TMPFILE | O_RDWR, 0640));
	WRITE(fd, "nameless");
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	CALL(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
	int named = CALL(open("named", O_RDONLY));
	READ(named, 16);
	WRITE(fd, " no more");
	READ(named, 16);
}

SCENARIO(openat2_and_path)
{
	char path[32], target[64] = "";
	struct stat status;
	CALL(mkdir("beneath", 0755));
	close(created("beneath/file", "found"));
	int directory = CALL(open("beneath", O_PATH | O_DIRECTORY));
	struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
	READ(CALL(syscall(SYS_openat2, directory, "file", &how, sizeof how)), 8);
	CALL(syscall(SYS_openat2, directory, "../beneath/file", &how, sizeof how));
	int held = CALL(openat(directory, "file", O_PATH));
	READ(held, 4);
	CALL(fstatat(held, "", &status, AT_EMPTY_PATH));
	snprintf(path, sizeof path, "/proc/self/fd/%d", held);
	CALL(chmod(path, 0400));
	DONE(readlink(path, target, sizeof target - 1));
	IS(!strcmp(target + strlen(target) - 13, "/beneath/file"));
}

SCENARIO(times_and_owner)
{
	struct stat status;
	int fd = created("times", "");
	CALL(futimens(fd, (struct timespec[]){{1000000, 500}, {2000000, 0}}));
	CALL(fchmod(fd, 04711));
	CALL(fchown(fd, getuid(), getgid()));
	CALL(fstat(fd, &status));
	show("  %o, accessed %ld, changed %ld", status.st_mode, status.st_atim.tv_sec, status.st_mtim.tv_sec);
	CALL(utimensat(AT_FDCWD, "times", (struct timespec[]){{0, UTIME_OMIT}, {7, 0}}, 0));
	CALL(stat("times", &status));
	show("  accessed %ld, changed %ld", status.st_atim.tv_sec, status.st_mtim.tv_sec);
}

SCENARIO(seen_in_proc)
{
	char text[256] = "", own[32];
	int fd = created("proc", "0123456789"), comm = CALL(open("/proc/self/comm", O_RDONLY));
	READ(comm, 5);
	CALL(lseek(fd, 7, SEEK_SET));
	snprintf(own, sizeof own, "/proc/%d/fdinfo/%d", (int)getpid(), fd);
	int info = CALL(open(own, O_RDONLY));
	READ(info, 6);
	DONE(readlink("/proc/self", text, sizeof text));
	IS(atoi(text) == getpid());
	memset(text, 0, sizeof text);
	DONE(readlink("/proc/self/exe", text, sizeof text - 1));
	IS(!strcmp(text + strlen(text) - 14, "/objects_files"));
	int arguments = CALL(open("/proc/self/cmdline", O_RDONLY));
	DONE(read(arguments, text, sizeof text - 1));
	show("  %s", text + strlen(text) + 1);
}
