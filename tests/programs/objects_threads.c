/* Scenarios about registers, threads and what a program was begun with: see objects.h. */
#include "objects.h"

#include <asm/prctl.h>
#include <elf.h>
#include <fenv.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <xmmintrin.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

static unsigned char before[32 * 64] __attribute__((aligned(64))), after[32 * 64] __attribute__((aligned(64)));

/* A step in assembler, so that nothing but the kernel comes between `load` and `store`, which have to leave rax, rdi, rsi and rdx
 * alone; %[from] and %[to] are what they load from and store to. Leaves what read() returned in `got`. */
#define STEP_IN_ASSEMBLER(load, store) \
	__asm__ volatile(load "\n\tsyscall\n\tmov $201, %%edi\n\tmov $1, %%edx\n\txor %%eax, %%eax\n\tstc\n\tsyscall\n\t" store \
	                 : "=a"(got), "+D"(ask), "+d"(length) \
	                 : "0"(1L), "S"(text), [from] "r"(before), [to] "r"(after) \
	                 : "memory", "cc", "rcx", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
	                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
#define SIXTEEN "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define THIRTY_TWO SIXTEEN ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
#define LOAD(numbers, move, size, name) ".irp n," numbers "\n\t" move " \\n*" size "(%[from]), %%" name "\\n\n\t.endr"
#define STORE(numbers, move, size, name) ".irp n," numbers "\n\t" move " %%" name "\\n, \\n*" size "(%[to])\n\t.endr"
#define REGISTERS(title, condition, bytes, numbers, move, size, name) \
	SCENARIO(title) \
	{ \
		for (unsigned round = 0; round < 4 && (condition); round++) { \
			char text[16]; \
			long ask = ASK, length = snprintf(text, sizeof text, "%d\n", (int)getpid()), got; \
			for (unsigned i = 0; i < (bytes); i++) \
				before[i] = (unsigned char)(i * 37 + round * 11 + 5); \
			STEP_IN_ASSEMBLER(LOAD(numbers, move, size, name), STORE(numbers, move, size, name)); \
			show("%s", memcmp(before, after, bytes) ? "changed" : got == 1 || !steps_wanted ? "kept" : "no step"); \
		} \
	}

REGISTERS(sse_registers, 1, 256, SIXTEEN, "movups", "16", "xmm")
REGISTERS(avx_registers, __builtin_cpu_supports("avx"), 512, SIXTEEN, "vmovups", "32", "ymm")
REGISTERS(avx512_registers, __builtin_cpu_supports("avx512f"), 2048, THIRTY_TWO, "vmovups", "64", "zmm")
REGISTERS(mask_registers, __builtin_cpu_supports("avx512bw"), 64, "0,1,2,3,4,5,6,7", "kmovq", "8", "k")

SCENARIO(general_registers)
{
	for (int round = 0; round < 4; round++) {
		char text[16], carry;
		long ask = ASK, length = snprintf(text, sizeof text, "%d\n", (int)getpid()), got;
		for (unsigned i = 0; i < 64; i++)
			before[i] = (unsigned char)(i * 41 + (unsigned)round);
		__asm__ volatile("mov 0(%[from]), %%rbx\n\tmov 8(%[from]), %%r8\n\tmov 16(%[from]), %%r9\n\tmov 24(%[from]), %%r10\n\t"
		                 "mov 32(%[from]), %%r12\n\tmov 40(%[from]), %%r13\n\tmov 48(%[from]), %%r14\n\tmov 56(%[from]), %%r15\n\t"
		                 "syscall\n\tmov $201, %%edi\n\tmov $1, %%edx\n\txor %%eax, %%eax\n\tstc\n\tsyscall\n\tsetc %%cl\n\t"
		                 "lea after(%%rip), %%r11\n\t"
		                 "mov %%rbx, 0(%%r11)\n\tmov %%r8, 8(%%r11)\n\tmov %%r9, 16(%%r11)\n\tmov %%r10, 24(%%r11)\n\t"
		                 "mov %%r12, 32(%%r11)\n\tmov %%r13, 40(%%r11)\n\tmov %%r14, 48(%%r11)\n\tmov %%r15, 56(%%r11)"
		                 : "=a"(got), "+D"(ask), "+d"(length), "=c"(carry)
		                 : "0"(1L), "S"(text), [from] "3"(before)
		                 : "memory", "cc", "rbx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15");
		show("%s, carry %d", memcmp(before, after, 64) ? "changed" : "kept", carry);
	}
}

static sigjmp_buf back;

static void divided(int number)
{
	siglongjmp(back, number);
}

SCENARIO(floating_point_state)
{
	double pi, one;
	volatile double zero = 0, three = 3, tiny = 5e-324;
	fesetround(FE_UPWARD);
	feclearexcept(FE_ALL_EXCEPT);
	feraiseexcept(FE_UNDERFLOW);
	_mm_setcsr(_mm_getcsr() | 0x8040); /* to zero what is denormal */
	__asm__ volatile("fldpi\n\tfld1");
	step();
	__asm__ volatile("fstpl %0\n\tfstpl %1" : "=m"(one), "=m"(pi));
	show("%.17g %.17g, rounding %#x, raised %#x", pi, one, (unsigned)fegetround(), (unsigned)fetestexcept(FE_ALL_EXCEPT));
	step();
	show("%a %a, mxcsr %#x", 1 / three, tiny + tiny, _mm_getcsr());
	feenableexcept(FE_DIVBYZERO);
	step();
	signal(SIGFPE, divided);
	int number = sigsetjmp(back, 1);
	step();
	if (!number)
		show("%g", 1 / zero);
	show("signal %d", number);
}

SCENARIO(segment_bases)
{
	unsigned long fs = 0, gs = 0, value = 0;
	static unsigned long words[2] = {77, 78};
	CALL(syscall(SYS_arch_prctl, ARCH_GET_FS, &fs));
	IS(fs == (unsigned long)pthread_self());
	CALL(syscall(SYS_arch_prctl, ARCH_SET_GS, words));
	for (int i = 0; i < 3; i++) {
		step();
		__asm__ volatile("mov %%gs:8, %0" : "=r"(value));
		show("  %lu", value++);
	}
	CALL(syscall(SYS_arch_prctl, ARCH_GET_GS, &gs));
	IS(gs == (unsigned long)words);
}

static __thread int own = 5;
static pthread_mutex_t mutex;
static pthread_barrier_t barrier;

static void *threaded(void *argument)
{
	volatile int on_stack[1000];
	own = 6;
	prctl(PR_SET_NAME, "second");
	for (int i = 0; i < 1000; i++)
		on_stack[i] = i;
	step();
	show("second: %d, %d", own++, on_stack[999]);
	step();
	show("second: %d", own);
	pthread_barrier_wait(&barrier);
	*(int *)argument = own + on_stack[7];
	return argument;
}

SCENARIO(thread)
{
	pthread_t thread;
	int given = 0;
	pthread_barrier_init(&barrier, NULL, 2);
	DONE(syscall(SYS_gettid));
	pthread_create(&thread, NULL, threaded, &given);
	pthread_barrier_wait(&barrier);
	step();
	void *result = NULL;
	pthread_join(thread, &result);
	show("first: %d, %d", own, given);
	IS(result == &given);
	step();
	pthread_create(&thread, NULL, threaded, &given);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, &result);
	step();
	show("first: %d, %d", own, given);
}

static void *masked(void *argument)
{
	sigset_t set, waiting;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	step();
	pthread_kill(pthread_self(), SIGUSR2);
	step();
	sigpending(&waiting);
	show("second: %d waits", sigismember(&waiting, SIGUSR2));
	int number = 0;
	CALL(sigwait(&set, &number));
	show("second: %d", number);
	pthread_barrier_wait(&barrier);
	return argument;
}

SCENARIO(signals_of_a_thread)
{
	pthread_t thread;
	sigset_t set;
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, masked, NULL);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
	CALL(pthread_sigmask(SIG_BLOCK, NULL, &set));
	IS(!sigismember(&set, SIGUSR2));
	CALL(sigpending(&set));
	IS(!sigismember(&set, SIGUSR2));
}

static void *dies_with_it(void *argument)
{
	pthread_mutex_lock(&mutex);
	step();
	return argument;
}

SCENARIO(robust_mutex)
{
	void *head = NULL, *again = NULL;
	size_t size = 0;
	pthread_t thread;
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&mutex, &attributes);
	CALL(syscall(SYS_get_robust_list, 0, &head, &size));
	CALL(syscall(SYS_get_robust_list, 0, &again, &size));
	IS(head && head == again);
	pthread_create(&thread, NULL, dies_with_it, NULL);
	pthread_join(thread, NULL);
	IS(CALL(pthread_mutex_trylock(&mutex)) == EOWNERDEAD);
	CALL(pthread_mutex_consistent(&mutex));
	CALL(pthread_mutex_unlock(&mutex));
	CALL(pthread_mutex_lock(&mutex));
	CALL(pthread_mutex_trylock(&mutex));
}

SCENARIO(futex)
{
	static int word = 3;
	struct timespec short_time = {0, 20000000};
	CALL(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 4, &short_time));
	CALL(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 3, &short_time));
	CALL(syscall(SYS_futex, &word, FUTEX_WAKE, 1));
	word = 0;
	CALL(syscall(SYS_futex, &word, FUTEX_LOCK_PI, 0, NULL));
	IS((word & FUTEX_TID_MASK) == getpid());
	CALL(syscall(SYS_futex, &word, FUTEX_TRYLOCK_PI, 0, NULL));
	CALL(syscall(SYS_futex, &word, FUTEX_UNLOCK_PI, 0, NULL));
	show("  %d", word);
}

SCENARIO(arguments_and_environment)
{
	static unsigned char random[16];
	memcpy(random, (void *)getauxval(AT_RANDOM), 16);
	CALL(setenv("OBJECTS_MORE", "more", 1));
	show("  %s, %s", program_invocation_short_name, getenv("OBJECTS_MORE"));
	step();
	IS(!memcmp(random, (void *)getauxval(AT_RANDOM), 16));
	IS(getauxval(AT_PAGESZ) == 4096 && getauxval(AT_UID) == getuid());
	step();
	IS(!memcmp((void *)getauxval(AT_SYSINFO_EHDR), ELFMAG, 4));
	step();
	show("  %s", strrchr((char *)getauxval(AT_EXECFN), '/'));
	step();
	show("  %s", getenv("OBJECTS_MORE"));
}

SCENARIO(processor)
{
	cpu_set_t set, again;
	CPU_ZERO(&set);
	IS(DONE(sched_getaffinity(0, sizeof set, &set)) >= 0 && CPU_COUNT(&set) > 0);
	CALL(sched_setaffinity(0, sizeof set, &set));
	CALL(sched_getaffinity(0, sizeof again, &again));
	IS(CPU_EQUAL(&set, &again));
	for (int i = 0; i < 3; i++) {
		step();
#ifdef RSEQ_SIG
		struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
		IS(__rseq_size == 0 || (int)area->cpu_id >= 0);
#endif
		IS(sched_getcpu() >= 0);
	}
}

SCENARIO(clocks)
{
	const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC_COARSE};
	struct timespec last[4] = {{0}};
	int back_in_time = 0, far = 0;
	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < 4; i++) {
			struct timespec now;
			if (clock_gettime(clocks[i], &now))
				show("  no clock %d", i);
			double ahead = (double)(now.tv_sec - last[i].tv_sec) + 1e-9 * (double)(now.tv_nsec - last[i].tv_nsec);
			back_in_time += ahead < (i ? 0 : -0.1);
			far += round && ahead > 60;
			last[i] = now;
		}
		step();
	}
	show("  %d back, %d far ahead", back_in_time, far);
}
