/* children: the time that children use is reported to their parent once: by wait4, waitid, getrusage, times, /proc and the siginfo of
 * SIGCHLD. Starts when the file `go` exists; the child that moves goes on when the file `moved` exists; `lines` has a line for each that
 * waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SHARE_MS 200 /* that each child computes */
#define LARGE (32u << 20)

static int lines;
static volatile long ticks; /* as the kernel has sampled them */

static void on_child(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	ticks = info->si_utime + info->si_stime;
}

static void compute(void)
{
	struct timespec now;
	do {
		for (volatile int i = 0; i < 100000; i++)
			;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < SHARE_MS);
}

static void await(const char *file)
{
	while (access(file, F_OK))
		usleep(10000);
}

/* In units of SHARE_MS, so that time reported once differs from time reported twice, whatever else is used. */
static long shares(struct timeval user, struct timeval system)
{
	long milliseconds = (user.tv_sec + system.tv_sec) * 1000 + (user.tv_usec + system.tv_usec) / 1000;
	return (milliseconds + 20) / SHARE_MS;
}

static long of_proc(void)
{
	char text[1024] = "";
	int file = open("/proc/self/stat", O_RDONLY);
	if (read(file, text, sizeof text - 1) <= 0)
		return -1;
	close(file);
	long user = 0, system = 0;
	sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %ld %ld", &user, &system);
	return (user + system + 2) * 10 / SHARE_MS;
}

static void report(const char *what, long one, long peak)
{
	struct rusage all;
	struct tms used;
	getrusage(RUSAGE_CHILDREN, &all);
	times(&used);
	printf("%s: %ld, at most %s, with its siginfo %s; ", what, one, peak > LARGE / 1024 ? "much" : "little",
	       ticks * 40 >= SHARE_MS ? "some" : "none");
	printf("all %ld, by times %ld, in /proc %ld\n", shares(all.ru_utime, all.ru_stime),
	       (used.tms_cutime + used.tms_cstime + 2) * 10 / SHARE_MS, of_proc());
	fflush(stdout);
}

static void child(const char *how)
{
	if (!strcmp(how, "grandchild") && fork()) {
		wait(NULL);
		_exit(0);
	}
	memset(mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, LARGE);
	compute();
	if (!strcmp(how, "moves")) {
		dprintf(lines, "child %d\n", getpid());
		await("moved");
	}
	if (!strcmp(how, "is ended"))
		raise(SIGTERM);
	if (!strcmp(how, "fails"))
		raise(SIGSEGV);
	_exit(0);
}

int main(void)
{
	static const char *const ways[] = {"exits", "is ended", "fails", "grandchild", "moves", "is waited for by waitid", "is polled"};
	struct sigaction action = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_CORE, &none);
	sigaction(SIGCHLD, &action, NULL);
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	dprintf(lines, "ready\n");
	await("go");
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct rusage one = {0};
		siginfo_t info;
		pid_t pid = fork();
		if (!pid)
			child(ways[i]);
		if (i < 5 ? wait4(pid, NULL, 0, &one) != pid
		          : syscall(SYS_waitid, P_PID, pid, &info, WEXITED | (i == 6 ? WNOWAIT : 0), &one) != 0)
			return 2;
		report(ways[i], shares(one.ru_utime, one.ru_stime), one.ru_maxrss);
		if (i == 6)
			waitpid(pid, NULL, 0);
	}
	report("all of them", 0, 0);
	return 0;
}
