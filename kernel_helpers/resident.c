/* The loop that each thread of a stub runs while its process is away: wait for a call, make it, say so.
 * Freestanding and position-independent: it is copied into the stub and has no data, no libc and no relocations.
 * The deputy may stop it anywhere. Only at `farhome_call_end` with a restart code in rax does it stand in a call. */
#include "slot.h"

#define FUTEX 202
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1

static inline long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
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

static inline void look_on(struct slot *slot, uint32_t last) {
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

__attribute__((noreturn, used, visibility("hidden"))) void loop(struct slot *slot) {
    uint32_t last = slot->done, processor = 0;
    for (;;) {
        look_on(slot, last);
        while (__atomic_load_n(&slot->request, __ATOMIC_ACQUIRE) == last) {
            __atomic_store_n(&slot->sleeping, 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&slot->request, __ATOMIC_SEQ_CST) == last)
                raw(FUTEX, (long)&slot->request, FUTEX_WAIT, last, 0, 0, 0);
            __atomic_store_n(&slot->sleeping, 0, __ATOMIC_SEQ_CST);
        }
        last = __atomic_load_n(&slot->request, __ATOMIC_ACQUIRE);
        slot->value = farhome_call(slot);
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
