"""Ticks of the stub's timers on their way to the guest: of each timer one at a time, as the kernel has it.

A timer may expire faster than its signal travels. So while the guest has not taken the last tick of one, the next waits here, and with it
that signal is blocked in the stub's thread that had it: what comes then waits in the kernel, which lets the timer stand and counts its
overruns. However fast a timer is, it costs a signal for each way there and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.signals.pending import Pending
from engine.signals.ticks import joined, timer_of
from kernel_helpers.process import tracing

if TYPE_CHECKING:
    from deputy.stub import Stub

PATIENCE = 1.0
"""Seconds for a thread of the stub to stop."""
TIMERS_MOST = 100_000
"""More than a process may have by default, for each of which a signal is set aside."""


class Ticks:
    """Of one stub."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._under_way: dict[int, tuple[int, bytes] | None] = {}
        """timers whose last tick the guest has not taken, with the next one: the thread at which it is directed (0: none), siginfo"""
        self._threads: dict[int, int] = {}
        """timers: the thread of the stub (as this process sees it) that had the last tick"""
        self._blocked: dict[int, int] = {}
        """threads of the stub (as this process sees them): what they block for that"""

    def note(self, pending: Pending) -> None:
        """These wait for the guest, or are about to."""
        for _, info in pending:
            timer = timer_of(info)
            if timer is not None and len(self._under_way) < TIMERS_MOST:
                self._under_way.setdefault(timer, None)

    def keeps(self, tid: int, directed: int, info: bytes) -> bool:
        """For a signal-delivery-stop of the thread `tid`. Whether the signal is kept here: else it goes to the guest."""
        timer = timer_of(info)
        if timer is None:
            return False
        if timer in self._threads or len(self._threads) < TIMERS_MOST:
            self._threads[timer] = tid
        if timer not in self._under_way:
            self.note([(directed, info)])
            return False
        before = self._under_way[timer]
        self._under_way[timer] = (directed, info) if before is None else (before[0], joined(before[1], info))
        bit = 1 << (tracing.signal_number(info) - 1)
        tracing.set_signal_mask(tid, tracing.signal_mask(tid) | bit)
        self._blocked[tid] = self._blocked.get(tid, 0) | bit
        return True

    def taken(self, timer: int) -> tuple[int, bytes] | None:
        """The guest has taken the last tick of a timer. Returns the next one, which is under way from here on."""
        kept = self._under_way.get(timer)
        if kept is not None:
            self._under_way[timer] = None
            return kept
        if self._under_way.pop(timer, kept) is None and not any(self._under_way.values()):
            self.let_in()
        return None

    def forget(self, timer: int) -> None:
        """Nothing of it is under way."""
        self._under_way.pop(timer, None)

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
        """What waits here."""
        return [kept for kept in self._under_way.values() if kept is not None]

    def give_up(self, is_wanted: Callable[[tuple[int, bytes]], bool]) -> Pending:
        """What waits here and is wanted elsewhere."""
        found = [(timer, kept) for timer, kept in self._under_way.items() if kept is not None and is_wanted(kept)]
        for timer, _ in found:
            self.forget(timer)
        return [kept for _, kept in found]

    def take_kept(self, timer: int | None = None) -> Pending:
        """What waits here, of that timer or of all; it is under way from here on."""
        found = [(each, kept) for each, kept in self._under_way.items() if kept is not None and timer in (None, each)]
        for each, _ in found:
            self._under_way[each] = None
        return [kept for _, kept in found]
