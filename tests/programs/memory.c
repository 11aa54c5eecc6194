/* memory STEPS: keeps something in every kind of place that a user context has and checks all of it at each step.
 *
 * Anonymous memory, a heap that grows by brk, an area that mremap moves, a private file mapping (one page of it written, the
 * others still the file's), a page without access, a page made read-only, memory given back with MADV_DONTNEED, a deep
 * stack, thread-local storage, the alternate signal stack, and registers: general, x87 control word, MXCSR and vector.
 * Exit status: 0; 3 something is not what it was. */
#define _GNU_SOURCE
#include <fenv.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

static __thread uint64_t thread_local_word = 0x1122334455667788u;
static volatile int faults, faults_on_alternate_stack;
static char *alternate;

static void fail(const char *what, long step)
{
	printf("step %ld: %s\n", step, what);
	fflush(stdout);
	_exit(3);
}

/* Steps over the faulting store (three bytes, see must_fault). No longjmp: only sigreturn gives back the rounding mode,
 * since a handler starts with a fresh floating point state. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	char here;
	(void)signal;
	(void)info;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 3;
	faults++;
	faults_on_alternate_stack += &here >= alternate && &here < alternate + SIGSTKSZ;
}

/* Writing to the address must raise SIGSEGV once, with its handler on the alternate stack. */
static void must_fault(char *address, const char *what, long step)
{
	faults = faults_on_alternate_stack = 0;
	__asm__ volatile("movb $1, (%%rax)" : : "a"(address) : "memory");
	if (faults != 1)
		fail(what, step);
	if (faults_on_alternate_stack != 1)
		fail("a handler ran on the wrong stack", step);
}

/* Computes for `rounds` with values that live in vector and general registers alone; returns their digest. */
static __attribute__((noinline)) uint64_t registers(uint64_t rounds)
{
	uint64_t result;
	uint64_t seed[4] = {3, 5, 7, 11};
	__asm__ volatile("movdqu (%[seed]), %%xmm6\n\tmovdqu 16(%[seed]), %%xmm7\n\tmov $1, %%r12\n\tmov $2, %%r13\n\tmov $3, %%r14\n"
	                 "1:\tpaddq %%xmm6, %%xmm7\n\tpsllq $1, %%xmm6\n\tpxor %%xmm7, %%xmm6\n\tadd %%r12, %%r13\n\txor %%r13, %%r14\n"
	                 "\trol $7, %%r14\n\tadd %%r14, %%r12\n\tdec %[rounds]\n\tjnz 1b\n"
	                 "\tmovq %%xmm6, %%rax\n\tmovq %%xmm7, %%rdx\n\txor %%rdx, %%rax\n\txor %%r12, %%rax\n\txor %%r13, %%rax\n"
	                 : "=a"(result), [rounds] "+r"(rounds)
	                 : [seed] "r"(seed)
	                 : "rdx", "r12", "r13", "r14", "xmm6", "xmm7", "cc", "memory");
	return result;
}

static __attribute__((noinline)) uint64_t deep(int depth, uint64_t carried, uint64_t rounds)
{
	volatile uint64_t frame[512];
	for (int i = 0; i < 512; i++)
		frame[i] = carried + (uint64_t)i;
	uint64_t below = depth ? deep(depth - 1, carried * 3 + 1, rounds) : registers(rounds);
	for (int i = 0; i < 512; i++)
		if (frame[i] != carried + (uint64_t)i)
			fail("a stack frame changed", depth);
	return below;
}

static char *map(size_t size, int protection, int flags, int file)
{
	char *area = mmap(NULL, size, protection, flags, file, 0);
	if (area == MAP_FAILED)
		fail("mmap", -1);
	return area;
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 64;
	long steps = atol(argv[1]);
	unsigned char text[PAGE];

	int file = open("mapped", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (int page = 0; page < PAGES; page++) {
		memset(text, page + 1, sizeof text);
		if (write(file, text, sizeof text) != PAGE)
			fail("write", -1);
	}
	char *private_file = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file);
	char *read_only_file = map(PAGES * PAGE, PROT_READ, MAP_PRIVATE, file);
	close(file);
	private_file[3 * PAGE] = 'w';

	char *no_access = map(PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	char *sealed = map(PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	strcpy(sealed, "sealed");
	mprotect(sealed, PAGE, PROT_READ);
	char *dropped = map(4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	size_t moving_size = PAGE;
	char *moving = map(moving_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	char *heap = sbrk(0);
	size_t heap_size = 0;

	alternate = map(SIGSTKSZ, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	stack_t stack = {.ss_sp = alternate, .ss_size = SIGSTKSZ};
	sigaltstack(&stack, NULL);
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_ONSTACK | SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	fesetround(FE_UPWARD);

	volatile double one = 1.0, three = 3.0;
	double third_rounded_up = one / three;
	uint64_t expected_digest = 0;
	uint64_t digest = 0;
	for (long step = 0; step < steps; step++) {
		for (int page = 0; page < PAGES; page++) {
			char want = page == 3 ? 'w' : (char)(page + 1);
			if (private_file[page * PAGE] != want || private_file[page * PAGE + 1] != (char)(page + 1) ||
			    read_only_file[page * PAGE] != (char)(page + 1))
				fail("a file mapping changed", step);
		}
		must_fault(no_access, "a page without access could be written", step);
		must_fault(sealed, "a read-only page could be written", step);
		must_fault(read_only_file, "a read-only mapping of a file could be written", step);
		if (strcmp(sealed, "sealed"))
			fail("a read-only page changed", step);
		memset(dropped, 0x55, 4 * PAGE);
		madvise(dropped, 4 * PAGE, MADV_DONTNEED);
		for (int i = 0; i < 4 * PAGE; i += 512)
			if (dropped[i])
				fail("memory that was given back came again", step);
		for (size_t i = 0; i < moving_size / PAGE - 1; i++)
			if (moving[i * PAGE] != (char)(i * 7 + 1))
				fail("moved memory changed", step);
		moving[moving_size - PAGE] = (char)((moving_size / PAGE - 1) * 7 + 1);
		if (moving_size < 256 * PAGE) {
			moving = mremap(moving, moving_size, moving_size + PAGE, MREMAP_MAYMOVE);
			if (moving == MAP_FAILED)
				fail("mremap", step);
			moving_size += PAGE;
		}
		for (size_t i = 0; i < heap_size / PAGE; i++)
			if (heap[i * PAGE] != (char)(i * 5 + 3))
				fail("the heap changed", step);
		if (heap_size < 256 * PAGE) {
			if (sbrk(0) != heap + heap_size || sbrk(PAGE) != heap + heap_size)
				fail("the break moved", step);
			heap[heap_size] = (char)(heap_size / PAGE * 5 + 3);
			heap_size += PAGE;
		}
		if (thread_local_word != 0x1122334455667788u + (uint64_t)step)
			fail("thread-local storage changed", step);
		thread_local_word++;
		uint64_t once = deep(40, 17, 3000000);
		if (step == 0)
			expected_digest = once;
		if (once != expected_digest)
			fail("registers changed while computing", step);
		digest = digest * 31 + once;
		if (fegetround() != FE_UPWARD || one / three != third_rounded_up)
			fail("the rounding mode changed", step);
	}
	printf("%ld steps, digest %016llx\n", steps, (unsigned long long)digest);
	return 0;
}
