// file_ops CASE ...: does one thing to files over and over and prints how fast it was, for bench mfs. In C, so that the caller costs nothing.
//
//   prepare DIRECTORY COUNT SIZE   makes COUNT files of SIZE bytes (not timed)
//   stat | open | create | unlink DIRECTORY COUNT    each of the files once: calls (open: and close) a second
//   list DIRECTORY                 the names and the status of each, as ls -l: listings a second, of one
//   write FILE MEGABYTES           writes it anew, in pieces of 1 MiB, and has it on the disk (fsync): MiB a second
//   read FILE                      open, and nothing of it cached here: MiB a second
//   again FILE SECONDS             reads it whole over and over, having read it: MiB a second
//   restat FILE SECONDS            stat over and over: calls a second
//   random FILE COUNT              4 KiB at random places, nothing of it cached here: reads a second
//   run PROGRAM ARGUMENT...        its output to /dev/null: seconds
//
// What is timed is done from the directory that DIRECTORY or FILE lies in, as programs do that work there: how far away from the root that is
// does not count.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE (1 << 20)
#define PAGE 4096

// At the beginning of a page, as in cp and dd.
static char piece[PIECE] __attribute__((aligned(PAGE)));

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	fprintf(stderr, "file_ops: %s: %s\n", what, strerror(errno));
	exit(1);
}

// To where it lies; its name there.
static const char *go_to(char *path)
{
	char *slash = strrchr(path, '/');
	if (!slash)
		return path;
	*slash = 0;
	if (chdir(slash == path ? "/" : path))
		fail(path);
	return slash + 1;
}

static int opened(const char *name, int flags)
{
	int file = open(name, flags, 0644);
	if (file < 0)
		fail(name);
	return file;
}

static void prepare(const char *directory, long count, size_t size)
{
	char name[PAGE];
	if (mkdir(directory, 0755) && errno != EEXIST)
		fail(directory);
	for (long i = 0; i < count; i++) {
		snprintf(name, sizeof name, "%s/%06ld", directory, i);
		int file = opened(name, O_WRONLY | O_CREAT | O_TRUNC);
		if (write(file, piece, size) != (ssize_t)size)
			fail(name);
		close(file);
	}
}

static void do_once(char what, const char *name)
{
	struct stat status;
	if (what == 's' && stat(name, &status))
		fail(name);
	if (what == 'u' && unlink(name))
		fail(name);
	if (what == 'o' || what == 'c')
		close(opened(name, what == 'o' ? O_RDONLY : O_WRONLY | O_CREAT | O_EXCL));
}

// Calls a second.
static double each(char what, const char *directory, long count)
{
	char name[PAGE];
	double begun = now();
	for (long i = 0; i < count; i++) {
		snprintf(name, sizeof name, "%s/%06ld", directory, i);
		do_once(what, name);
	}
	return (double)count / (now() - begun);
}

static double list(const char *directory)
{
	double begun = now();
	DIR *stream = opendir(directory);
	struct stat status;
	if (!stream)
		fail(directory);
	for (struct dirent *entry; (entry = readdir(stream));)
		if (fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW))
			fail(entry->d_name);
	closedir(stream);
	return 1 / (now() - begun);
}

static double written(const char *name, long megabytes)
{
	double begun = now();
	int file = opened(name, O_WRONLY | O_CREAT | O_TRUNC);
	for (long i = 0; i < megabytes; i++)
		for (ssize_t done = 0, more; done < PIECE; done += more)
			if ((more = write(file, piece + done, (size_t)(PIECE - done))) <= 0)
				fail(name);
	if (fsync(file) || close(file))
		fail(name);
	return (double)megabytes / (now() - begun);
}

static void forget(int file, int advice)
{
	if (posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(file, 0, 0, advice))
		fail("fadvise");
}

// Bytes.
static double read_whole(int file, const char *name)
{
	double bytes = 0;
	ssize_t more;
	while ((more = read(file, piece, PIECE)) > 0)
		bytes += (double)more;
	if (more < 0)
		fail(name);
	return bytes;
}

static double read_once(const char *name)
{
	int file = opened(name, O_RDONLY);
	forget(file, POSIX_FADV_NORMAL);
	double begun = now();
	double bytes = read_whole(file, name);
	close(file);
	return bytes / PIECE / (now() - begun);
}

static double read_again(const char *name, double seconds)
{
	double bytes = 0, begun;
	int file = opened(name, O_RDONLY);
	read_whole(file, name);
	begun = now();
	do {
		lseek(file, 0, SEEK_SET);
		bytes += read_whole(file, name);
	} while (now() - begun < seconds);
	close(file);
	return bytes / PIECE / (now() - begun);
}

static double stat_again(const char *name, double seconds)
{
	struct stat status;
	long calls = 0;
	double begun = now();
	do {
		for (int i = 0; i < 100; i++)
			if (stat(name, &status))
				fail(name);
		calls += 100;
	} while (now() - begun < seconds);
	return (double)calls / (now() - begun);
}

static double read_at_random(const char *name, long count)
{
	struct stat status;
	unsigned long place = 12345;
	int file = opened(name, O_RDONLY);
	if (fstat(file, &status) || status.st_size < PAGE)
		fail(name);
	forget(file, POSIX_FADV_RANDOM);
	double begun = now();
	for (long i = 0; i < count; i++) {
		place = place * 6364136223846793005UL + 1442695040888963407UL;
		if (pread(file, piece, PAGE, (off_t)(place >> 16) % (status.st_size / PAGE) * PAGE) != PAGE)
			fail(name);
	}
	return (double)count / (now() - begun);
}

static double run(char **argv)
{
	int status;
	double begun = now();
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		dup2(opened("/dev/null", O_WRONLY), STDOUT_FILENO);
		execvp(argv[0], argv);
		fail(argv[0]);
	}
	if (waitpid(child, &status, 0) != child || status) {
		fprintf(stderr, "file_ops: %s ended with status %d\n", argv[0], status);
		exit(1);
	}
	return now() - begun;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	double value = -1;
	memset(piece, 'x', sizeof piece);
	if (!strcmp(what, "run"))
		value = run(argv + 2);
	else if (!strcmp(what, "prepare") && argc == 5)
		prepare(argv[2], atol(argv[3]), (size_t)atol(argv[4])), value = 0;
	else if ((!strcmp(what, "stat") || !strcmp(what, "open") || !strcmp(what, "create") || !strcmp(what, "unlink")) && argc == 4)
		value = each(what[0], go_to(argv[2]), atol(argv[3]));
	else if (!strcmp(what, "list"))
		value = list(go_to(argv[2]));
	else if (!strcmp(what, "write") && argc == 4)
		value = written(argv[2], atol(argv[3]));
	else if (!strcmp(what, "read"))
		value = read_once(argv[2]);
	else if (!strcmp(what, "again") && argc == 4)
		value = read_again(argv[2], atof(argv[3]));
	else if (!strcmp(what, "restat") && argc == 4)
		value = stat_again(go_to(argv[2]), atof(argv[3]));
	else if (!strcmp(what, "random") && argc == 4)
		value = read_at_random(argv[2], atol(argv[3]));
	if (value < 0) {
		fprintf(stderr, "usage: file_ops CASE ..., see the beginning of file_ops.c\n");
		return 64;
	}
	printf("%.9g\n", value);
	return 0;
}
