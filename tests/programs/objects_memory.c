/* Scenarios about memory: see objects.h. */
#include "objects.h"

#include <linux/membarrier.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define PAGE 4096
#define MAP(pages, protection, flags) ((char *)DONE(mmap(NULL, (pages) * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | (flags), -1, 0)))
#define BOTH (PROT_READ | PROT_WRITE)

static sigjmp_buf back;
static volatile sig_atomic_t fault_code;
static void *volatile fault_address;

static void faulted(int number, siginfo_t *info, void *context)
{
	(void)context;
	fault_code = info->si_code;
	fault_address = info->si_addr;
	siglongjmp(back, number);
}

/* Reports the result of a write there: a fault is reported, and followed by a step. */
static void touch(const char *what, volatile char *at)
{
	struct sigaction action = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO}, before;
	sigaction(SIGSEGV, &action, &before);
	int number = sigsetjmp(back, 1);
	if (!number)
		*at = 'x';
	step();
	if (number)
		show("%s: signal %d, code %d, %s", what, number, (int)fault_code, fault_address == at ? "there" : "elsewhere");
	else
		show("%s: written", what);
	sigaction(SIGSEGV, &before, NULL);
}

static unsigned sum(const char *at, size_t size)
{
	unsigned sum = 1;
	for (size_t i = 0; i < size; i++)
		sum = sum * 31 + (unsigned char)at[i];
	return sum;
}

static void fill(char *at, size_t size, unsigned seed)
{
	for (size_t i = 0; i < size; i++)
		at[i] = (char)(i * 7 + seed + (i >> 12));
}

SCENARIO(anonymous_memory)
{
	char *map = MAP(40, BOTH, 0);
	fill(map, 20 * PAGE, 1);
	CALL(munmap(map + 5 * PAGE, 3 * PAGE));
	DONE(mmap(map + 6 * PAGE, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	show("  %u %u %u", sum(map, 5 * PAGE), sum(map + 6 * PAGE, PAGE), sum(map + 8 * PAGE, 32 * PAGE));
	touch("the hole", map + 5 * PAGE);
	char *moved = (char *)DONE(mremap(map + 8 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE));
	show("  %u", sum(moved, 8 * PAGE));
	touch("what was moved away", map + 8 * PAGE);
}

SCENARIO(protection)
{
	char *map = MAP(4, BOTH, 0);
	fill(map, 4 * PAGE, 2);
	CALL(mprotect(map + PAGE, PAGE, PROT_READ));
	CALL(mprotect(map + 2 * PAGE, PAGE, PROT_NONE));
	touch("only read", map + PAGE);
	touch("no access", map + 2 * PAGE);
	CALL(mprotect(map + 2 * PAGE, PAGE, BOTH));
	show("  %u", sum(map, 4 * PAGE));
	touch("access again", map + 2 * PAGE);
}

SCENARIO(data_segment)
{
	char *start = (char *)DONE(sbrk(0)), *end = start + 5 * PAGE;
	CALL(brk(end));
	fill(start, 5 * PAGE, 3);
	IS(DONE(sbrk(0)) == (long)end);
	CALL(brk(start + 2 * PAGE));
	show("  %u", sum(start, 2 * PAGE));
	touch("beyond", start + 3 * PAGE);
	CALL(brk(end));
	show("  %u", sum(start, 5 * PAGE));
}

SCENARIO(advice)
{
	char *map = MAP(8, BOTH, 0);
	fill(map, 8 * PAGE, 4);
	CALL(madvise(map + PAGE, PAGE, MADV_DONTNEED));
	CALL(madvise(map + 2 * PAGE, PAGE, MADV_WIPEONFORK));
	CALL(madvise(map + 3 * PAGE, PAGE, MADV_DONTFORK));
	CALL(madvise(map + 4 * PAGE, PAGE, MADV_DONTDUMP));
	CALL(madvise(map + 5 * PAGE, PAGE, MADV_NOHUGEPAGE));
	show("  %d %d %d", map[PAGE], map[2 * PAGE + 5], map[3 * PAGE + 5]);
	reaped(CHILD(map[2 * PAGE + 5] == 0 && map[7 * PAGE + 5] != 0));
	reaped(CHILD(map[3 * PAGE + 5]));
	CALL(madvise(map, PAGE, -7));
}

SCENARIO(locked_memory)
{
	char *map = MAP(6, BOTH, 0);
	unsigned char resident[6];
	CALL(mlock(map, 2 * PAGE));
	CALL(mlock2(map + 3 * PAGE, PAGE, MLOCK_ONFAULT));
	map[5 * PAGE] = 1;
	CALL(mincore(map, 6 * PAGE, resident));
	show("  %d %d, %d", resident[0] & 1, resident[1] & 1, resident[5] & 1);
	CALL(madvise(map, PAGE, MADV_DONTNEED));
	CALL(munlock(map, PAGE));
	CALL(madvise(map, PAGE, MADV_DONTNEED));
	CALL(munlockall());
}

SCENARIO(guards_and_names)
{
	char *stack = MAP(64, BOTH, MAP_NORESERVE | MAP_STACK);
	CALL(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, stack, 64 * PAGE, "objects"));
	CALL(mprotect(stack, PAGE, PROT_NONE));
	fill(stack + 60 * PAGE, 4 * PAGE, 5);
	touch("the guard", stack + 100);
	char *down = MAP(2, BOTH, MAP_GROWSDOWN);
	touch("what grows down", down + PAGE);
	show("  %u", sum(stack + PAGE, 63 * PAGE));
	CALL(munmap(stack, 64 * PAGE));
}

SCENARIO(file_mapped_private)
{
	int fd = CALL(open("mapped", O_RDWR | O_CREAT, 0600));
	for (int i = 0; i < 3; i++) {
		char page[PAGE];
		fill(page, PAGE, 6 + (unsigned)i);
		if (write(fd, page, PAGE) != PAGE)
			exit(71);
	}
	char *map = (char *)DONE(mmap(NULL, 3 * PAGE, BOTH, MAP_PRIVATE, fd, 0));
	CALL(close(fd));
	memcpy(map + PAGE, "written here only", 18);
	step();
	show("  %u %u", sum(map, PAGE), sum(map + PAGE, 2 * PAGE));
	CALL(madvise(map + PAGE, PAGE, MADV_DONTNEED));
	show("  %u", sum(map, 3 * PAGE));
	CALL(unlink("mapped"));
	CALL(mprotect(map + 2 * PAGE, PAGE, PROT_READ));
	show("  %u", sum(map, 3 * PAGE));
	touch("only read", map + 2 * PAGE);
}

SCENARIO(file_mapped_to_read)
{
	char page[PAGE];
	int fd = CALL(open("shown", O_RDWR | O_CREAT, 0600));
	fill(page, PAGE, 9);
	CALL(write(fd, page, PAGE));
	CALL(close(fd));
	fd = CALL(open("shown", O_RDONLY));
	char *map = (char *)DONE(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0));
	show("  %u", sum(map, PAGE));
	touch("only read", map);
	CALL(mprotect(map, PAGE, BOTH));
	CALL(msync(map, PAGE, MS_SYNC));
	show("  %u", sum(map, PAGE));
	CALL(munmap(map, PAGE));
}

SCENARIO(file_mapped_to_write)
{
	char text[8] = "";
	int fd = CALL(open("written", O_RDWR | O_CREAT, 0600));
	CALL(ftruncate(fd, PAGE));
	char *map = (char *)DONE(mmap(NULL, PAGE, BOTH, MAP_SHARED, fd, 0));
	memcpy(map, "through", 7);
	CALL(pread(fd, text, 7, 0));
	show("  %s", text);
	CALL(pwrite(fd, "back", 4, 100));
	show("  %.4s", map + 100);
	CALL(munmap(map, PAGE));
	CALL(pread(fd, text, 4, 100));
	show("  %s", text);
}

SCENARIO(memory_shared_with_a_child)
{
	_Atomic int *shared = (void *)DONE(mmap(NULL, PAGE, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	*shared = 20;
	reaped(CHILD((atomic_fetch_add(shared, 3), *shared)));
	show("  %d", *shared);
	CALL(munmap((void *)shared, PAGE));
	DONE(getpid());
}

SCENARIO(deep_stack)
{
	volatile char *deep = __builtin_alloca(600000);
	fill((char *)deep, 600000, 8);
	step();
	show("  %u", sum((char *)deep, 600000));
	volatile char *deeper = __builtin_alloca(1000000);
	deeper[0] = 5;
	step();
	show("  %u, %d", sum((char *)deep, 600000), deeper[0]);
	DONE(getpid());
	show("  %u, %d", sum((char *)deep, 600000), deeper[0]);
	step();
	show("  %u, %d", sum((char *)deep, 600000), deeper[0]);
}

SCENARIO(generated_code)
{
	static const unsigned char two[] = {0xb8, 2, 0, 0, 0, 0xc3}; /* mov $2, %eax; ret */
	unsigned char *code = (unsigned char *)MAP(1, BOTH, 0);
	memcpy(code, two, sizeof two);
	CALL(mprotect(code, PAGE, PROT_READ | PROT_EXEC));
	CALL(((int (*)(void))code)());
	CALL(mprotect(code, PAGE, BOTH));
	code[1] = 3;
	CALL(mprotect(code, PAGE, PROT_EXEC));
	CALL(((int (*)(void))code)());
}

SCENARIO(protection_keys)
{
	char *map = MAP(1, BOTH, 0);
	long key = CALL(pkey_alloc(0, 0));
	if (key < 0) /* this processor has none */
		return;
	CALL(pkey_mprotect(map, PAGE, BOTH, (int)key));
	touch("with the key", map);
	CALL(pkey_set((int)key, PKEY_DISABLE_WRITE));
	touch("the key only reads", map);
	CALL(pkey_get((int)key));
	CALL(pkey_alloc(0, 0));
	CALL(pkey_free((int)key));
}

SCENARIO(droppable_memory)
{
	char *map = (char *)DONE(mmap(NULL, 4 * PAGE, BOTH, MAP_ANONYMOUS | 8 /* MAP_DROPPABLE, Linux 6.11 */, -1, 0));
	if (map == MAP_FAILED)
		return;
	fill(map, 4 * PAGE, 3);
	CALL(mprotect(map, PAGE, PROT_READ));
	reaped(CHILD(map[PAGE + 5] == 0));
	show("  %d", map[2 * PAGE + 7]);
	CALL(munmap(map, 4 * PAGE));
}

SCENARIO(memory_barrier)
{
	CALL(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
	CALL(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
	for (int i = 0; i < 4; i++)
		CALL(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

SCENARIO(no_huge_pages)
{
	CALL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	for (int i = 0; i < 4; i++)
		CALL(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
}
