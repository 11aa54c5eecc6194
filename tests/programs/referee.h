/* Words of a script, and what the parts of tests/programs/referee.c share.
 *
 *   E THREADS FLAGS        an episode begins; FLAGS: HELPER, HANDLERS, OBJECTS
 *   T THREAD               makes the calls that follow, 0 the first one
 *   P ADDRESS BYTES        puts bytes there     S ADDRESS SIZE BYTE   fills     Q ADDRESS @X   the id of a process
 *   M ADDRESS SIZE KIND    of the next call's memory: x nothing is said if the call has succeeded (X: whether or not), t a time if it is
 *                          of these years, z only whether it is 0, d and D directory entries, s and S those of sockets in a
 *                          struct stat and a struct statx
 *   C NUMBER A0 .. A5 FLAGS   a call; FLAGS: r its value is not recorded, only that there is one, b only whether it is 0; w waits for the
 *                          helper's end if it has succeeded; s for what it may bring; n its result, N the two that A0 points to,
 *                          descriptors that shall not wait; - nothing
 *   F KIND                 a child is born, and ends   L   what is in GROUND    W ADDRESS BYTE   stores a byte
 *   X HOW VALUE            the end: 0 exit_group, 1 exit, 2 by a signal
 *
 * @s the process, @h its helper, @p its parent, @k its last child, @1 @2 its other threads, @q @e @m a queue, semaphores, a segment. */
#ifndef REFEREE_H
#define REFEREE_H
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DATA 0x100000000000ul           /* memory of the calls, which ends before a page that is not there */
#define DATA_SIZE 16384ul
#define READ_ONLY 0x100000010000ul
#define NOTHING 0x100000020000ul        /* without any right; 0x100000030000 is not mapped */
#define GROUND 0x100000100000ul         /* for calls about memory */
#define GROUND_PAGES 64ul
#define CODE 0x100000200000ul
#define HANDLER CODE
#define RESTORER (CODE + 64)
#define RECORD_FD 700
#define LOG_ROOM (1u << 18)
#define TICK 64
#define LINES_AT_ONCE 32
enum { HELPER = 1, HANDLERS = 2, OBJECTS = 4 };

static __thread int me;
static int is_exact;
static const char *program;
static unsigned char before[DATA_SIZE];

void record(const char *format, ...) __attribute__((format(printf, 1, 2)));
void flush_log(void);
void watch(void);
void add_thread(int number);

/* A system call; a negative errno when it fails. */
static inline int64_t call(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	register uint64_t r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
	int64_t result;
	asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

static inline uint64_t hash(const unsigned char *at, uint64_t size)
{
	uint64_t h = 0xcbf29ce484222325ul;
	for (uint64_t i = 0; i < size; i++)
		h = (h ^ at[i]) * 0x100000001b3ul;
	return h;
}

static inline void exit_with(const char *why)
{
	record("%s\n", why);
	flush_log();
	_exit(96);
}
#endif
