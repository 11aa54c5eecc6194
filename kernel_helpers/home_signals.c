/* Calls after which the program counts on having had what signals had come by then: it has sent one to itself, or has stopped a timer. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include "home.h"

/* Whether the timer of real time is stopped by the call: told by a null pointer, or by nothing but zeros. */
static int stops_alarm(struct home_thread *t) {
    static const struct itimerval still;
    uint64_t value = t->call.arguments[1];
    if (t->call.number == SYS_alarm)
        return !(uint32_t)t->call.arguments[0];
    if (!(t->call.offsets >> 1 & 1))
        return !value;
    return value + sizeof still <= t->call.image && !memcmp(data_of(t) + value, &still, sizeof still);
}

enum signalling home_signalling(struct home *h, struct home_thread *t) {
    switch (t->call.number) {
    case SYS_setitimer:
        if (t->call.arguments[0] != ITIMER_REAL)
            return SIGNALS;
        /* fall through */
    case SYS_alarm: {
        int was = h->alarmed;       /* one that stood still is begun without delay: what it sends soon may be for the next call */
        h->alarmed = !stops_alarm(t);
        return was ? SIGNALS : SIGNALS_NOBODY;
    }
    case SYS_timer_delete: case SYS_timer_settime:
    case SYS_kill: case SYS_tgkill: case SYS_tkill: case SYS_rt_sigqueueinfo: case SYS_rt_tgsigqueueinfo: case SYS_pidfd_send_signal:
        return SIGNALS;
    default:
        return SIGNALS_NOBODY;
    }
}
