/* rare ROUNDS: computes a little, then makes a call that a process that is away cannot make there, or that is seldom made; none may fail.
 *
 * fork, vfork, posix_spawn, exec of itself (which is how a round begins anew), shared mappings of files and of memory, SysV shared memory,
 * splice, sendfile, copy_file_range, memfd, inotify, signalfd, process and scheduling limits, cpu-time timers and clocks.
 * Exit status: 0; 3 with one line about the first call whose result was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static long round_number;
extern char **environ;

#define EXPECT(condition) \
	do { \
		errno = 0; \
		if (!(condition)) { \
			printf("round %ld, line %d: not so: %s (%s)\n", round_number, __LINE__, #condition, strerror(errno)); \
			fflush(stdout); \
			_exit(3); \
		} \
	} while (0)

/* About `ms` milliseconds of computing, in which the process may be moved. */
static void compute(int ms)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (volatile int i = 0; i < 100000; i++)
			;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < ms);
}

static void children(void)
{
	int status, ends[2];
	char text[16] = "";
	EXPECT(pipe(ends) == 0);
	pid_t child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		compute(20);
		_exit(write(ends[1], "from the child", 14) == 14 ? 9 : 1);
	}
	EXPECT(read(ends[0], text, sizeof text) == 14 && !strcmp(text, "from the child"));
	struct rusage usage;
	EXPECT(wait4(child, &status, 0, &usage) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
	EXPECT(wait(&status) == -1 && errno == ECHILD);
	compute(30);
	char *argv[] = {"sh", "-c", "exit 6", NULL};
	EXPECT(posix_spawn(&child, "/bin/sh", NULL, NULL, argv, environ) == 0);
	EXPECT(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 6);
	compute(30);
	EXPECT(WEXITSTATUS(system("exit 8")) == 8);
	compute(30);
	FILE *pipe_from = popen("echo popen", "r");
	EXPECT(pipe_from && fgets(text, sizeof text, pipe_from) && !strcmp(text, "popen\n"));
	EXPECT(WEXITSTATUS(pclose(pipe_from)) == 0);
	EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void shared_memory(void)
{
	int file = open("shared", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	EXPECT(file >= 0 && ftruncate(file, 8192) == 0);
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), back[6];
	EXPECT(map != MAP_FAILED);
	strcpy(map + 4096, "hello");
	compute(30);
	EXPECT(pread(file, back, 6, 4096) == 6 && !strcmp(back, "hello"));
	EXPECT(pwrite(file, "world", 6, 100) == 6 && !strcmp(map + 100, "world"));
	EXPECT(msync(map, 8192, MS_SYNC) == 0 && munmap(map, 8192) == 0 && close(file) == 0);
	compute(30);
	int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
	EXPECT(id >= 0);
	char *segment = shmat(id, NULL, 0);
	EXPECT(segment != (char *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
	strcpy(segment, "segment");
	compute(30);
	EXPECT(!strcmp(segment, "segment") && shmdt(segment) == 0);
	int memory = memfd_create("memory", MFD_CLOEXEC);
	EXPECT(memory >= 0 && write(memory, "in memory", 9) == 9 && lseek(memory, 0, SEEK_END) == 9 && close(memory) == 0);
	sem_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	EXPECT(shared != MAP_FAILED && sem_init(shared, 1, 0) == 0);
	pid_t child = fork();
	EXPECT(child >= 0);
	if (child == 0)
		_exit(sem_post(shared));
	EXPECT(sem_wait(shared) == 0 && waitpid(child, NULL, 0) == child && munmap(shared, 4096) == 0);
}

static void copies(void)
{
	char back[16];
	int ends[2], from = open("from", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int to = open("to", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	EXPECT(from >= 0 && to >= 0 && write(from, "0123456789", 10) == 10);
	off_t offset = 2;
	EXPECT(sendfile(to, from, &offset, 4) == 4 && offset == 6);
	loff_t in = 0, out = 4;
	EXPECT(copy_file_range(from, &in, to, &out, 5, 0) == 5);
	EXPECT(pread(to, back, 16, 0) == 9 && !memcmp(back, "234501234", 9));
	EXPECT(pipe(ends) == 0);
	in = 3;
	EXPECT(splice(from, &in, ends[1], NULL, 5, 0) == 5 && read(ends[0], back, 16) == 5 && !memcmp(back, "34567", 5));
	struct iovec part = {"vm", 2};
	EXPECT(vmsplice(ends[1], &part, 1, 0) == 2 && read(ends[0], back, 16) == 2);
	EXPECT(close(from) == 0 && close(to) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	EXPECT(rename("from", "renamed") == 0 && unlink("renamed") == 0 && mkfifo("fifo", 0600) == 0 && unlink("fifo") == 0);
}

static void watches(void)
{
	char buffer[512];
	int watcher = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	EXPECT(watcher >= 0 && inotify_add_watch(watcher, ".", IN_CREATE) > 0);
	int file = open("created", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	EXPECT(file >= 0 && close(file) == 0 && unlink("created") == 0);
	EXPECT(read(watcher, buffer, sizeof buffer) > 0 && !strcmp(((struct inotify_event *)buffer)->name, "created"));
	EXPECT(close(watcher) == 0);
	sigset_t set, old;
	struct signalfd_siginfo info;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	EXPECT(sigprocmask(SIG_BLOCK, &set, &old) == 0);
	int signals = signalfd(-1, &set, SFD_CLOEXEC);
	EXPECT(signals >= 0 && kill(getpid(), SIGUSR1) == 0);
	compute(20);
	EXPECT(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1 && (pid_t)info.ssi_pid == getpid());
	EXPECT(close(signals) == 0 && sigprocmask(SIG_SETMASK, &old, NULL) == 0);
}

static volatile sig_atomic_t ticks;
static void on_tick(int signal)
{
	(void)signal;
	ticks++;
}

static void limits_and_clocks(void)
{
	char name[16];
	cpu_set_t set;
	struct rlimit limit;
	struct sched_param parameter = {0};
	struct tms used;
	struct sysinfo machine;
	struct statvfs files;
	EXPECT(sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 && sched_setaffinity(0, sizeof set, &set) == 0);
	EXPECT(sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_OTHER, &parameter) == 0 && sched_yield() == 0);
	EXPECT(prctl(PR_SET_NAME, "rarely") == 0 && prctl(PR_GET_NAME, name) == 0 && !strcmp(name, "rarely"));
	EXPECT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0 && prctl(PR_GET_DUMPABLE) == 1);
	EXPECT(getrlimit(RLIMIT_CORE, &limit) == 0 && prlimit(0, RLIMIT_CORE, &limit, NULL) == 0);
	EXPECT(times(&used) != (clock_t)-1 && sysinfo(&machine) == 0 && statvfs(".", &files) == 0 && files.f_bsize > 0);
	EXPECT(setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0)) == 0);
	struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
	EXPECT(sigaction(SIGVTALRM, &action, NULL) == 0);
	struct itimerval timer = {.it_value = {0, 20000}}, off = {0};
	ticks = 0;
	EXPECT(setitimer(ITIMER_VIRTUAL, &timer, NULL) == 0);
	while (ticks == 0)
		;
	EXPECT(setitimer(ITIMER_VIRTUAL, &off, NULL) == 0);
	struct timespec before, after;
	EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
	compute(20);
	EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
	EXPECT(after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec > before.tv_nsec));
	unsigned cpu, node;
	EXPECT(getcpu(&cpu, &node) == 0 && (getxattr(".", "user.none", name, 1) == -1 && (errno == ENODATA || errno == EOPNOTSUPP)));
}

int main(int argc, char **argv)
{
	static void (*const parts[])(void) = {children, shared_memory, copies, watches, limits_and_clocks};
	if (argc < 2)
		return 64;
	long rounds = atol(argv[1]);
	round_number = argc > 2 ? atol(argv[2]) : 0;
	for (int i = 0; i < 5; i++) {
		compute(60);
		parts[i]();
	}
	if (++round_number < rounds) {
		char next[24], *again[] = {argv[0], argv[1], next, NULL};
		snprintf(next, sizeof next, "%ld", round_number);
		compute(60);
		printf("round %ld, exec\n", round_number);
		fflush(stdout);
		execv("/proc/self/exe", again);
		return 3;
	}
	printf("%ld rounds of rare calls\n", rounds);
	return 0;
}
