/* filtered HOW [late]: puts seccomp filters over itself, waits for the file `go` in short sleeps, then makes calls that they forbid, and says
 * what came of each. late: the filters come after `go`, and the calls after `on`.
 *
 *   many       several, one over the other: errors, traps, arguments, the place of the call; a child, and a program that it executes
 *   white      one that allows what it names alone; no restart_syscall, so no sleep may be gone on with
 *   threads    one over all threads (TSYNC), another over one thread; a thread that its filter ends
 *   kill       ends the process           thread     ends its only thread
 *   trap       a trap without a handler   blocked    a trap that is blocked
 *   notify, trace, log, logs, strict      what keeps it at home */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdarg.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOW(argument) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[argument]))
#define HIGH(argument) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[argument]) + 4)
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define ON(number, value) UNLESS(number, 1), RETURN(value)
#define ERROR(number) (SECCOMP_RET_ERRNO | (number))
#define ALLOW RETURN(SECCOMP_RET_ALLOW)
#define FILTER(flags, ...) \
	put((struct sock_filter[]){__VA_ARGS__}, sizeof((struct sock_filter[]){__VA_ARGS__}) / sizeof(struct sock_filter), flags)

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
	char line[256];
	va_list list;
	va_start(list, format);
	int length = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	if (write(1, line, length) != length)
		_exit(3);
}

static void put(struct sock_filter *code, size_t count, unsigned flags)
{
	struct sock_fprog program = {count, code};
	long failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
	if (failed) {
		say("no filter: %ld, %s\n", failed, strerror(errno));
		_exit(2);
	}
}

static void wait_for(const char *name)
{
	while (access(name, F_OK))
		nanosleep(&(struct timespec){0, 20000000}, NULL);
}

static void result(const char *what, long value)
{
	say("%s: %ld %d\n", what, value, value < 0 ? errno : 0);
}

static volatile long received[5];

static void trapped(int number, siginfo_t *info, void *context)
{
	ucontext_t *c = context;
	received[0] = number, received[1] = info->si_code, received[2] = info->si_syscall, received[3] = info->si_arch,
	received[4] = info->si_errno;
	received[4] = received[4] * 10 + (info->si_call_addr == (void *)c->uc_mcontext.gregs[REG_RIP]);
	c->uc_mcontext.gregs[REG_RAX] = 77;
}

long from_here(long number);
extern const char behind_it[];
__asm__(".globl from_here\nfrom_here: mov %rdi, %rax\nsyscall\n.globl behind_it\nbehind_it: ret\n");

static void forbid_many(void)
{
	FILTER(0, LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS), LOAD(nr),
	       ON(SYS_getppid, ERROR(EXDEV)), ON(SYS_getpgrp, SECCOMP_RET_KILL_PROCESS), ON(SYS_io_uring_setup, ERROR(ENOTTY)),
	       ON(SYS_sched_yield, ERROR(ENOMSG)), ON(SYS_uname, SECCOMP_RET_TRAP | 5), ON(SYS_sched_getparam, SECCOMP_RET_TRAP | 6),
	       ALLOW);
	FILTER(0, LOAD(nr), ON(SYS_getppid, ERROR(ESPIPE)), ON(SYS_getpgrp, ERROR(EPERM)), UNLESS(SYS_lseek, 5), HIGH(1), UNLESS(7, 3),
	       LOW(1), UNLESS(9, 1), RETURN(ERROR(EDOM)), ALLOW);
	FILTER(0, LOAD(nr), UNLESS(SYS_mprotect, 3), LOW(2), UNLESS(PROT_READ | PROT_WRITE | PROT_EXEC, 1), RETURN(ERROR(EACCES)), LOAD(nr),
	       UNLESS(SYS_getsid, 3), LOAD(instruction_pointer), UNLESS((uint32_t)(uintptr_t)behind_it, 1), RETURN(ERROR(EBADR)), ALLOW);
}

static void try_many(void)
{
	struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
	sigaction(SIGSYS, &action, NULL);
	result("getppid, the newer says another error", syscall(SYS_getppid));
	result("getpgrp, the older ends it", syscall(SYS_lseek, 0, 1, 0) > -2);
	result("a call that farhome refuses", syscall(SYS_io_uring_setup, 1, NULL));
	result("a call that the node makes", syscall(SYS_sched_yield));
	result("lseek of 7 * 2^32 + 9", syscall(SYS_lseek, 1, (7ll << 32) + 9, SEEK_SET));
	result("lseek on no file", syscall(SYS_lseek, 99, (7ll << 32) + 8, SEEK_SET));
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	result("mprotect, to write", mprotect(page, 4096, PROT_READ | PROT_WRITE));
	result("mprotect, to execute", mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
	say("getsid from here: %ld\n", from_here(SYS_getsid));
	result("getsid from elsewhere", syscall(SYS_getsid, 0) > 0);
	for (int i = 0; i < 2; i++) {
		memset((void *)received, 0, sizeof received);
		long got = syscall(i ? SYS_sched_getparam : SYS_uname, NULL, NULL);
		say("trapped: %ld, signal %ld code %ld call %ld arch %lx rest %ld\n", got, received[0], received[1], received[2],
		    received[3], received[4]);
	}
	result("PR_GET_SECCOMP", prctl(PR_GET_SECCOMP));
	result("PR_GET_NO_NEW_PRIVS", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	char status[4096] = "";
	int file = open("/proc/self/status", O_RDONLY);
	if (read(file, status, sizeof status - 1) > 0 && strstr(status, "\nSeccomp:"))
		say("%.32s\n", strstr(status, "\nSeccomp:") + 1);
	close(file);
	pid_t child = fork();
	if (!child) {
		result("a child", syscall(SYS_getppid));
		execl("/proc/self/exe", "filtered", "after", NULL);
		_exit(4);
	}
	int ended = 0;
	waitpid(child, &ended, 0);
	say("it ended: %x\n", ended);
}

static int passed;

static void *thread(void *own)
{
	if (own)
		FILTER(0, LOAD(nr), ON(SYS_getppid, ERROR(ENODEV)), ON(SYS_getpgrp, SECCOMP_RET_KILL_THREAD), ALLOW);
	__atomic_add_fetch(&passed, 1, __ATOMIC_SEQ_CST);
	wait_for("go");
	long value = syscall(SYS_getppid), error = value < 0 ? errno : 0;
	if (own)
		syscall(SYS_getpgrp);
	return (void *)(value < 0 ? error : 0);
}

static void *newborn(void *unused)
{
	(void)unused;
	return (void *)(syscall(SYS_getppid) < 0 ? (long)errno : 0);
}

static int threads(void)
{
	pthread_t those[3];
	void *value[3];
	for (long i = 0; i < 3; i++)
		pthread_create(&those[i], NULL, thread, (void *)(long)(i == 2));
	while (__atomic_load_n(&passed, __ATOMIC_SEQ_CST) < 3)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	say("ready\n");
	wait_for("go");
	result("main", syscall(SYS_getppid) > 0);
	for (int i = 0; i < 3; i++)
		pthread_join(those[i], &value[i]);
	say("they had %ld %ld\n", (long)value[0], (long)value[1]);
	FILTER(SECCOMP_FILTER_FLAG_TSYNC, LOAD(nr), ON(SYS_getppid, ERROR(ENOSTR)), ALLOW);
	pthread_create(&those[0], NULL, newborn, NULL);
	pthread_join(those[0], &value[0]);
	say("a new one had %ld\n", (long)value[0]);
	wait_for("on");
	pthread_create(&those[0], NULL, newborn, NULL);
	pthread_join(those[0], &value[0]);
	say("another one had %ld\n", (long)value[0]);
	return 0;
}

static void forbid_others(void)
{
	FILTER(0, LOAD(nr), ON(SYS_write, SECCOMP_RET_ALLOW), ON(SYS_access, SECCOMP_RET_ALLOW), ON(SYS_exit_group, SECCOMP_RET_ALLOW),
	       ON(SYS_clock_nanosleep, SECCOMP_RET_ALLOW), ON(SYS_nanosleep, SECCOMP_RET_ALLOW), ON(SYS_poll, SECCOMP_RET_ALLOW),
	       ON(SYS_clock_gettime, SECCOMP_RET_ALLOW), ON(SYS_restart_syscall, SECCOMP_RET_KILL_PROCESS), RETURN(ERROR(ENOANO)));
}

static void forbid(uint32_t what)
{
	FILTER(0, LOAD(nr), ON(SYS_getppid, what), ALLOW);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "many";
	int late = argc > 2;
	if (!strcmp(how, "after")) {
		result("a program that it executes", syscall(SYS_getppid));
		return 5;
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return 2;
	if (!strcmp(how, "threads"))
		return threads();
	if (!strcmp(how, "strict")) {
		say("ready\n");
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		char byte;
		while (read(0, &byte, 1) > 0)
			;
		syscall(SYS_exit, 0);
	}
	if (late) {
		say("ready\n");
		wait_for("go");
	}
	if (!strcmp(how, "many"))
		forbid_many();
	else if (!strcmp(how, "white"))
		forbid_others();
	else if (!strcmp(how, "logs"))
		FILTER(SECCOMP_FILTER_FLAG_LOG, LOAD(nr), ON(SYS_getppid, ERROR(EPERM)), ALLOW);
	else
		forbid(!strcmp(how, "kill")     ? SECCOMP_RET_KILL_PROCESS
		       : !strcmp(how, "thread") ? SECCOMP_RET_KILL_THREAD
		       : !strcmp(how, "notify") ? SECCOMP_RET_USER_NOTIF
		       : !strcmp(how, "trace")  ? SECCOMP_RET_TRACE
		       : !strcmp(how, "log")    ? SECCOMP_RET_LOG
		                                : SECCOMP_RET_TRAP);
	say(late ? "set\n" : "ready\n");
	wait_for(late ? "on" : "go");
	if (!strcmp(how, "many"))
		try_many();
	else if (!strcmp(how, "white")) {
		struct timespec before, after;
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &before);
		nanosleep(&(struct timespec){0, 500000000}, NULL);
		syscall(SYS_poll, NULL, 0, 500);
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &after);
		double slept = after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9;
		say("slept for %s\n", slept < 1 ? "too short" : "as long as it wanted");
		result("getppid", syscall(SYS_getppid));
		result("open", syscall(SYS_open, "/", O_RDONLY));
	} else {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGSYS);
		if (!strcmp(how, "blocked"))
			sigprocmask(SIG_BLOCK, &set, NULL);
		result("getppid", syscall(SYS_getppid) > 0);
	}
	return 0;
}
