/* family ROUNDS [MS [apart]]: each round makes children in every way that there is, and says what became of them; MS (20) is how long a
 * child takes. `apart`: but not with memory that stays shared, which keeps a process at home. What it says is the same in every run.
 * The file `lines` has a line for each round. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static int ms = 20;
static volatile int shared_number;      /* with a vfork child alone */
static volatile sig_atomic_t ends, ends_of_mine, last_status;
static pid_t mine;
static volatile char *forbidden;      /* memory without write permission */

static void rest(int milliseconds)
{
	struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static const char *how(int status)
{
	static char text[64];
	if (WIFEXITED(status))
		snprintf(text, sizeof text, "exit %d", WEXITSTATUS(status));
	else if (WIFSIGNALED(status))
		snprintf(text, sizeof text, "signal %d", WTERMSIG(status));
	else
		snprintf(text, sizeof text, "status %x", status);
	return text;
}

static void say(const char *what, pid_t child)
{
	int status = -1;
	pid_t got;
	while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
		;
	printf("%s: %s, %s\n", what, got == child ? "its end" : strerror(errno), how(status));
	fflush(stdout);
}

static void on_child(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	ends++;
	if (info->si_pid == mine) {
		ends_of_mine++;
		last_status = info->si_status;
	}
}

static void plain_fork(int round)
{
	int number = round, up[2], down[2];
	char text[64] = "";
	if (pipe(up) || pipe(down))
		exit(70);
	pid_t parent = getpid(), child = fork();
	if (!child) {
		number += 100;
		close(up[0]);
		close(down[1]);
		if (read(down[0], text, sizeof text) != 5 || getppid() != parent || getpid() == parent || gettid() != getpid())
			_exit(71);
		rest(ms);
		dprintf(up[1], "%s %d", text, number);
		_exit(number & 63);
	}
	close(up[1]);
	close(down[0]);
	if (write(down[1], "hello", 5) != 5)
		exit(72);
	ssize_t length, all = 0;
	while ((length = read(up[0], text + all, sizeof text - all)) > 0)
		all += length;
	printf("fork: %s, mine is %d\n", text, number);
	close(up[0]);
	close(down[1]);
	say("fork", child);
}

static void memory_of_vfork(void)
{
	shared_number = 1;
	pid_t child = vfork();
	if (!child) {
		shared_number++;
		_exit(shared_number + 5);
	}
	printf("vfork: the number is %d\n", shared_number);
	say("vfork", child);
}

static void spawned(void)
{
	pid_t child;
	char *words[] = {"sh", "-c", "read x; exit $((x + 2))", NULL}, *none[] = {"/no/such/program", NULL};
	int in[2];
	if (pipe2(in, O_CLOEXEC))
		exit(73);
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	int error = posix_spawnp(&child, "sh", &actions, NULL, words, environ);
	posix_spawn_file_actions_destroy(&actions);
	dprintf(in[1], "7\n");
	close(in[0]);
	close(in[1]);
	printf("spawn: %d\n", error);
	say("spawn", child);
	printf("spawn of nothing: %s\n", strerror(posix_spawn(&child, none[0], NULL, NULL, none, environ)));
}

static int in_clone(void *argument)
{
	*(int *)argument += 1;
	rest(ms);
	return *(int *)argument;
}

static void cloned(void)
{
	static char stack[65536];
	int number = 30;
	pid_t child = clone(in_clone, stack + sizeof stack, SIGURG, &number);
	int status;
	while (waitpid(child, &status, __WALL) < 0 && errno == EINTR)
		;
	printf("clone: mine is %d, %s\n", number, how(status));
}

__attribute__((noreturn)) static void tree(int depth)
{
	if (!depth) {
		rest(ms);
		_exit(1);
	}
	int sum = 0, status;
	for (int i = 0; i < 2; i++)
		if (!fork())
			tree(depth - 1);
	while (wait(&status) > 0 || errno == EINTR)
		sum += WEXITSTATUS(status);
	_exit(sum);
}

static void killed(int number)
{
	int ready[2];
	char byte;
	if (pipe(ready))
		exit(74);
	pid_t child = fork();
	if (!child) {
		signal(number, SIG_DFL);
		if (number == SIGSEGV) {
			rest(ms);
			*forbidden = 1;
		}
		if (write(ready[1], "x", 1) != 1)
			_exit(75);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (number != SIGSEGV) {
		if (read(ready[0], &byte, 1) != 1)
			exit(76);
		kill(child, number);
	}
	close(ready[0]);
	say("killed", child);
}

static void notified_of(void)
{
	sigset_t ends, before;
	sigemptyset(&ends);
	sigaddset(&ends, SIGCHLD);
	sigprocmask(SIG_BLOCK, &ends, &before); /* the handler has to know which child's end it is notified of */
	ends_of_mine = 0;
	mine = fork();
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (!mine) {
		rest(ms);
		_exit(44);
	}
	pid_t child = mine;
	for (int i = 0; i < 500 && !ends_of_mine; i++)
		rest(10);
	printf("notified %d times, status %d\n", ends_of_mine, last_status);
	say("notified of", child);
}

static void not_waited_for(void)
{
	struct sigaction before, ignore = {.sa_handler = SIG_IGN};
	sigaction(SIGCHLD, &ignore, &before);
	pid_t child = fork();
	if (!child) {
		rest(ms);
		_exit(1);
	}
	int result;
	do
		result = waitpid(child, NULL, 0);
	while (result < 0 && errno == EINTR);
	printf("ignored: %d %s\n", result, strerror(errno));
	sigaction(SIGCHLD, &before, NULL);
}

static void orphan(void)
{
	int answer[2];
	char text[64] = "";
	if (pipe(answer))
		exit(77);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid_t self = getpid(), child = fork();
	if (!child) {
		if (!fork()) {
			for (int i = 0; i < 500 && getppid() != self; i++)
				rest(5);
			dprintf(answer[1], "adopted %d", getppid() == self);
			_exit(9);
		}
		_exit(8);
	}
	close(answer[1]);
	say("parent of an orphan", child);
	ssize_t length = read(answer[0], text, sizeof text - 1);
	printf("orphan: %zd %s\n", length, text);
	close(answer[0]);
	int status;
	while (wait(&status) < 0 && errno == EINTR)
		;
	printf("orphan: %s\n", how(status));
	prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static void dies_with_its_parent(void)
{
	int alive[2];
	char byte;
	if (pipe(alive))
		exit(78);
	pid_t child = fork();
	if (!child) {
		int ready[2];
		if (pipe(ready))
			_exit(79);
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(alive[0]);
			if (write(ready[1], "x", 1) == 1)
				rest(20000);
			_exit(80);
		}
		if (read(ready[0], &byte, 1) != 1)
			_exit(81);
		_exit(6);
	}
	close(alive[1]);
	ssize_t length = read(alive[0], &byte, 1);
	printf("dead with its parent: %zd\n", length);
	close(alive[0]);
	say("its parent", child);
}

static void group(void)
{
	int ready[2];
	char bytes[2];
	if (pipe(ready))
		exit(82);
	pid_t first = fork();
	if (!first) {
		setpgid(0, 0);
		if (!fork()) {
			if (write(ready[1], "x", 1) == 1)
				rest(20000);
			_exit(83);
		}
		if (write(ready[1], "x", 1) == 1)
			rest(20000);
		_exit(84);
	}
	for (int got = 0; got < 2; got++)
		if (read(ready[0], bytes, 1) != 1)
			exit(85);
	printf("group: %d\n", getpgid(first) == first);
	kill(-first, SIGTERM);
	close(ready[0]);
	close(ready[1]);
	say("group", first);
}

static void *makes_a_child(void *argument)
{
	*(pid_t *)argument = fork();
	if (!*(pid_t *)argument) {
		rest(ms);
		_exit(gettid() == getpid() ? 21 : 22);
	}
	return NULL;
}

static void from_a_thread(void)
{
	pthread_t thread;
	pid_t child;
	if (pthread_create(&thread, NULL, makes_a_child, &child) || pthread_join(thread, NULL))
		exit(86);
	say("from a thread", child);
}

static void with_shared_memory(void)
{
	int *number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();
	if (!child) {
		*number = 5;
		rest(ms);
		*number += 1;
		_exit(0);
	}
	say("shared", child);
	printf("shared: %d\n", *number);
	munmap(number, 4096);
}

static void what_is_inherited(void)
{
	sigset_t set, old, pending;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &old);
	raise(SIGUSR1);
	alarm(100);
	pid_t child = fork();
	if (!child) {
		sigpending(&pending);
		sigprocmask(SIG_SETMASK, NULL, &set);
		struct timespec used;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
		_exit(sigismember(&pending, SIGUSR1) | sigismember(&set, SIGUSR1) << 1 | (alarm(0) != 0) << 2 | (used.tv_sec > 0) << 3);
	}
	alarm(0);
	say("inherited", child);
	signal(SIGUSR1, SIG_IGN);
	sigprocmask(SIG_SETMASK, &old, NULL);
	signal(SIGUSR1, SIG_DFL);
}

int main(int argc, char **argv)
{
	forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	if (argc > 2)
		ms = atoi(argv[2]);
	struct sigaction action = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGCHLD, &action, NULL);
	int lines = open("lines", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (int round = 0; round < rounds; round++) {
		printf("round %d\n", round);
		fflush(stdout);
		plain_fork(round);
		memory_of_vfork();
		spawned();
		cloned();
		fflush(stdout);
		pid_t child = fork();
		if (!child)
			tree(3);
		say("tree", child);
		killed(SIGTERM);
		killed(SIGKILL);
		killed(SIGSEGV);
		notified_of();
		not_waited_for();
		orphan();
		dies_with_its_parent();
		group();
		from_a_thread();
		if (argc <= 3)
			with_shared_memory();
		what_is_inherited();
		fflush(stdout);
		dprintf(lines, "%d\n", round);
	}
	return ends > 0 ? 0 : 1;
}
