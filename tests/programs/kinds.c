/* kinds KIND [NUMBER [REST]]: processes of many kinds, each of which checks all that it has, again and again, while it is moved about.
 *
 *   threads   NUMBER threads, each with a megabyte and registers of its own
 *   maps      NUMBER mappings of a page each
 *   guards    blocks between pages that must not be touched, and still must not
 *   advised   huge, locked and otherwise advised memory
 *   altstack  runs in a signal handler, on its alternate stack
 *   pending   signals that wait, with their values
 *   sleep     sleeps of 300 ms, none shorter
 *   lends     when there is a file `lend`, a child has the memory (vfork) until there is a file `back`
 *   writes    a thread writes a megabyte to the fifo `fifo`, and says how much of it was taken
 *   beats     writes to NUMBER megabytes; a thread adds one to the word at BEATS every millisecond, and asks nothing of home: so others
 *             see which copy of the process runs
 *
 * A line to the file `lines` for each round, and a rest of REST ms, until there is a file `enough`. Exit status: 0; 3 something is not as
 * it was, said with the line of this file; 4 a call failed that never fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BEATS ((void *)0x200000000)
enum { PAGE = 4096, MEGABYTE = 1 << 20 };

static int lines, number, rest;
static volatile long rounds;

#define MUST(good) \
	do { \
		if (!(good)) { \
			printf("line %d: %s\n", __LINE__, strerror(errno)); \
			exit(4); \
		} \
	} while (0)
#define SAME(good) \
	do { \
		if (!(good)) { \
			printf("line %d, round %ld: not as it was\n", __LINE__, rounds); \
			exit(3); \
		} \
	} while (0)

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t word = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
	word ^= word >> 29;
	return word * 0x94d049bb133111ebu;
}

static void fill(void *memory, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size / 8; i++)
		((uint64_t *)memory)[i] = mix(seed, i);
}

static void check(const void *memory, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size / 8; i++)
		SAME(((const uint64_t *)memory)[i] == mix(seed, i));
}

static void *map(size_t size, int prot)
{
	void *memory = mmap(NULL, size, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED);
	return memory;
}

/* Says that a round is over. Whether there is to be another. */
static int again(void)
{
	rounds++;
	MUST(dprintf(lines, "%ld\n", rounds) > 0);
	usleep(rest * 1000);
	return access("enough", F_OK) != 0;
}

/* ---- threads ---- */

static pthread_barrier_t barrier;
static volatile int over;
static __thread uint64_t own;

static void *thread(void *argument)
{
	uint64_t seed = (uintptr_t)argument, turn = 0;
	char *memory = map(MEGABYTE, PROT_READ | PROT_WRITE);
	volatile double sum = 0;

	own = seed;
	fill(memory, MEGABYTE, seed);
	while (!over) {
		check(memory, MEGABYTE, seed + turn);
		turn++;
		fill(memory, MEGABYTE, seed + turn);
		sum += 0.5;
		SAME(sum == 0.5 * turn && own == seed);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[256];

	MUST(number <= 256 && !pthread_barrier_init(&barrier, NULL, number + 1));
	for (int i = 0; i < number; i++)
		MUST(!pthread_create(&all[i], NULL, thread, (void *)(uintptr_t)(1000 * (i + 1))));
	do {
		pthread_barrier_wait(&barrier);
		over = !again();
		pthread_barrier_wait(&barrier);
	} while (!over);
	for (int i = 0; i < number; i++)
		MUST(!pthread_join(all[i], NULL));
}

/* ---- maps ---- */

static void maps(void)
{
	char **pages = calloc(number, sizeof *pages);

	MUST(pages);
	char *all = map((size_t)number * PAGE, PROT_READ | PROT_WRITE);
	for (int i = 0; i < number; i++) { /* neighbours differ: none is joined with another */
		pages[i] = all + (size_t)i * PAGE;
		fill(pages[i], PAGE, i);
		MUST(!mprotect(pages[i], PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE));
	}
	do
		for (int i = 0; i < number; i++)
			check(pages[i], PAGE, i);
	while (again());
}

/* ---- guards ---- */

static sigjmp_buf back;
static void *volatile touched;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	touched = info->si_addr;
	siglongjmp(back, 1);
}

static void faults(volatile char *address)
{
	touched = NULL;
	if (!sigsetjmp(back, 1)) {
		*address = 1;
		SAME(0);
	}
	SAME(touched == address);
}

static void guards(void)
{
	enum { BLOCKS = 16, BLOCK = 64 * PAGE };
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	char *all = map(BLOCKS * (BLOCK + 2 * PAGE), PROT_NONE);

	MUST(!sigaction(SIGSEGV, &action, NULL));
	for (int i = 0; i < BLOCKS; i++) {
		char *block = all + (size_t)i * (BLOCK + 2 * PAGE) + PAGE;
		MUST(!mprotect(block, BLOCK, PROT_READ | PROT_WRITE));
		fill(block, BLOCK, i);
	}
	do
		for (int i = 0; i < BLOCKS; i++) {
			char *block = all + (size_t)i * (BLOCK + 2 * PAGE) + PAGE;
			check(block, BLOCK, i);
			faults(block - 1);
			faults(block + BLOCK);
		}
	while (again());
}

/* ---- advised ---- */

static void advised(void)
{
	enum { HUGE = 8 * MEGABYTE };
	static const int advice[] = {MADV_DONTFORK, MADV_DONTDUMP, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NOHUGEPAGE, MADV_WIPEONFORK};
	enum { KINDS = sizeof advice / sizeof *advice };
	char *huge = map(2 * HUGE, PROT_READ | PROT_WRITE), *others[KINDS], *locked = map(MEGABYTE, PROT_READ | PROT_WRITE);
	int status;

	huge = (char *)(((uintptr_t)huge + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	MUST(!madvise(huge, HUGE, MADV_HUGEPAGE) || errno == EINVAL);
	fill(huge, HUGE, 1);
	MUST(!mlock(locked, MEGABYTE) || errno == ENOMEM || errno == EPERM);
	fill(locked, MEGABYTE, 2);
	for (int i = 0; i < KINDS; i++) {
		map(PAGE, PROT_NONE); /* between them, so that none is joined with another */
		others[i] = map(MEGABYTE, PROT_READ | PROT_WRITE);
		MUST(!madvise(others[i], MEGABYTE, advice[i]) || errno == EINVAL);
		fill(others[i], MEGABYTE, 10 + i);
	}
	do {
		check(huge, HUGE, 1);
		check(locked, MEGABYTE, 2);
		for (int i = 0; i < KINDS; i++)
			check(others[i], MEGABYTE, 10 + i);
		if (rounds % 20)
			continue;
		pid_t child = fork();
		MUST(child >= 0);
		if (!child) {
			check(locked, MEGABYTE, 2);
			for (int i = 0; i < MEGABYTE; i++)
				SAME(!others[KINDS - 1][i]); /* it is wiped in a child */
			_exit(0);
		}
		MUST(waitpid(child, &status, 0) == child);
		SAME(status == 0);
	} while (again());
}

/* ---- altstack ---- */

static char *stack;
static volatile int handled;

static void on_stack(int signal)
{
	char here[32 * 1024];

	(void)signal;
	SAME(here >= stack && here + sizeof here <= stack + MEGABYTE);
	fill(here, sizeof here, 5);
	do {
		stack_t now;
		check(here, sizeof here, 5);
		MUST(!sigaltstack(NULL, &now));
		SAME(now.ss_flags & SS_ONSTACK && now.ss_sp == stack && now.ss_size == MEGABYTE);
	} while (again());
	handled = 1;
}

static void altstack(void)
{
	char here[32 * 1024];
	struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
	stack = map(MEGABYTE, PROT_READ | PROT_WRITE);
	stack_t other = {.ss_sp = stack, .ss_size = MEGABYTE};

	fill(here, sizeof here, 6);
	MUST(!sigaltstack(&other, NULL) && !sigaction(SIGUSR1, &action, NULL));
	raise(SIGUSR1);
	SAME(handled);
	check(here, sizeof here, 6);
}

/* ---- pending ---- */

static void pending(void)
{
	sigset_t blocked, waiting;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGRTMIN);
	sigaddset(&blocked, SIGRTMIN + 1);
	MUST(!sigprocmask(SIG_BLOCK, &blocked, NULL));
	raise(SIGUSR1);
	for (int i = 0; i < 3; i++)
		MUST(!sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 100 + i}));
	MUST(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_ptr = stack}));
	do {
		MUST(!sigpending(&waiting));
		SAME(sigismember(&waiting, SIGUSR1) && sigismember(&waiting, SIGRTMIN) && sigismember(&waiting, SIGRTMIN + 1));
		SAME(!sigismember(&waiting, SIGUSR2));
		usleep(1000);
	} while (again());
	for (int i = 0; i < 5; i++) {
		siginfo_t info;
		struct timespec none = {0, 0};
		int got = sigtimedwait(&blocked, &info, &none);
		SAME(got == (i == 0 ? SIGUSR1 : i < 4 ? SIGRTMIN : SIGRTMIN + 1));
		SAME(info.si_pid == getpid() && info.si_uid == getuid());
		SAME(i == 0 || i == 4 || (info.si_value.sival_int == 100 + i - 1 && info.si_code == SI_QUEUE));
	}
}

/* ---- sleep ---- */

static void sleeps(void)
{
	char *memory = map(16 * MEGABYTE, PROT_READ | PROT_WRITE);

	fill(memory, 16 * MEGABYTE, 7);
	do {
		struct timespec before, after, time = {0, 300000000};
		MUST(!clock_gettime(CLOCK_MONOTONIC, &before));
		MUST(!nanosleep(&time, NULL));
		MUST(!clock_gettime(CLOCK_MONOTONIC, &after));
		SAME((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec >= 300000000);
		check(memory, 16 * MEGABYTE, 7);
	} while (again());
}

/* ---- lends ---- */

/* Keeps memory while a thread does that. */
static void beside(void *(*work)(void *))
{
	pthread_t other;
	char *memory = map(8 * MEGABYTE, PROT_READ | PROT_WRITE);

	fill(memory, 8 * MEGABYTE, 8);
	MUST(!pthread_create(&other, NULL, work, NULL));
	do {
		check(memory, 8 * MEGABYTE, 8);
		usleep(3000);
	} while (again());
	MUST(!pthread_join(other, NULL));
}

static void *lend(void *unused)
{
	int status;
	pid_t child = vfork();

	if (!child) {
		while (access("back", F_OK))
			usleep(10000);
		_exit(0);
	}
	MUST(child > 0 && waitpid(child, &status, 0) == child);
	SAME(status == 0);
	return unused;
}

static void lends(void)
{
	while (access("lend", F_OK))
		usleep(10000);
	beside(lend);
}

/* ---- writes ---- */

static void *write_much(void *unused)
{
	static char much[MEGABYTE];
	int fifo = open("fifo", O_WRONLY);

	MUST(fifo >= 0);
	printf("wrote %zd\n", write(fifo, much, sizeof much));
	MUST(!close(fifo));
	return unused;
}

static void writes(void)
{
	beside(write_much);
}

/* ---- beats ---- */

static void *beat(void *page)
{
	volatile uint64_t *beats = page;
	static uint32_t never;

	while (!over) {
		struct timespec time = {0, 1000000};
		++*beats;
		syscall(SYS_futex, &never, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
	}
	return NULL;
}

static void beats(void)
{
	enum { PARTS = 16 };
	pthread_t other;
	void *page = mmap(BEATS, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	size_t part = (size_t)number * MEGABYTE / PARTS;
	char *memory = map(PARTS * part, PROT_READ | PROT_WRITE);

	MUST(page == BEATS);
	for (int i = 0; i < PARTS; i++)
		fill(memory + i * part, part, i);
	MUST(!pthread_create(&other, NULL, beat, page));
	do {
		char *now = memory + rounds % PARTS * part;
		check(now, part, rounds);
		fill(now, part, rounds + PARTS);
		usleep(3000);
	} while (again());
	over = 1;
	MUST(!pthread_join(other, NULL));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} kinds[] = {{"threads", threads}, {"maps", maps},    {"guards", guards}, {"advised", advised}, {"altstack", altstack},
	             {"pending", pending}, {"sleep", sleeps}, {"lends", lends},   {"writes", writes},   {"beats", beats}};

	setvbuf(stdout, NULL, _IOLBF, 0);
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	MUST(lines >= 0 && argc > 1);
	number = argc > 2 ? atoi(argv[2]) : 1;
	rest = argc > 3 ? atoi(argv[3]) : 0;
	for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(argv[1], kinds[i].name)) {
			kinds[i].run();
			puts("all is as it was");
			return 0;
		}
	return 64;
}
