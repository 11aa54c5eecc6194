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
#define LSEEK 8
#define PWRITE64 18
#define ENOSPC 28
#define AHEAD_WRITE_AT 1
#define AHEAD_SEEK 2
#define AHEAD_CLOSE 3
#define CLOSE 3
#define FSTAT 5
#define MMAP 9
#define PROT_READ 1
#define PROT_EXEC 4
#define MAP_PRIVATE 2
#define MAP_FIXED_NOREPLACE 0x100000
#define EFFECT_CLOSE 2
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

static inline void spin(struct slot *slot, uint32_t last)
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
 * tty_check_change; n_tty.c): a write only if the terminal is set to TOSTOP. */
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

struct ahead {
	int32_t descriptor;
	uint32_t kind, length, zero;
	int64_t position;
};

/* 0, or an errno. */
static inline long write_ahead(const struct ahead *a)
{
	uint32_t done = 0;
	long value = 1;
	for (; done < a->length && value > 0; done += value > 0 ? value : 0)
		value = raw(a->kind == AHEAD_WRITE_AT ? PWRITE64 : WRITE, a->descriptor, (long)(a + 1) + done, a->length - done,
		            a->position + done, 0, 0);
	return done == a->length ? 0 : value ? -value : ENOSPC;
}

/* The list of calls that were answered where the guest is, up to one that fails. Nobody begins the loop anew while it is at it. */
static inline void make_ahead(struct slot *slot)
{
	while (slot->ahead_at < slot->ahead_end && !slot->ahead_error) {
		const struct ahead *a = (const struct ahead *)((const char *)slot + SLOT_HEADER + slot->ahead_at);
		long error = 0;
		if (a->kind == AHEAD_SEEK)
			raw(LSEEK, a->descriptor, a->position, 0, 0, 0, 0);
		else if (a->kind == AHEAD_CLOSE)
			raw(CLOSE, a->descriptor, 0, 0, 0, 0, 0);
		else if (a->kind < AHEAD_SEEK)
			error = write_ahead(a);
		slot->ahead_descriptor = a->descriptor;
		slot->ahead_error = error;
		slot->ahead_at += sizeof *a + ((a->length + 7) & ~7u);
	}
}

/* Of a call that was answered where the guest is. Made twice, when somebody stops the loop between the two lines, it does no more. */
static inline void make_effect(struct slot *slot)
{
	if (slot->effect == EFFECT_AHEAD)
		make_ahead(slot);
	else if (slot->effect == EFFECT_CLOSE)
		raw(CLOSE, slot->effect_descriptor, 0, 0, 0, 0, 0);
	else
		raw(LSEEK, slot->effect_descriptor, slot->effect_position, 0, 0, 0, 0);
	*(volatile uint32_t *)&slot->effect = 0;
}

/* A file that was just opened, if it is one that guests map. */
static inline void map_aside(struct slot *slot, long descriptor)
{
	struct control_page *control = (struct control_page *)slot->control;
	uint64_t status[18], count = control->known_count;      /* struct stat */
	if (raw(FSTAT, descriptor, (long)status, 0, 0, 0, 0))
		return;
	for (uint64_t i = 0; i < count && i < KNOWN_FILES; i++)
		if (control->known[i].inode == status[1] && control->known[i].device == status[0]) {
			uint64_t length = ((status[6] + 4095) & ~4095ull) + ASIDE_BEYOND;
			long at = raw(MMAP, slot->aside, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, descriptor, 0);
			slot->aside_length = at == (long)slot->aside ? length : 0;
			return;
		}
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
		spin(slot, last);
		while (__atomic_load_n(&slot->request, __ATOMIC_ACQUIRE) == last) {
			__atomic_store_n(&slot->sleeping, 1, __ATOMIC_SEQ_CST);
			if (__atomic_load_n(&slot->request, __ATOMIC_SEQ_CST) == last)
				raw(FUTEX, (long)&slot->request, FUTEX_WAIT, last, 0, 0, 0);
			__atomic_store_n(&slot->sleeping, 0, __ATOMIC_SEQ_CST);
		}
		last = __atomic_load_n(&slot->request, __ATOMIC_ACQUIRE);
		if (*(volatile uint32_t *)&slot->effect)
			make_effect(slot);
		slot->asks = slot->terminal && asks(slot);
		if (!slot->asks && slot->number != NO_CALL) {
			if (slot->blocked)
				block(slot);
			long value = farhome_call(slot);
			uint64_t written = *(volatile uint64_t *)&slot->written;
			slot->value = !written ? value : value > 0 ? (int64_t)written + value : (int64_t)written;
			if (*(volatile uint64_t *)&slot->blocking)
				unblock(slot);
			if (slot->aside && value >= 0)
				map_aside(slot, value);
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
