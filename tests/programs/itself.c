// Checks itself in /proc, over and over: what it reads there is at every time what it read natively, before it was moved, or what it
// has just done to itself. Writes a line after each check into `lines`; prints what is wrong and ends if something is.
// itself ROUNDS [MS [plain]]; ROUNDS 0: until there is a file `enough`; plain: and maps no file meanwhile
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1 << 20)
#define MUCH (32ul << 20)

static char text[ROOM], native_maps[ROOM], native_environ[ROOM], native_auxv[4096];
static pid_t second;
static int turn, lowest;

static void wrong(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf("check %d: ", turn);
	vprintf(format, list);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

static size_t slurp(const char *path)
{
	size_t length = 0;
	ssize_t got;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		wrong("open %s: %s", path, strerror(errno));
	if (fd != lowest || fcntl(fd, F_GETFD) != FD_CLOEXEC || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
		wrong("%s: descriptor %d, flags %d", path, fd, fcntl(fd, F_GETFD));
	while ((got = read(fd, text + length, ROOM - 1 - length)) > 0)
		length += got;
	if (got < 0)
		wrong("read %s: %s", path, strerror(errno));
	text[length] = 0;
	close(fd);
	return length;
}

static const char *field(const char *name)
{
	static char value[256];
	char start[64];
	snprintf(start, sizeof start, "\n%s:\t", name);
	const char *at = strstr(text, start);
	if (!at)
		wrong("no %s", name);
	sscanf(at + strlen(start), "%255[^\n]", value);
	return value;
}

static void is(const char *what, unsigned long found, unsigned long wanted)
{
	if (found != wanted)
		wrong("%s is %#lx, not %#lx", what, found, wanted);
}

static unsigned long status_kib(const char *name)
{
	return strtoul(field(name), NULL, 10);
}

static unsigned long mask(const char *name)
{
	return strtoul(field(name), NULL, 16);
}

static void mapped(const char *what, const void *start, size_t length, const char *permissions)
{
	char line[128];
	snprintf(line, sizeof line, "\n%08lx-%08lx %s ", (unsigned long)start, (unsigned long)start + length, permissions);
	if (!strstr(text, line))
		wrong("no mapping%s for %s in\n%s", line, what, text);
}

static void *waits(void *pipe)
{
	sigset_t set;
	char byte;
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	second = syscall(SYS_gettid);
	while (read(*(int *)pipe, &byte, 1) == 1)
		;
	return NULL;
}

static void map_a_file(void)
{
	struct stat file;
	int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *piece = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, program, 4096);
	char line[4300], name[4096];
	ssize_t length = readlink("/proc/self/exe", name, sizeof name - 1);
	if (fstat(program, &file) || close(program) || piece == MAP_FAILED || length < 0)
		wrong("its program cannot be mapped: %s", strerror(errno));
	name[length] = 0;
	slurp("/proc/self/maps");
	snprintf(line, sizeof line, "\n%08lx-%08lx r--p 00001000 %02x:%02x %lu ", (unsigned long)piece, (unsigned long)piece + 4096,
	         major(file.st_dev), minor(file.st_dev), (unsigned long)file.st_ino);
	char *there = strstr(text, line), *end = there ? strchr(there + 1, '\n') : NULL;
	if (!end || strncmp(end - length, name, length))
		wrong("no mapping%s of %s in\n%s", line, name, text);
	munmap(piece, 4096);
}

static void nothing(int number)
{
	(void)number;
}

/* At home there is one to be seen for the moment between being seized for a move and standing still. */
static void has_no_tracer(void)
{
	if (!status_kib("TracerPid"))
		return;
	usleep(10000);
	slurp("/proc/self/status");
	is("TracerPid, seen twice,", status_kib("TracerPid"), 0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1, pause = argc > 2 ? atoi(argv[2]) : 0, pipes[2];
	/* With a page on each side that the kernel cannot join it with: what lies next to it is chance. */
	char *much = 4096 + (char *)mmap(NULL, MUCH + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *hidden = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct rlimit limit;
	pthread_attr_t attributes;
	pthread_t thread;
	void *stack;
	size_t stack_size;
	sigset_t blocked;
	if (mprotect(much, MUCH, PROT_READ | PROT_WRITE))
		return 1;
	memset(much, 1, MUCH);
	mprotect(hidden + 4096, 4096, PROT_READ | PROT_WRITE);
	signal(SIGUSR2, nothing);
	signal(SIGTTIN, SIG_IGN);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGRTMIN + 3);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	if (pipe2(pipes, O_CLOEXEC) || pthread_create(&thread, NULL, waits, &pipes[0]))
		return 2;
	while (!__atomic_load_n(&second, __ATOMIC_SEQ_CST))
		sched_yield();
	raise(SIGUSR1);
	kill(getpid(), SIGRTMIN + 3);
	FILE *lines = fopen("lines", "w");
	lowest = open("/dev/null", O_RDONLY);
	close(lowest);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("itself begins\n");
	fprintf(lines, "begun\n");
	fflush(lines);
	pthread_getattr_np(pthread_self(), &attributes);
	pthread_attr_getstack(&attributes, &stack, &stack_size);
	pthread_attr_destroy(&attributes);
	slurp("/proc/self/maps");
	memcpy(native_environ, text, slurp("/proc/self/environ"));
	memcpy(native_auxv, text, slurp("/proc/self/auxv"));
	slurp("/proc/self/status");
	unsigned long ignored = mask("SigIgn");
	is("SIGTTIN, ignored,", ignored >> (SIGTTIN - 1) & 1, 1);
	slurp("/proc/self/maps");
	strcpy(native_maps, text);
	for (turn = 0; rounds ? turn < rounds : access("enough", F_OK); turn++) {
		void *found;
		size_t size;
		char path[64];
		unsigned long numbers[64];
		slurp("/proc/self/maps");
		if (strcmp(text, native_maps))
			wrong("maps are\n%sand were\n%s", text, native_maps);
		mapped("much", much, MUCH, "rw-p");
		mapped("what is hidden", hidden, 4096, "---p");
		mapped("what is seen", hidden + 4096, 4096, "rw-p");
		void *fresh = mmap(hidden + 4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		snprintf(path, sizeof path, "/proc/%d/maps", getpid());
		slurp(path);
		mapped("what is new", fresh, 4096, "r--p");
		mprotect(fresh, 4096, PROT_READ | PROT_WRITE);
		slurp("/proc/thread-self/maps");
		if (strcmp(text, native_maps))
			wrong("maps of the thread are\n%s", text);
		slurp("/proc/self/smaps");
		mapped("much, in smaps", much, MUCH, "rw-p");
		slurp("/proc/self/smaps_rollup");
		if (!strstr(text, "[rollup]"))
			wrong("smaps_rollup is %s", text);

		if (argc < 4)
			map_a_file();

		pthread_getattr_np(pthread_self(), &attributes);
		pthread_attr_getstack(&attributes, &found, &size);
		pthread_attr_destroy(&attributes);
		is("the stack's end", (unsigned long)found + size, (unsigned long)stack + stack_size);
		is("the stack's size", size, stack_size);

		slurp("/proc/self/status");
		is("Pid", status_kib("Pid"), getpid());
		has_no_tracer();
		is("Seccomp", status_kib("Seccomp"), 0);
		is("Threads", status_kib("Threads"), 2);
		is("SigBlk", mask("SigBlk"), 1ul << (SIGUSR1 - 1) | 1ul << (SIGRTMIN + 2));
		is("SigPnd", mask("SigPnd"), 1ul << (SIGUSR1 - 1));
		is("ShdPnd", mask("ShdPnd"), 1ul << (SIGRTMIN + 2));
		is("SigIgn", mask("SigIgn"), ignored);
		is("SigCgt", mask("SigCgt") & 0x7fffffff, 1ul << (SIGUSR2 - 1));
		if (strncmp(field("State"), "R (running)", 11))
			wrong("State is %s", field("State"));
		unsigned long resident = status_kib("VmRSS"), whole = status_kib("VmSize");
		if (resident < MUCH >> 10 || resident > (MUCH >> 10) + 16384 || status_kib("VmHWM") + 1024 < resident || whole < resident)
			wrong("VmRSS %lu, VmHWM %lu, VmSize %lu KiB", resident, status_kib("VmHWM"), whole);
		if (status_kib("voluntary_ctxt_switches") > 1ul << 40)
			wrong("switches: %s", field("voluntary_ctxt_switches"));

		slurp("/proc/self/statm");
		sscanf(text, "%lu %lu", &numbers[0], &numbers[1]);
		is("statm's size in KiB", numbers[0] * 4, whole);
		if (numbers[1] < MUCH / 4096)
			wrong("statm: %s", text);

		slurp("/proc/self/stat");
		char state, *at = strrchr(text, ')');
		sscanf(at + 1, " %c", &state);
		at += 3;
		for (int i = 4; i < 53; i++)
			numbers[i] = strtoul(at, &at, 10);
		if (state != 'R' || atoi(text) != getpid())
			wrong("stat: %s", text);
		is("stat's parent", numbers[4], getppid());
		is("stat's threads", numbers[20], 2);
		is("stat's size in KiB", numbers[23] / 1024, whole);
		is("stat's blocked", numbers[32], 1ul << (SIGUSR1 - 1));
		if (numbers[24] < MUCH / 4096 || (unsigned long)&state > numbers[28])
			wrong("stat: %s", text);

		snprintf(path, sizeof path, "/proc/self/task/%d/status", second);
		slurp(path);
		is("the thread's id", status_kib("Pid"), second);
		is("the thread's mask", mask("SigBlk"), 1ul << (SIGHUP - 1) | 1ul << (SIGUSR1 - 1) | 1ul << (SIGRTMIN + 2));
		// Not its tracer: the threads of a process are let go one after the other when it leaves and when it comes home.

		argv[0][0] = 'a' + turn % 26;
		slurp("/proc/self/cmdline");
		if (strcmp(text, argv[0]))
			wrong("cmdline begins with %s, not %s", text, argv[0]);
		size = slurp("/proc/self/environ");
		if (memcmp(text, native_environ, size + 1))
			wrong("environ is %s", text);
		size = slurp("/proc/self/auxv");
		if (memcmp(text, native_auxv, size))
			wrong("auxv is another one");

		getrlimit(RLIMIT_NOFILE, &limit);
		rlim_t was = limit.rlim_cur;
		limit.rlim_cur = lowest;
		setrlimit(RLIMIT_NOFILE, &limit);
		int fd = open("/proc/self/status", O_RDONLY), error = errno;
		limit.rlim_cur = was;
		setrlimit(RLIMIT_NOFILE, &limit);
		if (fd >= 0 || error != EMFILE)
			wrong("a descriptor too many: %d, %s", fd, strerror(error));

		fprintf(lines, "check %d\n", turn);
		fflush(lines);
		if (pause)
			nanosleep(&(struct timespec){pause / 1000, pause % 1000 * 1000000}, NULL);
	}
	printf("checked %d times\n", turn);
	return 0;
}
