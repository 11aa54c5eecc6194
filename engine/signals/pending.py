"""Signals that wait for a frozen process: taken out of the kernel's queues, and put back, with their siginfo."""

from __future__ import annotations

import errno
import resource
import signal
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from engine.context.capture import inner_tids, pending_signals
from engine.signals.ticks import ALARM, joined, merged, timer_of, without_overruns
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many, tracing
from kernel_helpers.process.injection.native import SIGINFO_SIZE, check, comes_again
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread

Pending = list[tuple[int, bytes]]
"""(tid as the program sees it, 0 for the process; siginfo)."""

_TAKEN_AT = 24
"""Where of the memory for calls what is taken is put, behind the set and the time."""
_SENT_AT = _TAKEN_AT + SIGINFO_SIZE
_CALLS_AT = _SENT_AT + SIGINFO_SIZE
ROOM = _CALLS_AT + 2 * 64
_ALL = (1 << 64) - 1
_TRIES, _EXACT_TRIES = 100, 20
"""to put back a tick of a timer that is faster than that; of the last some overruns may be missing"""
_SIGINFO_KERNEL = 48
"""Bytes of a siginfo that the kernel keeps."""


def take(frozen: Frozen, but: int = 0, before: Pending | None = None, room: int = 0) -> Pending:
    """Empties the queues of all threads (injected rt_sigtimedwait, everything being blocked in a frozen process), and takes what
    the freeze itself had caught on its way to a handler. but: signals that stay there (a mask). before: what was taken before; it comes
    first in what is returned. room: memory of it for that, if it has no stack (ROOM bytes). Errors: OSError."""
    tids = inner_tids(frozen.pid, list(frozen.threads))
    taken, wanted = _in_hand(frozen, tids, list(before or [])), _ALL & ~but
    shared = [without_overruns(info) for info in pending_signals(frozen.pid, True)]
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
                if without_overruns(info) in shared:
                    shared.remove(without_overruns(info))
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
    reported = tasks.texts(frozen.pid, "status", ["SigPnd:", "ShdPnd:"])  # for a call in each of them they would have to wake up
    return [thread for thread in threads if any(int(word, 16) for word in reported.get(thread.tid, b"").split()[1::2])]


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
        put(frozen, take(frozen, before=pending))


def is_over(frozen: Frozen, info: bytes) -> bool:
    """Return whether a signal that was taken is a stop that has been continued since: what continued waits. Errors: ProcessLookupError."""
    number = tracing.signal_number(info)
    return any(tracing.is_void(number, frozen.pid, tid) for tid in frozen.threads)


def put(frozen: Frozen, pending: Pending) -> None:
    """Makes signals pending that came in this order, of each timer one: sent by the threads to themselves, for only so may they bear any
    si_code (signal.c, do_rt_sigqueueinfo). Errors: OSError."""
    pending = settled(merged(pending))
    if not pending:
        return
    tids = inner_tids(frozen.pid, list(frozen.threads))
    threads = {tids[tid]: thread for tid, thread in frozen.threads.items()}
    leader = tids[frozen.pid]
    with frozen.scratch(ROOM) as address, any_number(frozen.pid):
        for tid, info in pending:
            if is_over(frozen, info):
                continue
            if tid and tid not in threads:
                continue  # what waited for a thread alone has gone with it
            queue(frozen, threads.get(tid, frozen.leader), leader, tid, info, address)
    frozen.note_signals([])


@contextmanager
def any_number(pid: int) -> Iterator[None]:
    """Meanwhile signals of the process that waited elsewhere may wait here, where others of its user wait too (RLIMIT_SIGPENDING)."""
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_SIGPENDING)
    except OSError:  # its limits are none of ours
        yield
        return
    for most in (resource.RLIM_INFINITY, hard):
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_SIGPENDING, (most, most))
            break
    try:
        yield
    finally:
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_SIGPENDING, (soft, hard))


def queue(frozen: Frozen, thread: Thread, process: int, tid: int, info: bytes, room: int) -> bytes:
    """Has a thread queue a signal to itself (its id as the program sees it), or to its process (0); returns it as it waits then. room:
    memory of ROOM bytes. Errors: OSError.

    The kernel drops one below SIGRTMIN if another of that number waits in the same queue (signal.c, legacy_queue): the next of the timer
    whose tick is to be put back, perhaps, which goes on as soon as that is taken. So of one thread its own queue is taken; of several that
    one is taken, too, and reported as one of the overruns."""
    number, timer = tracing.signal_number(info), timer_of(info)
    is_legacy_tick = timer not in (None, ALARM) and number < signal.SIGRTMIN
    to = tid
    if is_legacy_tick and len(frozen.threads) == 1 and number not in map(tracing.signal_number, pending_signals(thread.tid, False)):
        to = process  # of one thread either queue will do
    sending = (SYS.rt_tgsigqueueinfo, process, to) if to else (SYS.rt_sigqueueinfo, process)
    frozen.write(room + _SENT_AT, info)
    if not is_legacy_tick or to != tid:
        check(thread.call(*sending, number, room + _SENT_AT), f"queueing signal {number} in {thread.tid}")
        return info
    frozen.write(room, struct.pack("<QQQ", 1 << number - 1, 0, 0))
    taking = (SYS.rt_sigtimedwait, room, room + _TAKEN_AT, room + 8, 8)
    waits, lacks = False, b""
    for tries in range(_TRIES):
        frozen.write(room + _SENT_AT, info)
        found, result = thread.calls([taking, (*sending, number, room + _SENT_AT)], room + _CALLS_AT)
        check(result, f"queueing signal {number} in {thread.tid}")
        tick = frozen.read(room + _TAKEN_AT, SIGINFO_SIZE) if found == number else b""
        if tick and not waits and timer_of(tick) == timer:  # else it is ours of the last time, before which nothing waited
            lacks = joined(lacks, tick) if lacks else tick
        waits = any(info[:_SIGINFO_KERNEL] == one[:_SIGINFO_KERNEL] for one in pending_signals(thread.tid, not tid))
        if waits and (not lacks or tries > _EXACT_TRIES):
            break
        info, lacks = joined(info, lacks) if lacks else info, b""
    return info
