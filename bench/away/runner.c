/* Does what its standard input says, a line at a time, and answers with the nanoseconds of each time that it was done, in one line.
 *   thread COUNT, fork COUNT, vfork COUNT, spawn COUNT    a child of that kind, until it has ended
 *   read COUNT DIRECTORY      open, fstat, read and close of each file 0, 1, ... of it
 *   stat COUNT DIRECTORY      of each name 0, 1, ... of it, whether it exists or not
 *   log COUNT FILE            100 bytes at its end
 *   run 1 PROGRAM ARGUMENT... words parted by tabs, from PROGRAM on: its exit status must be 0; it writes to the file `output`
 *   nothing 1
 * Exit status: 1, what could not be done is named on stderr. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE 4096
#define COUNT_MOST 2000
#define WORDS_MOST 32

extern char **environ;

static char rest[LINE]; /* of the line, after the count */
static int log_file = -1;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *nothing(void *argument)
{
	return argument;
}

static void thread(int number)
{
	pthread_t made;
	(void)number;
	if (pthread_create(&made, NULL, nothing, NULL) || pthread_join(made, NULL))
		fail("thread");
}

static void await(pid_t child)
{
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("child");
}

static void forked(int number)
{
	(void)number;
	pid_t child = fork();
	if (!child)
		_exit(0);
	await(child);
}

static void vforked(int number)
{
	(void)number;
	pid_t child = vfork();
	if (!child)
		_exit(0);
	await(child);
}

static void spawn(char **words, const posix_spawn_file_actions_t *actions)
{
	pid_t child;
	if (posix_spawnp(&child, words[0], actions, NULL, words, environ))
		fail(words[0]);
	await(child);
}

static void spawned(int number)
{
	char *words[] = {"/bin/true", NULL};
	(void)number;
	spawn(words, NULL);
}

static void read_one(int number)
{
	char path[LINE + 32], bytes[4096];
	struct stat status;
	snprintf(path, sizeof path, "%s/%d", rest, number);
	int file = open(path, O_RDONLY);
	if (file < 0 || fstat(file, &status) || read(file, bytes, sizeof bytes) != status.st_size || close(file))
		fail(path);
}

static void stat_one(int number)
{
	char path[LINE + 32];
	struct stat status;
	snprintf(path, sizeof path, "%s/%d", rest, number);
	stat(path, &status);
}

static void log_one(int number)
{
	char line[101];
	(void)number;
	if (log_file < 0 && (log_file = open(rest, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) < 0)
		fail(rest);
	snprintf(line, sizeof line, "%99d\n", number);
	if (write(log_file, line, 100) != 100)
		fail("write");
}

static void run(int number)
{
	char *words[WORDS_MOST + 1] = {0};
	unsigned count = 0;
	(void)number;
	for (char *word = strtok(rest, "\t"); word && count < WORDS_MOST; word = strtok(NULL, "\t"))
		words[count++] = word;
	posix_spawn_file_actions_t actions;
	if (posix_spawn_file_actions_init(&actions) ||
	    posix_spawn_file_actions_addopen(&actions, 1, "output", O_WRONLY | O_CREAT | O_TRUNC, 0600))
		fail("output");
	spawn(words, &actions);
	posix_spawn_file_actions_destroy(&actions);
}

static void idle(int number)
{
	(void)number;
}

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A line of standard input, without its end; by one call, as the other side writes no two lines at once. */
static int next_line(char line[LINE])
{
	ssize_t length = read(0, line, LINE - 1);
	if (length <= 0 || line[length - 1] != '\n')
		return 0;
	line[length - 1] = 0;
	return 1;
}

int main(void)
{
	static const struct {
		const char *name;
		void (*once)(int number);
	} kinds[] = {{"thread", thread}, {"fork", forked}, {"vfork", vforked}, {"spawn", spawned}, {"read", read_one},
	             {"stat", stat_one}, {"log", log_one}, {"run", run},       {"nothing", idle}};
	static char line[LINE], name[16], answer[COUNT_MOST * 16];
	static long took[COUNT_MOST];
	while (next_line(line)) {
		int count, taken = 0;
		if (sscanf(line, "%15s %d %n", name, &count, &taken) < 2 || count > COUNT_MOST)
			return 1;
		strcpy(rest, line + taken);
		void (*once)(int number) = NULL;
		for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
			if (!strcmp(kinds[i].name, name))
				once = kinds[i].once;
		if (!once)
			return 1;
		for (int number = 0; number < count; number++) {
			long begun = now();
			once(number);
			took[number] = now() - begun;
		}
		size_t length = 0;
		for (int number = 0; number < count; number++)
			length += snprintf(answer + length, sizeof answer - length, "%ld%c", took[number], number + 1 < count ? ' ' : '\n');
		if (write(1, answer, length) != (ssize_t)length)
			return 1;
	}
	return 0;
}
