"""The guest's process as its tracer knows it: its threads, its end of the link, and whether it stands still.

Who answers its calls and takes its signals stands on this; what hears of its stops, above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.inspection import tasks
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Stop
from remote.reference.intercept_ptrace import PtraceLink
from wire.control import Control, pack

if TYPE_CHECKING:
    from remote.tracee.trace import Trace

GuestEnd = AwayLink | PtraceLink
"""The two interceptors."""


class Stops(Protocol):
    """Who hears of the stops of the process. A part that waits for one of them may meet another."""

    def handle_stop(self, stop: Stop) -> None:
        """A thread has stopped, or ended."""

    def thread_gone(self, stop: Stop) -> None:
        """A thread has ended."""


class Tracee:
    """frozen is the process as long as every thread stands still for a move, else None. Threads are named by their ids as this process
    sees them (ours), or as the program sees them."""

    def __init__(self, frozen: Frozen, link: GuestEnd, program_pid: int, has_all_memory: bool) -> None:
        self.pid = frozen.pid
        self.program_pid = program_pid
        """its id as the program itself sees it"""
        self.link = link
        self.frozen: Frozen | None = frozen
        self.threads: dict[int, Thread] = dict(frozen.threads)
        self.trace: Trace | None = None
        """prints its calls, if its user wants to see them"""
        self.shares_memory = False
        """with its parent, which waits until it has ended or called exec"""
        self.has_all_memory = has_all_memory
        """nothing follows it any more"""
        self.is_stopped = False
        self.is_pausing = False
        """a move is about to begin: no call goes home any more"""
        self.used: list[int] = []
        """here and before, when that was last looked at"""
        self._programs = tasks.inner_tids(frozen.pid, list(frozen.threads))
        self._tids = {program: host for host, program in self._programs.items()}
        self._halted: dict[int, Stop] = {}
        """threads (ours) that stay in a stop, the process being stopped"""
        self.undecided: set[int] = set()
        """threads (ours) that are to stand still: they have met a stop signal, and home has not said yet whether it stops the process"""

    # -- its threads ----------------------------------------------------------------------------------------------------

    def host_tid(self, tid: int) -> int | None:
        """Return a thread's id as this process sees it."""
        return self._tids.get(tid)

    def program_tid(self, host: int) -> int:
        """Return a thread's id as the program itself sees it, 0 if there is none."""
        return self._programs.get(host, 0)

    def add_thread(self, newborn: Thread, tid: int) -> None:
        """A thread that was born here, before it runs. Errors: OSError, MemoryError."""
        assert isinstance(self.link, AwayLink)
        self.threads[newborn.tid], self._tids[tid], self._programs[newborn.tid] = newborn, newborn.tid, tid
        self.link.add_thread(newborn.tid, tid)

    def forget_thread(self, host: int) -> None:
        """It has ended, and all of it has been reported to home."""
        if isinstance(self.link, AwayLink):
            self.link.remove_thread(host, self.program_tid(host))
            self._tids.pop(self._programs.pop(host, 0), None)

    def follow(self, host: int) -> None:
        """A thread (ours) is about to run that may have to be followed, from its first call on."""
        if self.trace is not None:
            self.trace.follow(host)

    # -- its stops ------------------------------------------------------------------------------------------------------

    def poll(self) -> list[Stop]:
        """Return what its threads have stopped for, but those that stay in a stop."""
        return tracing.poll([tid for tid in self.threads if tid not in self._halted])

    def stands(self, host: int) -> bool:
        """Return whether a thread (ours) is in a stop, the process being stopped."""
        return host in self._halted

    def await_stop(self, host: int) -> None:
        """A thread (ours) in a stop, about to go on, has met a stop signal: it stands still until home has said what comes of it."""
        self.undecided.add(host)
        tracing.interrupt(host)

    def halt(self, stop: Stop) -> None:
        """A thread (ours) stays in this stop until the process is continued."""
        self._halted[stop.tid] = stop

    def take_halted(self) -> dict[int, Stop]:
        """Return those that stay so, by whom it is asked from here on."""
        halted, self._halted = self._halted, {}
        return halted

    def note_use(self) -> None:
        """Looks how much it has used: it may be about to end."""
        self.used = self.link.account.whole()

    # -- home -----------------------------------------------------------------------------------------------------------

    def go_home(self, tid: int, number: int, reason: str = "") -> None:
        """Asks home to take the process back, for a thread's call that only home can make."""
        if self.trace is not None:
            self.trace.takes_home(self._tids.get(tid, 0))
            self.trace.flush()
        self.link.send(Control.GO_HOME, tid, pack(number=number, name=reason or NAMES.get(number, str(number))))


__all__ = ["GuestEnd", "Stops", "Tracee"]
