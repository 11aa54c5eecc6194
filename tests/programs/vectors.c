/* vectors THREADS ROUNDS: computes in vector registers of every width that there is, and in nothing else.
 *
 * Each thread fills them (xmm0-15; ymm0-15 where there is AVX; zmm0-31 and k1-7 where there is AVX-512), mixes them for
 * millions of steps without one call and without touching memory, and makes a digest of what they hold in the end. A bit
 * that is lost, or put into another lane, register or thread, changes it. Prints a line for each thread. Exit status: 0. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REGISTERS = 32, WIDTH = 64, STEPS = 3000000, MOST = 16 };

typedef unsigned char Bank[REGISTERS * WIDTH] __attribute__((aligned(WIDTH)));

#define SIXTEEN "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define THIRTY_TWO SIXTEEN ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
#define CLOBBERED \
	"cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
		"xmm13", "xmm14", "xmm15"
static void with_avx512(Bank bank, uint64_t steps)
{
	uint64_t masks[8];
	for (int i = 0; i < 8; i++)
		masks[i] = 0x0123456789abcdefull * (uint64_t)(2 * i + 1);
	__asm__ volatile(
		".irp n," THIRTY_TWO "\n\tvmovdqu64 \\n*64(%[bank]), %%zmm\\n\n\t.endr\n\t"
		".irp n,1,2,3,4,5,6,7\n\tkmovq \\n*8(%[masks]), %%k\\n\n\t.endr\n"
		"1:\t.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"
		"vpaddq %%zmm31, %%zmm\\n, %%zmm\\n\n\tvprolq $\\n+3, %%zmm\\n, %%zmm\\n\n\t"
		"vpxorq %%zmm\\n, %%zmm30, %%zmm30 %{%%k1%}\n\t.endr\n\t"
		".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n\t"
		"vpaddq %%zmm30, %%zmm\\n, %%zmm\\n %{%%k2%}\n\tvpxorq %%zmm\\n, %%zmm31, %%zmm31\n\t.endr\n\t"
		"vpaddq %%zmm15, %%zmm30, %%zmm30\n\tvpermq $0x93, %%zmm15, %%zmm15\n\tvshufi64x2 $0x93, %%zmm31, %%zmm31, %%zmm31\n\t"
		"kaddq %%k1, %%k3, %%k1\n\tkxorq %%k2, %%k4, %%k2\n\t"
		"kaddq %%k5, %%k3, %%k3\n\tkaddq %%k6, %%k4, %%k4\n\tkxorq %%k7, %%k5, %%k5\n\t"
		"dec %[steps]\n\tjnz 1b\n\t"
		".irp n," THIRTY_TWO "\n\tvmovdqu64 %%zmm\\n, \\n*64(%[bank])\n\t.endr\n\t"
		"kmovq %%k1, (%[masks])\n\tkmovq %%k2, 8(%[masks])\n\tkmovq %%k5, 16(%[masks])\n\tvzeroupper"
		: [steps] "+r"(steps)
		: [bank] "r"(bank), [masks] "r"(masks)
		: CLOBBERED);
	for (int i = 0; i < 3; i++)
		for (int byte = 0; byte < 8; byte++)
			bank[i * 8 + byte] ^= (unsigned char)(masks[i] >> byte * 8);
}

static void with_avx(Bank bank, uint64_t steps)
{
	__asm__ volatile(".irp n," SIXTEEN "\n\tvmovdqu \\n*32(%[bank]), %%ymm\\n\n\t.endr\n"
	                 "1:\t.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"
	                 "vxorps %%ymm15, %%ymm\\n, %%ymm\\n\n\tvpermilps $0x39, %%ymm\\n, %%ymm\\n\n\t"
	                 "vshufps $0x93, %%ymm\\n, %%ymm15, %%ymm15\n\t.endr\n\t"
	                 "vperm2f128 $1, %%ymm15, %%ymm15, %%ymm15\n\tdec %[steps]\n\tjnz 1b\n\t"
	                 ".irp n," SIXTEEN "\n\tvmovdqu %%ymm\\n, \\n*32(%[bank])\n\t.endr\n\tvzeroupper"
	                 : [steps] "+r"(steps)
	                 : [bank] "r"(bank)
	                 : CLOBBERED);
}

static void with_sse(Bank bank, uint64_t steps)
{
	__asm__ volatile(".irp n," SIXTEEN "\n\tmovdqu \\n*16(%[bank]), %%xmm\\n\n\t.endr\n"
	                 "1:\t.irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"
	                 "paddq %%xmm15, %%xmm\\n\n\tpshufd $0x39, %%xmm\\n, %%xmm\\n\n\tpxor %%xmm\\n, %%xmm15\n\t.endr\n\t"
	                 "dec %[steps]\n\tjnz 1b\n\t"
	                 ".irp n," SIXTEEN "\n\tmovdqu %%xmm\\n, \\n*16(%[bank])\n\t.endr"
	                 : [steps] "+r"(steps)
	                 : [bank] "r"(bank)
	                 : CLOBBERED);
}

/* Returns the digest of what the registers hold after the steps. */
static uint64_t computed(void (*with)(Bank, uint64_t), unsigned seed, uint64_t steps)
{
	Bank bank;
	uint64_t digest = 14695981039346656037u;
	for (unsigned i = 0; i < sizeof bank; i++)
		bank[i] = (unsigned char)(i * 37 + seed * 11 + i / WIDTH);
	with(bank, steps);
	for (unsigned i = 0; i < sizeof bank; i++)
		digest = (digest ^ bank[i]) * 1099511628211u;
	return digest;
}

static long rounds;
static uint64_t found[MOST][3];

static void *thread(void *number)
{
	unsigned own = (unsigned)(uintptr_t)number;
	for (long round = 0; round < rounds; round++) {
		unsigned seed = own * 1000 + (unsigned)round;
		found[own][0] = found[own][0] * 31 + computed(with_sse, seed, STEPS);
		if (__builtin_cpu_supports("avx"))
			found[own][1] = found[own][1] * 31 + computed(with_avx, seed, STEPS);
		if (__builtin_cpu_supports("avx512bw"))
			found[own][2] = found[own][2] * 31 + computed(with_avx512, seed, STEPS);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[MOST];
	long count = argc == 3 ? atol(argv[1]) : 0;
	if (count < 1 || count > MOST)
		return 64;
	rounds = atol(argv[2]);
	for (long i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, thread, (void *)i);
	for (long i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
		printf("%ld %016lx %016lx %016lx\n", i, found[i][0], found[i][1], found[i][2]);
	}
	return 0;
}
