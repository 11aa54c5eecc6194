/* fuzzed SECONDS SEED: makes system calls with numbers and arguments at random, in children that end after a while and are followed by
 * others, and ends with 3 when some were made: what it has said its own calls may have overwritten. What ends a user's processes
 * wherever they are, or starts more of them, is left out. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NUMBERS 470
#define BURST 400 /* calls of a child */

static uint64_t state;
static char *memory;

static uint64_t chance(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static int is_left_out(long number)
{
	static const long out[] = {SYS_kill,
	                           SYS_tkill,
	                           SYS_tgkill,
	                           SYS_rt_sigqueueinfo,
	                           SYS_rt_tgsigqueueinfo,
	                           SYS_pidfd_send_signal,
	                           SYS_fork,
	                           SYS_vfork,
	                           SYS_clone,
	                           435 /* clone3 */,
	                           SYS_exit,
	                           SYS_exit_group,
	                           SYS_pause,
	                           SYS_rt_sigreturn,
	                           SYS_execve,
	                           SYS_execveat,
	                           SYS_reboot,
	                           SYS_setsid,
	                           SYS_setpgid,
	                           SYS_prlimit64,
	                           SYS_setrlimit};
	for (size_t i = 0; i < sizeof out / sizeof *out; i++)
		if (number == out[i])
			return 1;
	return 0;
}

static uint64_t argument(void)
{
	static const uint64_t edges[] = {0,     1,          2,          3,          4,          8,     4095,        4096,
	                                 65536, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 47, ~0ull, (uint64_t)-2};
	switch (chance() % 8) {
	case 0:
		return chance();
	case 1:
		return edges[chance() % (sizeof edges / sizeof *edges)];
	case 2:
	case 3:
		return chance() % 16;
	case 4:
		return 1ull << chance() % 32;
	default:
		return (uint64_t)memory + (chance() % 2 ? chance() % 65536 : chance() % 16 * 4096);
	}
}

static void fill(void)
{
	static const char *const names[] = {"file",     "directory",   "/proc/self/mem", "/proc/1/root", "/proc/sys/kernel/core_pattern",
	                                    "/dev/mem", "/etc/shadow", "/sys/fs/cgroup", "..",           "/"};
	for (int i = 0; i < 16; i++) {
		char *page = memory + i * 4096;
		for (int k = 0; k < 8; k++)
			((uint64_t *)page)[chance() % 512] = argument();
		if (i % 2)
			strcpy(page, names[chance() % (sizeof names / sizeof *names)]);
	}
}

static void burst(unsigned *made)
{
	for (int i = 0; i < BURST; i++) {
		long number = (long)(chance() % NUMBERS);
		if (is_left_out(number))
			continue;
		if (!(i % 16))
			fill();
		syscall(number, argument(), argument(), argument(), argument(), argument(), argument());
		__atomic_add_fetch(made, 1, __ATOMIC_RELAXED);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 64;
	time_t end = time(NULL) + atoi(argv[1]);
	unsigned *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned children = 0;
	memory = mmap(NULL, 32 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	printf("ready\n");
	fflush(stdout);
	while (time(NULL) < end) {
		chance();
		pid_t child = fork();
		if (!child) {
			state += children * 0x9e3779b97f4a7c15ull;
			burst(made);
		}
		if (child > 0) {
			children++;
			/* It may have forbidden itself to hear of an alarm, or wait for what never comes. */
			for (int ms = 0; !waitpid(child, NULL, WNOHANG); ms++) {
				if (ms == 500)
					kill(child, SIGKILL);
				usleep(1000);
			}
		}
	}
	return children ? 3 : 1;
}
