/* The loop that each thread of a stub runs while its process is away: wait for a call, make it, say so.
 * Freestanding and position-independent: it is copied into the stub and has no data, no libc and no relocations.
 * The deputy may stop it anywhere. Only at `farhome_call_end` with a restart code in rax does it stand in a call. */
#include "link/slot.h"

#define RT_SIGPROCMASK 14
#define SIG_BLOCK 0
#define SIG_UNBLOCK 1
#define IOCTL 16
#define GETPGRP 111
#define WRITE 1
#define WRITEV 20
#define PWRITEV2 328
#define TCGETS 0x5401
#define TIOCGPGRP 0x540f
#define TOSTOP 0x100
#define FUTEX 202
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1

static inline long raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return result;
}

/* The one place where calls of the guest are made. The address after its `syscall` is at the blob's offset 8. */
__asm__(".section .text.entry,\"ax\"\n"
        ".globl farhome_resident\nfarhome_resident:\n"
        "  jmp loop\n"
        "  .balign 8\n"
        "  .quad farhome_call_end - farhome_resident\n"
        ".text\n"
        "farhome_call:\n"           /* rdi: struct slot */
        "  push %rbx\n  mov %rdi,%rbx\n"
        "  mov 24(%rbx),%rax\n  mov 32(%rbx),%rdi\n  mov 40(%rbx),%rsi\n  mov 48(%rbx),%rdx\n"
        "  mov 56(%rbx),%r10\n  mov 64(%rbx),%r8\n  mov 72(%rbx),%r9\n"
        "  syscall\n"
        "farhome_call_end:\n"
        "  pop %rbx\n  ret\n");
long farhome_call(struct slot *slot) __attribute__((visibility("hidden")));

static inline void look_on(struct slot *slot, uint32_t last)
{
	if (slot->crowded) {
		slot->crowded--;
		return;
	}
	uint64_t begin = __builtin_ia32_rdtsc(), before = begin, now;
	while (*(volatile uint32_t *)&slot->request == last) {
		__builtin_ia32_pause();
		now = __builtin_ia32_rdtsc();
		if (now - before > CROWDED_CYCLES)
			slot->crowded = CROWDED_FOR;
		if (now - begin > slot->spin || slot->crowded)
			return;
		before = now;
	}
}

/* Whether the call is for our terminal, from its background, so that the kernel decides it by what its caller blocks (tty_jobctrl.c,
 * tty_check_change; n_tty.c): a write only if the terminal is told so. */
static inline int asks(struct slot *slot)
{
	long descriptor = slot->terminal - 1, number = slot->number;
	uint32_t settings[16];
	int group;
	if (raw(IOCTL, descriptor, TIOCGPGRP, (long)&group, 0, 0, 0) || group == raw(GETPGRP, 0, 0, 0, 0, 0, 0))
		return 0;
	if (number != WRITE && number != WRITEV && number != PWRITEV2)
		return 1;
	return !raw(IOCTL, descriptor, TCGETS, (long)settings, 0, 0, 0) && settings[3] & TOSTOP;
}

/* The kernel decides some calls by what their caller blocks. Between calls a stub blocks nothing but what it keeps. */
static inline void block(struct slot *slot)
{
	slot->blocking = slot->blocked;
	raw(RT_SIGPROCMASK, SIG_BLOCK, (long)&slot->blocking, 0, sizeof slot->blocking, 0, 0);
}

static inline void unblock(struct slot *slot)
{
	slot->blocking &= ~*(volatile uint64_t *)&slot->keeps;
	raw(RT_SIGPROCMASK, SIG_UNBLOCK, (long)&slot->blocking, 0, sizeof slot->blocking, 0, 0);
	slot->blocking = 0;
}

__attribute__((noreturn, used, visibility("hidden"))) void loop(struct slot *slot)
{
	uint32_t last = slot->done, processor = 0;
	if (slot->blocking)     /* it was taken out of a call */
		unblock(slot);
	for (;;) {
		look_on(slot, last);
		while (__atomic_load_n(&slot->request, __ATOMIC_ACQUIRE) == last) {
			__atomic_store_n(&slot->sleeping, 1, __ATOMIC_SEQ_CST);
			if (__atomic_load_n(&slot->request, __ATOMIC_SEQ_CST) == last)
				raw(FUTEX, (long)&slot->request, FUTEX_WAIT, last, 0, 0, 0);
			__atomic_store_n(&slot->sleeping, 0, __ATOMIC_SEQ_CST);
		}
		last = __atomic_load_n(&slot->request, __ATOMIC_ACQUIRE);
		slot->asks = slot->terminal && asks(slot);
		if (!slot->asks) {
			if (slot->blocked)
				block(slot);
			long value = farhome_call(slot);
			uint64_t written = *(volatile uint64_t *)&slot->written;
			slot->value = !written ? value : value > 0 ? (int64_t)written + value : (int64_t)written;
			if (*(volatile uint64_t *)&slot->blocking)
				unblock(slot);
		}
		__builtin_ia32_rdtscp(&processor);
		slot->processor = processor & 0xfff;    /* Linux keeps it in TSC_AUX */
		__atomic_store_n(&slot->done, last, __ATOMIC_SEQ_CST);
		uint32_t watched = __atomic_load_n(&slot->watched, __ATOMIC_SEQ_CST);
		if (watched == WATCHED_HERE)
			raw(FUTEX, (long)&slot->done, FUTEX_WAKE, 1, 0, 0, 0);
		else if (watched) {
			struct control_page *control = (struct control_page *)slot->control;
			__atomic_add_fetch(&control->completions, 1, __ATOMIC_SEQ_CST);
			raw(FUTEX, (long)&control->completions, FUTEX_WAKE, 1, 0, 0, 0);
		}
	}
}
