/* executes SCENARIO: prepares something, waits for the file `go`, executes a program, and reports on standard output what that program
 * finds of its process. The program is this one again (`executes after SCENARIO`): it waits for the file `end` after its report, and
 * then reports the signals that were pending. Each stage adds a line to the file `lines`.
 *
 * `executes again N` executes itself N times, and adds a line each time; `executes collect N` too, waits for `go` first, blocks
 * SIGRTMIN, waits for `end` and reports how many have come. `executes shell N` waits for `go` and has N children, one
 * after the other, that execute a program each (`executes end N`).
 * Exit status: 0; 1 when execve failed that should not have; `again` ends with 7, `end` with N. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *self, *scenario;

static void line(const char *text)
{
	FILE *file = fopen("lines", "ae");
	fprintf(file, "%s\n", text);
	fclose(file);
}

static void await(const char *name)
{
	struct timespec pause = {0, 20000000};
	while (access(name, F_OK))
		nanosleep(&pause, NULL);
}

static void ready(void)
{
	line("ready");
	await("go");
}

static void handler(int number)
{
	(void)number;
}

static void *sleeps(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static void *computes(void *nothing)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return nothing;
}

static void *reads(void *pipe_end)
{
	char byte;
	while (read((int)(intptr_t)pipe_end, &byte, 1) < 0)
		;
	return NULL;
}

#define COMPUTED 400

/* Milliseconds. */
static long used(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- the new program */

/* Of all but what names a directory of ours, which has another name in each run. */
static unsigned long hash(char *const *strings, int *count)
{
	unsigned long sum = 5381;
	for (*count = 0; strings[*count]; ++*count)
		for (const char *at = strstr(strings[*count], "/tmp/") ? "-" : strings[*count]; *at; at++)
			sum = sum * 33 + (unsigned char)*at;
	return sum;
}

static void report_waiting(void)
{
	sigset_t all;
	siginfo_t info;
	struct timespec now = {0, 0};
	int number;
	sigfillset(&all);
	while ((number = sigtimedwait(&all, &info, &now)) > 0)
		printf("waited: signal %d code %d value %d from me %d\n", number, info.si_code,
		       info.si_code == SI_QUEUE ? info.si_value.sival_int : 0, info.si_pid == getpid());
}

static void after(int argc, char **argv)
{
	int count;
	sigset_t mask, waiting;
	struct itimerval timer;
	stack_t stack;
	struct rlimit limit;
	char name[16], text[PATH_MAX] = "";
	printf("%d arguments, hash %lx, the first is %s\n", argc, hash(argv, &count), strcmp(argv[0], self) ? argv[0] : "itself");
	unsigned long sum = hash(environ, &count);
	printf("%d in the environment, hash %lx\n", count, sum);
	printf("leads %d\n", getpid() == (int)syscall(SYS_gettid));
	sigprocmask(SIG_BLOCK, NULL, &mask);
	sigpending(&waiting);
	for (int i = 1; i < 65; i++) {
		struct sigaction action;
		if (i == 32 || i == 33 || sigaction(i, NULL, &action))
			continue;
		if (sigismember(&mask, i) || sigismember(&waiting, i) || action.sa_handler != SIG_DFL)
			printf("signal %d: blocked %d, waits %d, %s\n", i, sigismember(&mask, i), sigismember(&waiting, i),
			       action.sa_handler == SIG_DFL   ? "default"
			       : action.sa_handler == SIG_IGN ? "ignored"
			                                      : "caught");
	}
	for (int i = 0; i < 64; i++)
		if (fcntl(i, F_GETFD) >= 0)
			printf("descriptor %d: flags %x, at %ld\n", i, fcntl(i, F_GETFD), i > 2 ? (long)lseek(i, 0, SEEK_CUR) : 0);
	sigaltstack(NULL, &stack);
	prctl(PR_GET_NAME, name);
	int from = 0, subreaper = 0;
	prctl(PR_GET_PDEATHSIG, &from);
	prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
	printf("alternate stack %d, name %s, death signal %d, subreaper %d, dumpable %d, no new rights %d, keeps %d, slack %d\n",
	       stack.ss_flags, strcmp(name, strrchr(self, '/') + 1) ? name : "its own", from, subreaper, prctl(PR_GET_DUMPABLE),
	       prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_KEEPCAPS), (int)prctl(PR_GET_TIMERSLACK));
	printf("user %d %d, group %d %d, secure %ld\n", getuid(), geteuid(), getgid(), getegid(), (long)getauxval(AT_SECURE));
	getitimer(ITIMER_REAL, &timer);
	printf("timer set %d\n", timer.it_value.tv_sec > 0);
	getrlimit(RLIMIT_NOFILE, &limit);
	printf("umask %o, nice %d, personality %x, files %ld\n", umask(0), getpriority(PRIO_PROCESS, 0), personality(~0u),
	       (long)limit.rlim_cur);
	getrlimit(RLIMIT_CORE, &limit);
	printf("core %ld\n", (long)limit.rlim_cur);
	if (readlink("/proc/self/exe", text, sizeof text - 1) > 0)
		printf("is %s\n", strcmp(strrchr(text, '/') + 1, strrchr(self, '/') + 1) ? text : "itself");
	const char *called = strrchr((const char *)getauxval(AT_EXECFN), '/');
	printf("executed as %.20s\n", called && strcmp(called, strrchr(self, '/')) ? called : "itself");
	if (!strcmp(scenario, "attributes"))
		printf("has used what the one before has %d %d\n", used(CLOCK_PROCESS_CPUTIME_ID) >= COMPUTED,
		       used(CLOCK_THREAD_CPUTIME_ID) >= COMPUTED);
	int threads = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *one; (one = readdir(tasks));)
		threads += one->d_name[0] != '.';
	closedir(tasks);
	printf("%d threads\n", threads);
	fflush(stdout);
	line("after");
	await("end");
	report_waiting();
	exit(0);
}

/* ---- the old one */

static char *strings[300000];

static void execute(void)
{
	char *argv[] = {(char *)self, "after", (char *)scenario, "three", NULL};
	fflush(stdout);
	execve(self, argv, environ);
	printf("execve: %s\n", strerror(errno));
	exit(1);
}

static void *execute_in_thread(void *nothing)
{
	execute();
	return nothing;
}

static void start(void *(*what)(void *), void *argument)
{
	pthread_t thread;
	pthread_create(&thread, NULL, what, argument);
}

static void plain(void)
{
	ready();
	execute();
}

static void argv0(void)
{
	char *argv[] = {"-a strange name", "after", (char *)scenario, "", " ", "\n", "", NULL};
	char *environment[] = {"A=1", "", "no equals sign", NULL};
	ready();
	execve(self, argv, environment);
}

static void no_environment(void)
{
	char *argv[] = {(char *)self, "after", (char *)scenario, NULL};
	ready();
	execve(self, argv, NULL);
}

static void signals(void)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigaddset(&mask, SIGWINCH);
	sigaddset(&mask, SIGRTMIN + 2);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	signal(SIGUSR2, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGALRM, SIG_IGN);
	signal(SIGHUP, handler);
	sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 11});
	ready();
	sigaddset(&mask, SIGCHLD);
	sigdelset(&mask, SIGWINCH);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGALRM, handler);
	signal(SIGURG, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR1);
	syscall(SYS_tgkill, getpid(), getpid(), SIGCHLD);
	sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 12});
	sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 13});
	execute();
}

static void *execute_with_signal(void *nothing)
{
	syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), SIGUSR1);
	execute();
	return nothing;
}

static void signal_of_thread(void)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigaddset(&mask, SIGUSR2);
	sigaddset(&mask, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	ready();
	syscall(SYS_tgkill, getpid(), getpid(), SIGUSR2);   /* ends with its thread */
	kill(getpid(), SIGRTMIN + 1);
	start(execute_with_signal, NULL);
	sleeps(NULL);
}

static void descriptors(void)
{
	int first = open(".", O_RDONLY), file = open("file", O_RDWR | O_CREAT, 0600), ends[2];
	dup2(first, 20);
	dup3(first, 21, O_CLOEXEC);
	if (write(file, "0123456789", 10) != 10 || pipe2(ends, O_CLOEXEC))
		exit(1);
	ready();
	dup2(file, 30);
	fcntl(file, F_SETFD, FD_CLOEXEC);
	fcntl(dup2(ends[0], 31), F_SETFD, 0);
	lseek(file, 4, SEEK_SET);
	execute();
}

static void threads(void)
{
	int ends[2];
	if (pipe(ends))
		exit(1);
	start(sleeps, NULL);
	start(computes, NULL);
	start(reads, (void *)(intptr_t)ends[0]);
	ready();
	start(reads, (void *)(intptr_t)ends[0]);
	struct timespec moment = {0, 100000000};
	nanosleep(&moment, NULL);
	execute();
}

static void another_thread(void)
{
	int ends[2];
	sigset_t mask;
	if (pipe(ends))
		exit(1);
	start(computes, NULL);
	start(reads, (void *)(intptr_t)ends[0]);
	ready();
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	start(execute_in_thread, NULL);
	sigaddset(&mask, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	sleeps(NULL);
}

static void *execute_when_alone(void *nothing)
{
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", getpid());
	while (state != 'Z') {
		FILE *file = fopen(path, "re");
		if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			exit(1);
		fclose(file);
	}
	execute();
	return nothing;
}

static void without_leader(void)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	ready();
	kill(getpid(), SIGUSR1);
	start(execute_when_alone, NULL);
	pthread_exit(NULL);
}

static void by_descriptor(void)
{
	char *argv[] = {(char *)self, "after", (char *)scenario, NULL};
	int file = open(self, O_PATH | O_CLOEXEC);
	ready();
	syscall(SYS_execveat, file, "", argv, environ, AT_EMPTY_PATH);
}

static void in_directory(void)
{
	char *argv[] = {(char *)self, "after", (char *)scenario, NULL}, directory[PATH_MAX];
	strcpy(directory, self);
	*strrchr(directory, '/') = 0;
	ready();
	int place = open(directory, O_PATH | O_CLOEXEC);
	syscall(SYS_execveat, place, strrchr(self, '/') + 1, argv, environ, 0);
}

static void script(void)
{
	char *argv[] = {"given", "x y", NULL};
	FILE *file = fopen("script", "we");
	fprintf(file, "#!%s after\n", self);
	fclose(file);
	chmod("script", 0755);
	ready();
	execve("./script", argv, environ);
}

/* As many arguments as `size` bytes hold, each `length` long with its NUL. */
static void fill(long size, long length)
{
	long count = size / length;
	strings[0] = (char *)self, strings[1] = "after", strings[2] = (char *)scenario;
	for (long i = 3; i < count; i++) {
		char *text = malloc(length);
		memset(text, 'a' + (int)(i % 26), length - 1);
		text[length - 1] = 0;
		strings[i] = text;
	}
	strings[count] = NULL;
}

static void long_list(void)
{
	fill(1 << 20, 64);
	ready();
	execve(self, strings, environ);
}

static void long_strings(void)
{
	fill(1 << 20, 128 << 10);
	ready();
	execve(self, strings, environ);
}

static void very_long_list(void)
{
	fill(400 << 10, 5);    /* more than a call on the link can have: it is made at home */
	ready();
	execve(self, strings, environ);
}

static void attributes(void)
{
	struct itimerval timer = {.it_value.tv_sec = 1000};
	struct rlimit limit = {100, 200};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec soon = {.it_value.tv_nsec = 1};
	static char room[65536];
	stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
	sigset_t mask;
	timer_t one;
	setitimer(ITIMER_REAL, &timer, NULL);
	sigaltstack(&stack, NULL);
	ready();
	umask(027);
	if (nice(3) < 0)
		exit(1);
	personality(ADDR_NO_RANDOMIZE);
	setrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max = 0;
	setrlimit(RLIMIT_CORE, &limit);
	prctl(PR_SET_NAME, "another");
	prctl(PR_SET_PDEATHSIG, SIGHUP);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_KEEPCAPS, 1);
	prctl(PR_SET_TIMERSLACK, 70000);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &one);
	timer_settime(one, 0, &soon, NULL);
	while (used(CLOCK_THREAD_CPUTIME_ID) < COMPUTED)
		for (volatile int i = 0; i < 1000000; i++)
			;
	sigset_t waiting;
	do
		sigpending(&waiting);
	while (!sigismember(&waiting, SIGUSR1));
	execute();
}

static void setuid_program(void)
{
	char *argv[] = {(char *)self, "after", (char *)scenario, NULL};
	ready();
	execve("./rights/setuid", argv, environ);
}

/* ---- calls that fail */

static void try(const char *what, const char *path, char *const *argv)
{
	syscall(SYS_execve, path, argv, environ);
	printf("%s: %s\n", what, strerror(errno));
}

static void write_file(const char *name, const char *text, int mode)
{
	FILE *file = fopen(name, "we");
	fputs(text, file);
	fclose(file);
	chmod(name, mode);
}

static void failures(void)
{
	char *argv[] = {"x", NULL}, long_name[5000];
	memset(long_name, 'n', sizeof long_name - 1);
	long_name[sizeof long_name - 1] = 0;
	write_file("plain", "text", 0644);
	write_file("text", "just text", 0755);
	write_file("empty", "", 0755);
	write_file("nowhere", "#!/no/such/interpreter\n", 0755);
	write_file("round", "#!./round\n", 0755);
	write_file("elf", "\177ELF\2\1\1", 0755);
	if (symlink("loop", "loop"))
		exit(1);
	int busy = open("busy", O_RDWR | O_CREAT | O_CLOEXEC, 0755);
	ready();
	try("absent", "./absent", argv);
	try("no name", "", argv);
	try("not executable", "./plain", argv);
	try("a directory", ".", argv);
	try("below a file", "./plain/x", argv);
	try("a loop", "./loop", argv);
	try("a long name", long_name, argv);
	try("text", "./text", argv);
	try("empty", "./empty", argv);
	try("no interpreter", "./nowhere", argv);
	try("interpreters in a circle", "./round", argv);
	try("no program", "./elf", argv);
	try("being written", "./busy", argv);
	try("no path", NULL, argv);
	try("a path that is none", (char *)8, argv);
	try("arguments that are none", self, (char *const *)8);
	char *bad[] = {"x", (char *)16, NULL};
	try("one argument that is none", self, bad);
	char *kernel[] = {"x", (char *)0xffff800000000000ul, NULL};
	try("one argument of the kernel", self, kernel);
	fill(4 * ((128 << 10) + 1), (128 << 10) + 1);
	try("too long an argument", self, strings);
	fill(10 << 20, 100000);
	try("too many arguments", self, strings);
	errno = 0;
	syscall(SYS_execveat, 99, "x", argv, environ, 0);
	printf("no descriptor: %s\n", strerror(errno));
	syscall(SYS_execveat, 99, "", argv, environ, AT_EMPTY_PATH);
	printf("no descriptor to execute: %s\n", strerror(errno));
	syscall(SYS_execveat, AT_FDCWD, self, argv, environ, 0x400000);
	printf("unknown flags: %s\n", strerror(errno));
	syscall(SYS_execveat, AT_FDCWD, "loop", argv, environ, AT_SYMLINK_NOFOLLOW);
	printf("a link: %s\n", strerror(errno));
	close(busy);
	fflush(stdout);
	line("after");
	await("end");
}

/* A shell's way: each child executes a program (`executes end N`), and is waited for; by vfork and by fork. */
static void shell(int children)
{
	char number[16], *argv[] = {(char *)self, "end", number, NULL};
	int status;
	ready();
	for (int i = 0; i < children; i++) {
		snprintf(number, sizeof number, "%d", i);
		pid_t child = i % 2 ? fork() : vfork();
		if (!child) {
			execve("./absent", argv, environ);
			execve(self, argv, environ);
			_exit(1);
		}
		if (waitpid(child, &status, 0) != child)
			exit(1);
		printf("child %d ended with %d\n", i, WEXITSTATUS(status));
	}
	line("after");
	await("end");
	exit(0);
}

/* With `collecting`, it blocks SIGRTMIN, and reports in the end how many were pending. */
static void again(int left, int collecting)
{
	char number[16], *argv[] = {(char *)self, collecting ? "collect" : "again", number, NULL}, *none[] = {"x", NULL};
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGRTMIN);
	if (collecting)
		sigprocmask(SIG_BLOCK, &mask, NULL);
	struct timespec pause = {0, 20000000};
	snprintf(number, sizeof number, "%d", left);
	line(number);
	await(collecting ? "go" : ".");
	nanosleep(&pause, NULL);
	if (execve("./absent", none, environ) != -1 || errno != ENOENT)
		exit(1);
	if (!left) {
		int waited = 0;
		struct timespec now = {0, 0};
		await(collecting ? "end" : ".");
		while (collecting && sigtimedwait(&mask, NULL, &now) > 0)
			waited++;
		printf("%d: done, %d signals\n", getpid(), waited);
		exit(7);
	}
	snprintf(number, sizeof number, "%d", left - 1);
	execve(self, argv, environ);
	exit(1);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {{"plain", plain},
	           {"argv0", argv0},
	           {"no_environment", no_environment},
	           {"signals", signals},
	           {"signal_of_thread", signal_of_thread},
	           {"descriptors", descriptors},
	           {"threads", threads},
	           {"another_thread", another_thread},
	           {"without_leader", without_leader},
	           {"by_descriptor", by_descriptor},
	           {"in_directory", in_directory},
	           {"script", script},
	           {"long_list", long_list},
	           {"long_strings", long_strings},
	           {"very_long_list", very_long_list},
	           {"attributes", attributes},
	           {"setuid_program", setuid_program},
	           {"failures", failures}};
	static char path[PATH_MAX];
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (readlink("/proc/self/exe", path, sizeof path - 1) < 0 || argc < 2)
		return 64;
	self = path;
	scenario = argc > 2 ? argv[2] : argv[1];
	if (!strcmp(argv[1], "after"))
		after(argc, argv);
	if (!strcmp(argv[1], "again") || !strcmp(argv[1], "collect"))
		again(atoi(scenario), *argv[1] == 'c');
	if (!strcmp(argv[1], "shell"))
		shell(atoi(scenario));
	if (!strcmp(argv[1], "end"))
		return atoi(scenario);
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name)) {
			all[i].run();
			printf("execution: %s\n", strerror(errno));
			return !!strcmp(argv[1], "failures");
		}
	return 64;
}
