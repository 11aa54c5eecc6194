/* What the programs objects_*.c have in common: `objects_x NAME` runs one small scenario about one kernel object and reports on
 * standard output all that it finds of it; `objects_x --list` names the scenarios.
 *
 * After each system call of a scenario stands a step: the number of the process goes into the fifo `ask` of the directory
 * OBJECTS_CONTROL, and the process waits for a byte of the fifo `go`. The test at the other ends may move it meanwhile. Without
 * OBJECTS_CONTROL there are no steps. What a scenario says must not depend on time, addresses or pids.
 * Exit status: the scenario's own; 64 there is none of that name; 70 the other ends of the fifos are closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ASK 200 /* high numbers: the scenarios have the low ones for themselves */
#define GO 201

static int steps_wanted;
static struct scenario {
	const char *name;
	void (*run)(void);
	struct scenario *next;
} *scenarios;

/* Defines a scenario: SCENARIO(pipe) { ... } */
#define SCENARIO(title) \
	static void title##_scenario(void); \
	static __attribute__((constructor)) void title##_register(void) \
	{ \
		static struct scenario entry = {.name = #title, .run = title##_scenario}; \
		entry.next = scenarios, scenarios = &entry; \
	} \
	static void title##_scenario(void)

/* Writes a line. */
static inline __attribute__((format(printf, 1, 2))) void show(const char *format, ...)
{
	char line[1024];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(line, sizeof line - 1, format, arguments);
	va_end(arguments);
	if (length > (int)sizeof line - 2)
		length = sizeof line - 2;
	line[length++] = '\n';
	for (int done = 0; done < length;) {
		ssize_t wrote = write(1, line + done, (size_t)(length - done));
		if (wrote < 0 && errno != EINTR)
			_exit(70);
		done += wrote > 0 ? (int)wrote : 0;
	}
}

/* Waits until it may go on. Keeps errno. */
static inline void step(void)
{
	if (!steps_wanted)
		return;
	int before = errno;
	char text[16];
	ssize_t length = snprintf(text, sizeof text, "%d\n", (int)syscall(SYS_getpid)), done;
	while ((done = write(ASK, text, (size_t)length)) < 0 && errno == EINTR)
		;
	if (done != length)
		_exit(70);
	while ((done = read(GO, text, 1)) < 0 && errno == EINTR)
		;
	if (done != 1)
		_exit(70);
	errno = before;
}

/* Waits as step() does, then says what a call gave: its number, or (whether) whether it succeeded; the rest after that. */
static inline long called(const char *call, long value, int whether)
{
	int before = errno;
	step();
	if ((value == -1 || (whether && !value)) && before)
		show("%s: %s", call, strerror(before));
	else if (whether)
		show("%s: done", call);
	else
		show("%s: %ld", call, value);
	errno = before;
	return value;
}

#define CALL(call) \
	({ \
		errno = 0; \
		called(#call, (long)(call), 0); \
	})
/* The same for a call whose number is another one each time: a pid, an address. */
#define DONE(call) \
	({ \
		errno = 0; \
		called(#call, (long)(call), 1); \
	})
/* Says whether it is so. */
#define IS(condition) show("%s: %s", #condition, (condition) ? "yes" : "no")
/* Reads and says what. */
#define READ(fd, size) \
	({ \
		char read_[(size) + 1]; \
		memset(read_, 0, sizeof read_); \
		errno = 0; \
		long got_ = called("read(" #fd ", " #size ")", read(fd, read_, size), 0); \
		if (got_ > 0) \
			show("  \"%s\"", read_); \
		got_; \
	})
#define WRITE(fd, text) \
	({ \
		errno = 0; \
		called("write(" #fd ", " #text ")", write(fd, text, strlen(text)), 0); \
	})

/* A child that runs the statement and ends with what it is worth; CHILD(write(fd, "x", 1) == 1) */
#define CHILD(result) \
	({ \
		pid_t child_ = fork(); \
		if (child_ == 0) \
			_exit((int)(result)); \
		called("fork", child_, 1); \
		child_; \
	})
/* Waits for the child and says how it ended. */
static inline void reaped(pid_t child)
{
	int status = 0;
	IS(DONE(waitpid(child, &status, 0)) == child);
	if (WIFEXITED(status))
		show("  it ended with %d", WEXITSTATUS(status));
	else
		show("  it ended by signal %d%s", WTERMSIG(status), WCOREDUMP(status) ? " with core" : "");
}

static inline void open_control(void)
{
	const char *directory = getenv("OBJECTS_CONTROL");
	if (!directory)
		return;
	char path[4096];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", directory, i ? "go" : "ask");
		int fd = open(path, i ? O_RDONLY : O_WRONLY);
		if (fd < 0 || dup3(fd, i ? GO : ASK, O_CLOEXEC) < 0 || close(fd) < 0)
			_exit(70);
	}
	steps_wanted = 1;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (struct scenario *one = scenarios; one; one = one->next)
			puts(one->name);
		return 0;
	}
	struct scenario *one = scenarios;
	while (one && (argc < 2 || strcmp(argv[1], one->name)))
		one = one->next;
	if (!one)
		return 64;
	open_control();
	step();
	one->run();
	show("the end");
	return 0;
}
