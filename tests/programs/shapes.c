/* shapes FILE: memory, registers and signal state of many shapes, checked again and again without any descriptor.
 *
 * Prints the address of `report` and then only computes and sleeps. report.cycles counts good rounds, report.bad is the
 * line of the first check that failed. report.command: 1 takes the queued signals, 2 unmaps and moves mappings, 3 ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define GAP (1 << 20)

static volatile struct {
	uint64_t cycles, bad, command, signals, sum, spins;
} report;

#define CHECK(condition) \
	do { \
		if (!(condition) && !report.bad) \
			report.bad = __LINE__; \
	} while (0)

static char *none, *only_read, *guarded, *heap, *named, *code, *file, *moved, *lazy, *more, *start, *tail;
static size_t heap_size;
static const char *file_name;

static void fill(char *at, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		at[i] = (char)(i * 31 + seed + (i >> 12));
}

static int filled(const char *at, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		if (at[i] != (char)(i * 31 + seed + (i >> 12)))
			return 0;
	return 1;
}

static char *anonymous(size_t size)
{
	/* Apart from one another, so that each stays a mapping of its own. */
	static uint64_t at = 0x600000000000;
	char *p = mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	at += size + GAP;
	if (p == MAP_FAILED)
		abort();
	return p;
}

static __attribute__((noinline)) unsigned deep(unsigned depth)
{
	volatile char frame[1000];
	frame[0] = (char)depth;
	frame[999] = (char)(depth + 1);
	unsigned below = depth ? deep(depth - 1) : 0;
	CHECK(frame[0] == (char)depth && frame[999] == (char)(depth + 1));
	return below + 1;
}

static volatile sig_atomic_t handled, on_alternate;
static char *alternate;

static void handler(int number)
{
	char here;
	handled += number == SIGUSR1;
	on_alternate += &here >= alternate && &here < alternate + 65536;
}

static void take_signals(void)
{
	sigset_t set;
	siginfo_t info;
	struct timespec now = {0, 0};
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 3);
	sigaddset(&set, SIGUSR2);
	int number;
	while ((number = sigtimedwait(&set, &info, &now)) > 0) {
		report.signals++;
		report.sum = report.sum * 31 + (uint64_t)info.si_value.sival_int + (uint64_t)number;
	}
}

static void reshape(void)
{
	/* What ld.so, allocators and garbage collectors do, and mremap of a file's mapping. */
	munmap(only_read, 2 * PAGE);
	only_read = NULL;
	moved = mremap(file, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x610000000000);
	CHECK(moved == (void *)0x610000000000);
	file = NULL;
	lazy = mmap((void *)0x620000000000, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	fill(lazy + 8 * PAGE, 3 * PAGE, 77);
	mprotect(guarded, PAGE, PROT_READ);
	more = sbrk(300000);
	fill(more, 300000, 8);
	mprotect(moved + PAGE, PAGE, PROT_READ);
	CHECK(mremap(moved, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x618000000000) != MAP_FAILED);
	CHECK(mremap(moved + 3 * PAGE, PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x61a000000000) != MAP_FAILED);
	start = (void *)0x618000000000;
	tail = (void *)0x61a000000000;
}

__attribute__((target("avx2"))) static void *spin(void *unused)
{
	__m256d v = _mm256_set_pd(1, 2, 3, 4), one = _mm256_set1_pd(1.0);
	static __thread uint64_t count;
	(void)unused;
	for (;;) {
		for (int i = 0; i < 20000; i++) {
			v = _mm256_add_pd(v, one);
			__asm__ volatile("" : "+x"(v)); /* stays in the register */
			count++;
		}
		double out[4];
		_mm256_storeu_pd(out, v);
		CHECK(out[0] == 4.0 + (double)count && out[3] == 1.0 + (double)count);
		report.spins = count;
		struct timespec pause = {0, 200000};
		nanosleep(&pause, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	sigset_t set;
	if (argc != 2)
		return 64;
	file_name = argv[1];
	none = anonymous(4 * PAGE);
	fill(none, 4 * PAGE, 1);
	mprotect(none, 4 * PAGE, PROT_NONE);
	only_read = anonymous(8 * PAGE);
	fill(only_read, 8 * PAGE, 2);
	mprotect(only_read, 8 * PAGE, PROT_READ);
	guarded = anonymous(3 * PAGE);
	fill(guarded + PAGE, PAGE, 3);
	mprotect(guarded, PAGE, PROT_NONE);
	mprotect(guarded + 2 * PAGE, PAGE, PROT_NONE);
	named = anonymous(2 * PAGE);
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named, 2 * PAGE, "shapes");
	madvise(named, 2 * PAGE, MADV_DONTDUMP);
	fill(named, 2 * PAGE, 4);
	heap = sbrk(0);
	sbrk(200000);
	heap_size = 200000;
	fill(heap, heap_size, 5);
	int descriptor = open(file_name, O_RDONLY);
	file = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, PAGE);
	close(descriptor);
	fill(file + 2 * PAGE, PAGE, 6);
	code = anonymous(PAGE);
	memcpy(code, "\x8d\x47\x2a\xc3", 4); /* lea 42(%rdi),%eax; ret */
	mprotect(code, PAGE, PROT_READ | PROT_EXEC);
	alternate = anonymous(65536);
	stack_t stack = {.ss_sp = alternate, .ss_size = 65536};
	sigaltstack(&stack, NULL);
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 3);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, spin, NULL);
	pthread_setname_np(pthread_self(), "shapely");
	printf("%p\n", (void *)&report);
	fflush(stdout);
	for (unsigned round = 0; report.command != 3; round++) {
		char name[16];
		stack_t now;
		if (only_read)
			CHECK(filled(only_read, 8 * PAGE, 2));
		CHECK(filled(guarded + PAGE, PAGE, 3));
		CHECK(filled(named, 2 * PAGE, 4));
		CHECK(filled(heap, heap_size, 5));
		CHECK(filled((file ? file : moved) + 2 * PAGE, PAGE, 6));
		if (file)
			CHECK(file[0] == 'B' && file[3 * PAGE] == 'E');
		else
			CHECK(start[0] == 'B' && start[PAGE] == 'C' && tail[0] == 'E' && tail[PAGE] == 'F' && tail[2 * PAGE] == 'G');
		if (more)
			CHECK(filled(more, 300000, 8) && (char *)sbrk(0) >= more + 300000);
		if (lazy)
			CHECK(filled(lazy + 8 * PAGE, 3 * PAGE, 77) && !lazy[0] && !lazy[12 * PAGE]);
		mprotect(none, 4 * PAGE, PROT_READ);
		CHECK(filled(none, 4 * PAGE, 1));
		mprotect(none, 4 * PAGE, PROT_NONE);
		CHECK(((int (*)(int))code)(round) == (int)round + 42);
		CHECK(deep(50 + round % 2000) == 51 + round % 2000);
		prctl(PR_GET_NAME, name);
		CHECK(!strcmp(name, "shapely"));
		sigaltstack(NULL, &now);
		CHECK(now.ss_sp == alternate && now.ss_size == 65536 && now.ss_flags == 0);
		/* raise() trusts a cached thread id, and a copy that is made between these calls has other ids than it asks with. */
		sig_atomic_t before = handled;
		do
			syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
		while (handled == before);
		CHECK(on_alternate == handled);
		if (report.command == 1) {
			take_signals();
			report.command = 0;
		}
		if (report.command == 2) {
			reshape();
			report.command = 0;
		}
		struct timespec pause = {0, 500000};
		nanosleep(&pause, NULL);
		report.cycles++;
	}
	return report.bad ? 3 : 0;
}
