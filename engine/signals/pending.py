"""Signals that wait for a frozen process: taken out of the kernel's queues, and put back, with their siginfo."""

from __future__ import annotations

import errno
import signal
import struct
from collections.abc import Mapping
from contextlib import nullcontext

from engine.context.capture import inner_tids, pending_signals
from engine.signals.ticks import merged, timer_of
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many, tracing
from kernel_helpers.process.inject import SIGINFO_SIZE, Thread, check, comes_again
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

Pending = list[tuple[int, bytes]]
"""(tid as the program sees it, 0 for the process; siginfo)."""

ROOM = 8 + 16 + SIGINFO_SIZE
_ALL = (1 << 64) - 1


def take(frozen: Frozen, but: int = 0, before: Pending | None = None, room: int = 0) -> Pending:
    """Empties the queues of all threads (injected rt_sigtimedwait, everything being blocked in a frozen process), and takes what
    the freeze itself had caught on its way to a handler. but: signals that stay there (a mask). before: what was taken before; it comes
    first in what is returned. room: memory of it for that, if it has no stack (ROOM bytes). Errors: OSError."""
    tids = inner_tids(frozen.pid, list(frozen.threads))
    taken, wanted = _in_hand(frozen, tids, list(before or [])), _ALL & ~but
    shared = list(pending_signals(frozen.pid, True))
    threads = _with_some(frozen)
    _in_hand(frozen, tids, taken)
    with nullcontext(room) if room else frozen.scratch(ROOM) as address:
        frozen.write(address, struct.pack("<QQQ", wanted, 0, 0))
        for thread in threads:
            tid = tids[thread.tid]
            while (number := thread.call(SYS.rt_sigtimedwait, address, address + 24, address + 8, 8)) > 0:
                info = frozen.read(address + 24, SIGINFO_SIZE)
                if comes_again(info):
                    continue
                if info in shared:
                    shared.remove(info)
                    tid_of_signal = 0
                else:
                    tid_of_signal = tid
                late = thread.came_late
                in_hand = [(tid, kept) for kept in thread.take_in_hand()]
                between = len(in_hand) - late  # a stop that came before what continued is over, and one that came after it is not
                taken += [*in_hand[:between], (tid_of_signal, info), *in_hand[between:]]
                frozen.note_signals(taken)
                if timer_of(info) is not None:  # with which it begins anew, and may have sent another: that is for later
                    wanted &= ~(1 << (number - 1))
                    frozen.write(address, struct.pack("<Q", wanted))
            if number not in (-errno.EAGAIN, -errno.EINTR):
                check(number, f"rt_sigtimedwait in {thread.tid}")
            _in_hand(frozen, tids, taken)
    return _in_hand(frozen, tids, taken)


def _with_some(frozen: Frozen) -> list[Thread]:
    """Those threads for which signals wait, or for their process; of few, all. Errors: OSError."""
    threads = list(frozen.threads.values())
    if len(threads) < many.FEW:
        return threads
    told = tasks.texts(frozen.pid, "status", ["SigPnd:", "ShdPnd:"])  # for a call in each of them they would have to wake up
    return [thread for thread in threads if any(int(word, 16) for word in told.get(thread.tid, b"").split()[1::2])]


def _in_hand(frozen: Frozen, tids: Mapping[int, int], taken: Pending) -> Pending:
    """Adds what the freeze has caught, which is older than what waits still; and SIGSTOP and SIGTRAP, which are not blocked in a frozen
    process and come with the first call that is made in a thread."""
    for thread in frozen.threads.values():
        if thread.in_hand:
            taken += [(tids[thread.tid], info) for info in thread.take_in_hand()]
            frozen.note_signals(taken)
    return taken


def settled(pending: Pending) -> Pending:
    """Without stops that were continued since, and what continued is to be stopped again: of such the kernel keeps the last (signal.c,
    prepare_signal). In the order in which they came."""
    kept: Pending = []
    for tid, info in pending:
        number = tracing.signal_number(info)
        ended = tracing.STOPPING if number == signal.SIGCONT else {signal.SIGCONT} if number in tracing.STOPPING else set()
        kept = [(other, before) for other, before in kept if tracing.signal_number(before) not in ended]
        kept.append((tid, info))
    return kept


def put_first(frozen: Frozen, pending: Pending) -> None:
    """put(), before what has come meanwhile, which is younger. Errors: OSError."""
    if pending:
        put(frozen, merged(take(frozen, before=pending)))


def is_over(frozen: Frozen, info: bytes) -> bool:
    """Whether a signal that was taken is a stop that has been continued since: what continued waits. Errors: ProcessLookupError."""
    number = tracing.signal_number(info)
    return any(tracing.is_void(number, frozen.pid, tid) for tid in frozen.threads)


def put(frozen: Frozen, pending: Pending) -> None:
    """Makes signals pending that came in this order: sent by the threads to themselves, for only so may they bear any si_code (signal.c,
    do_rt_sigqueueinfo). Errors: OSError."""
    pending = settled(pending)
    if not pending:
        return
    tids = inner_tids(frozen.pid, list(frozen.threads))
    threads = {tids[tid]: thread for tid, thread in frozen.threads.items()}
    leader = tids[frozen.pid]
    with frozen.scratch(SIGINFO_SIZE) as address:
        for tid, info in pending:
            number = tracing.signal_number(info)
            if is_over(frozen, info):
                continue
            frozen.write(address, info)
            if tid in threads:
                result = threads[tid].call(SYS.rt_tgsigqueueinfo, leader, tid, number, address)
            elif tid:
                continue  # what waited for a thread alone has gone with it
            else:
                result = frozen.leader.call(SYS.rt_sigqueueinfo, leader, number, address)
            check(result, f"rt_sigqueueinfo in {frozen.pid}")
    frozen.note_signals([])
