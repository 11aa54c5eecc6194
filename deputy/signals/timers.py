"""Ticks of the stub's timers on their way to the guest: of each timer one at a time, as the kernel has it.

Of all timers that share a signal below SIGRTMIN one is on its way: the kernel has a place in its queues for each timer's, but the guest's
has one for the signal, and would drop the others.

A timer may expire faster than its signal travels. So while the guest has not taken the last tick of one, the next waits here, and with it
that signal is blocked in the stub's thread that had it: what comes then waits in the kernel, which lets the timer stand and counts its
overruns. However fast a timer is, it costs a signal for each way there and back.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.signals.pending import Pending
from engine.signals.ticks import joined, overruns_of, timer_of
from kernel_helpers.process import tracing

if TYPE_CHECKING:
    from deputy.stub.stub import Stub

PATIENCE = 1.0
"""Seconds for a thread of the stub to stop."""
TIMERS_MOST = 100_000
"""More than a process may have by default, for each of which a signal is set aside."""


class Ticks:
    """Of one stub."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._under_way: dict[int, dict[int, tuple[int, bytes]]] = {}
        """ways on which the guest has not taken the last tick, with the next one of each timer: the thread at which it is directed (0:
        none), siginfo"""
        self._ways: dict[int, int] = {}
        """timers: on which way (_way_of) their ticks go"""
        self._sent: dict[int, int] = {}
        self._reported: dict[int, int] = {}
        """overruns that the tick of each timer reports which is on its way, and that the guest has taken last"""
        self._threads: dict[int, int] = {}
        """timers: the thread of the stub (as this process sees it) that had the last tick"""
        self._blocked: dict[int, int] = {}
        """threads of the stub (as this process sees them): what they block for that"""

    def note(self, pending: Pending) -> None:
        """These wait for the guest, or are about to."""
        for _, info in pending:
            timer = timer_of(info)
            if timer is not None and len(self._ways) < TIMERS_MOST:
                self._under_way.setdefault(self._ways.setdefault(timer, _way_of(timer, info)), {})
                self._sent[timer] = overruns_of(info)

    def keeps(self, tid: int, directed: int, info: bytes) -> bool:
        """For a signal-delivery-stop of the thread `tid`. Whether the signal is kept here: else it goes to the guest."""
        timer = timer_of(info)
        if timer is None:
            return False
        if timer in self._threads or len(self._threads) < TIMERS_MOST:
            self._threads[timer] = tid
        waiting = self._under_way.get(_way_of(timer, info))
        if waiting is None or len(waiting) >= TIMERS_MOST:
            self.note([(directed, info)])
            return False
        self._ways[timer] = _way_of(timer, info)
        before = waiting.get(timer)
        waiting[timer] = (directed, info) if before is None else (before[0], joined(before[1], info))
        bit = 1 << (tracing.signal_number(info) - 1)
        tracing.set_signal_mask(tid, tracing.signal_mask(tid) | bit)
        self._blocked[tid] = self._blocked.get(tid, 0) | bit
        return True

    def taken(self, timer: int) -> tuple[int, bytes] | None:
        """The guest has taken the last tick of a timer. Returns the next one on its way, which is under way from here on."""
        if timer in self._sent:
            self._report(timer, self._sent.pop(timer))
        way = self._ways.pop(timer, timer)
        if waiting := self._under_way.get(way):
            return self._next(way, waiting)
        if self._under_way.pop(way, None) is not None and not any(self._under_way.values()):
            self.let_in()
        return None

    def _next(self, way: int, waiting: dict[int, tuple[int, bytes]]) -> tuple[int, bytes]:
        timer = next(iter(waiting))
        self._ways[timer], self._sent[timer] = way, overruns_of(waiting[timer][1])
        return waiting.pop(timer)

    def take_late(self, timer: int) -> int:
        """The guest takes the tick of that timer which is on its way, and with it what waits here. Returns how many overruns that makes
        besides those that the tick reports."""
        sent = self._sent.pop(timer, 0)
        more = sum(1 + overruns_of(info) for _, info in self.take_kept(timer))
        self._sent.pop(timer, None)
        self._report(timer, sent + more)
        return more

    def _report(self, timer: int, overruns: int) -> None:
        if len(self._reported) >= TIMERS_MOST:
            self._reported.clear()
        self._reported[timer] = overruns

    def reported(self, timer: int) -> int | None:
        """Return the overruns that the guest's last tick of that timer has reported; None: it has not taken one where it is."""
        return self._reported.get(timer)

    def forget(self, timer: int) -> tuple[int, bytes] | None:
        """Nothing of it is under way. Returns the next one on its way, of another timer, which is under way from here on."""
        way = self._ways.pop(timer, timer)
        waiting = self._under_way.get(way)
        if waiting is not None:
            waiting.pop(timer, None)
        if waiting:
            return self._next(way, waiting)
        self._under_way.pop(way, None)
        return None

    def let_in(self) -> None:
        """The stub's threads block nothing for this any more: what waits in the kernel comes."""
        blocked, self._blocked = self._blocked, {}
        for tid, mask in blocked.items():
            if tid in self._stub.tids and self._stub.interrupt(tid, PATIENCE) is not None:
                tracing.set_signal_mask(tid, tracing.signal_mask(tid) & ~mask | self._stub.kept.get(tid, 0))
                self._stub.let_go(tid)

    def threads(self, timer: int | None) -> list[int]:
        """Of the stub's (as this process sees them) the one that had the last tick of that timer."""
        tid = self._threads.get(timer) if timer is not None else None
        return [tid] if tid is not None and tid in self._stub.tids else []

    def kept(self) -> Pending:
        """Return what waits here."""
        return [kept for waiting in self._under_way.values() for kept in waiting.values()]

    def give_up(self, is_wanted: Callable[[tuple[int, bytes]], bool]) -> Pending:
        """Return what waits here and is wanted elsewhere."""
        found = [kept for kept in self.kept() if is_wanted(kept)]
        for way, waiting in list(self._under_way.items()):
            left = {timer: kept for timer, kept in waiting.items() if not is_wanted(kept)}
            if left or not waiting:
                self._under_way[way] = left
            else:
                del self._under_way[way]
        return found

    def take_kept(self, timer: int | None = None) -> Pending:
        """Return what waits here, of that timer or of all; it is under way from here on."""
        found: Pending = []
        for waiting in self._under_way.values():
            for each in [each for each in waiting if timer in (None, each)]:
                self._sent[each] = overruns_of(waiting[each][1])
                found.append(waiting.pop(each))
        return found


def _way_of(timer: int, info: bytes) -> int:
    """That of the timer, or below zero that of the signal."""
    number = tracing.signal_number(info)
    return timer if number >= signal.SIGRTMIN else -number
