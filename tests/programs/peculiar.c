/* peculiar HOW SECONDS [late]: sets something about itself that is no memory, register or descriptor, says "ready", works, and ends with 0
 * if all is as it was set: after so many seconds, or when there is a file `end`. late: it sets it when there is a file `go`, having said
 * "ready" before, and does not end by itself. vfork: the child executes a program after so many seconds, or when there is a file `go`. */
#define _GNU_SOURCE
#include <asm/ldt.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define SIZE (64 * PAGE)
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
static volatile char selector;
static volatile long caught, traps;
static volatile int stop, wrong;
static char *memory;
static char stack[65536] __attribute__((aligned(16)));
static sigjmp_buf back;
static double end;

static double now(void)
{
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t); /* not by the time-stamp counter */
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fault(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

static int faults(volatile char *p)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)*p;
	return 0;
}

static void dispatched(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	selector = 0;
	caught++;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
}

static void trapped(int number)
{
	(void)number;
	traps++;
}

static int shares(void *unused)
{
	(void)unused;
	while (!stop) {
		struct timespec t = {0, 5000000};
		syscall(SYS_nanosleep, &t, NULL);
		memory[0]++;
	}
	return 7;
}

static void *other_user(void *unused)
{
	(void)unused;
	if (syscall(SYS_setresuid, -1, 65534, -1))
		wrong = 1;
	while (!stop) {
		wrong |= syscall(SYS_geteuid) != 65534;
		usleep(2000);
	}
	return NULL;
}

/* 0: done. Else it cannot be had here: 77. */
static int set(const char *how)
{
	pthread_t thread;
	if (!strcmp(how, "dispatch")) {
		struct sigaction action = {.sa_sigaction = dispatched, .sa_flags = SA_SIGINFO};
		sigaction(SIGSYS, &action, NULL);
		return prctl(59, 1, 0, 0, &selector) ? 77 : 0;
	}
	if (!strcmp(how, "tsc"))
		return prctl(PR_SET_TSC, PR_TSC_SIGSEGV) ? 77 : 0;
	if (!strcmp(how, "speculation"))
		return prctl(53, 0, 4, 0, 0) ? 77 : 0;
	if (!strcmp(how, "mdwe"))
		return prctl(65, 1, 0, 0, 0) ? 77 : 0;
	if (!strcmp(how, "ldt")) {
		struct user_desc segment = {
			.entry_number = 0, .base_addr = 0, .limit = 0xfff, .seg_32bit = 1, .limit_in_pages = 1, .useable = 1};
		return syscall(SYS_modify_ldt, 1, &segment, sizeof segment) ? 77 : 0;
	}
	if (!strcmp(how, "cpuid"))
		return syscall(SYS_arch_prctl, 0x1012, 0) ? 77 : 0;
	if (!strcmp(how, "tiles")) /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
		return syscall(SYS_arch_prctl, 0x1023, 18) ? 77 : 0;
	if (!strcmp(how, "personality"))
		return personality(READ_IMPLIES_EXEC) < 0 ? 77 : 0;
	if (!strcmp(how, "seal"))
		return syscall(462, memory + PAGE, 4 * PAGE, 0) ? 77 : 0;
	if (!strcmp(how, "guard"))
		return madvise(memory + PAGE, 2 * PAGE, GUARD_INSTALL) ? 77 : 0;
	if (!strcmp(how, "future"))
		return mlockall(MCL_CURRENT | MCL_FUTURE) ? 77 : 0;
	if (!strcmp(how, "locked")) { /* more than a user without the right may lock */
		struct rlimit limit;
		if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_max == RLIM_INFINITY)
			return 77;
		size_t size = limit.rlim_max + SIZE;
		char *much = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return much == MAP_FAILED || mlock(much, size) ? 77 : 0;
	}
	if (!strcmp(how, "user"))
		return pthread_create(&thread, NULL, other_user, NULL) || usleep(200000) ? 77 : 0;
	if (!strcmp(how, "clone"))
		return clone(shares, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL) < 0 ? 77 : 0;
	if (!strcmp(how, "trap"))
		return signal(SIGTRAP, trapped) == SIG_ERR;
	if (!strcmp(how, "ignored"))
		return signal(SIGTRAP, SIG_IGN) == SIG_ERR;
	return 1;
}

/* Whether it is still as set, checked again and again. */
static int is_wrong(const char *how)
{
	if (!strcmp(how, "dispatch")) {
		long result, before = caught;
		selector = 1;
		__asm__ volatile("syscall" : "=a"(result) : "a"(39L) : "rcx", "r11", "memory");
		selector = 0;
		return result != 4711 || caught != before + 1;
	}
	if (!strcmp(how, "tsc"))
		return !sigsetjmp(back, 1) ? (__builtin_ia32_rdtsc(), 1) : 0;
	if (!strcmp(how, "tiles")) {
		unsigned long permitted = 0;
		return syscall(SYS_arch_prctl, 0x1022, &permitted) || !(permitted & 1 << 18);
	}
	if (!strcmp(how, "mdwe"))
		return mprotect(memory, PAGE, PROT_READ | PROT_EXEC) == 0;
	if (!strcmp(how, "seal"))
		return munmap(memory + PAGE, PAGE) != -1 || errno != EPERM || memory[PAGE] != 'x';
	if (!strcmp(how, "guard"))
		return !faults(memory + PAGE) || !faults(memory + 2 * PAGE + 5) || memory[0] != 'x' || memory[3 * PAGE] != 'x';
	if (!strcmp(how, "future")) {
		unsigned char in[16];
		char *fresh = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int bad = fresh == MAP_FAILED || mincore(fresh, 16 * PAGE, in);
		for (int i = 0; i < 16 && !bad; i++)
			bad = !(in[i] & 1);
		munmap(fresh, 16 * PAGE);
		return bad;
	}
	if (!strcmp(how, "trap")) {
		long before = traps;
		kill(getpid(), SIGTRAP);
		return traps != before + 1;
	}
	if (!strcmp(how, "ignored")) {
		struct sigaction action;
		kill(getpid(), SIGTRAP);
		return sigaction(SIGTRAP, NULL, &action) || action.sa_handler != SIG_IGN;
	}
	return wrong || (strcmp(how, "clone") && memory[SIZE - 1] != 'x');
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int late = argc > 3, result, status = 0;

	end = now() + (argc > 2 ? atof(argv[2]) : 5);
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGSEGV, fault);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 'x', SIZE);
	if (!strncmp(how, "vfork", 5)) {
		puts("ready");
		pid_t child = vfork();
		if (!child) {
			while (now() < end && syscall(SYS_access, "go", F_OK)) {
				struct timespec t = {0, 10000000};
				syscall(SYS_nanosleep, &t, NULL);
			}
			execl("/bin/sh", "sh", "-c", "exit 7", NULL);
			_exit(1);
		}
		waitpid(child, &status, 0);
		for (int i = 0; i < SIZE; i++)
			wrong |= memory[i] != 'x';
		while (!strcmp(how, "vfork and on") && access("end", F_OK))
			usleep(10000);
		return wrong || WEXITSTATUS(status) != 7;
	}
	if (late) {
		puts("ready");
		while (access("go", F_OK))
			usleep(10000);
	}
	if ((result = set(how)))
		return result;
	puts(late ? "set" : "ready");
	while (!wrong && access("end", F_OK) && (late || now() < end)) {
		struct timespec t = {0, 2000000};
		wrong |= is_wrong(how);
		if (strcmp(how, "trap")) /* which is to be in its call whenever it is moved */
			nanosleep(&t, NULL);
	}
	stop = 1;
	if (!strcmp(how, "clone"))
		wrong |= wait(&status) < 0 || WEXITSTATUS(status) != 7;
	return wrong;
}
