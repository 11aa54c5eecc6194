"""Ticks: signals of timers. Of each timer the kernel has one waiting at a time, however often it has expired; what came on top of that is
its overruns, counted when the signal is taken (posix-timers.c). The timer stands until then."""

from __future__ import annotations

import signal
import struct

from kernel_helpers.process import tracing

SI_TIMER = -2
ALARM = -1
"""In place of the id that a timer of timer_create(2) has: the one of alarm(2) and setitimer(2), of real time. It has no overruns."""
_TIMER = struct.Struct("<ii")  # si_timerid, si_overrun
_TIMER_AT = 16
_OVERRUNS_MOST = (1 << 31) - 1


def timer_of(info: bytes) -> int | None:
    """Return which timer's tick a siginfo reports."""
    code = tracing.signal_code(info)
    if code == SI_TIMER:
        return int(_TIMER.unpack_from(info, _TIMER_AT)[0])
    return ALARM if code == tracing.SI_KERNEL and tracing.signal_number(info) == signal.SIGALRM else None


def overruns_of(info: bytes) -> int:
    """Return what a tick reports besides itself."""
    return int(_TIMER.unpack_from(info, _TIMER_AT)[1]) if tracing.signal_code(info) == SI_TIMER else 0


def overrun(info: bytes, times: int) -> bytes:
    """The same tick, which reports so many more overruns."""
    if tracing.signal_code(info) != SI_TIMER:
        return info
    timer, overruns = _TIMER.unpack_from(info, _TIMER_AT)
    overruns = min(_OVERRUNS_MOST, overruns + times)
    return info[:_TIMER_AT] + _TIMER.pack(timer, overruns) + info[_TIMER_AT + _TIMER.size :]


def without_overruns(info: bytes) -> bytes:
    """The same siginfo, by which a tick is known before it is taken as well: overruns are counted then."""
    return overrun(info, -overruns_of(info)) if overruns_of(info) else info


def joined(first: bytes, second: bytes) -> bytes:
    """One tick in place of two of the same timer: the first, which reports the second as an overrun."""
    return overrun(first, 1 + overruns_of(second))


def merged(pending: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the same signals, as engine/signals/pending.py has them, with one tick of each timer."""
    kept: list[tuple[int, bytes]] = []
    places: dict[int, int] = {}
    for tid, info in pending:
        timer = timer_of(info)
        if timer is not None and timer in places:
            place = places[timer]
            kept[place] = (kept[place][0], joined(kept[place][1], info))
            continue
        if timer is not None:
            places[timer] = len(kept)
        kept.append((tid, info))
    return kept
