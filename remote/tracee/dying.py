"""A guest that is about to end by a signal that dumps core. A core of it is of use only at home, where its files and its parent are: so
nothing of it runs any more, and home decides whether it comes back to end there, or ends at once (deputy/signals/dying.py)."""

from __future__ import annotations

import signal

from kernel_helpers.process import tracing
from kernel_helpers.process.tracing import Cause, SignalState, Stop
from remote.tracee.tracee import Tracee
from wire.control import Control, pack

DUMPING = frozenset({
    signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGXCPU,
    signal.SIGXFSZ, signal.SIGSYS,
})  # fmt: skip
"""Signals whose default action it is to dump core (signal(7))."""


class Dying:
    """Of one guest. is_begun: none of its threads runs on, but into a stop."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self.is_begun = False
        self._held: set[int] = set()

    def takes(self, stop: Stop, info: bytes, state: SignalState) -> bool:
        """Return whether the signal for which a thread has stopped ends the guest so; info: its siginfo as home knows it."""
        if stop.number not in DUMPING or state.is_caught(stop.number) or state.is_ignored(stop.number):
            return False
        self._held.add(stop.tid)
        if not self.is_begun:
            self.is_begun = True
            for tid in self._tracee.threads:
                if tid != stop.tid:
                    tracing.interrupt(tid)
            self._tracee.link.send(
                Control.DUMPS, self._tracee.program_tid(stop.tid), pack(info=info, used=self._tracee.link.account.whole())
            )
        return True

    def holds(self, stop: Stop) -> bool:
        """Return whether a thread that has stopped is to stay there."""
        if not self.is_begun or stop.cause in (Cause.EXITED, Cause.KILLED):
            return False
        self._held.add(stop.tid)
        return True

    def let_freeze(self) -> None:
        """All threads have been asked for the stop in which they move: those that stand still come to it."""
        held, self._held = self._held, set()
        for tid in held:
            tracing.proceed(tid)


__all__ = ["DUMPING", "Dying"]
