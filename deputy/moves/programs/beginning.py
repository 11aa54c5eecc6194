"""A process that is mosrun still, and waits for its turn: it executes its program, and leaves before the first instruction of that, when
there is almost nothing to carry.

    mosd                            deputy                             mosrun
      |-- move, begins --------------->|  the target prepares             |  waits for its turn
      | <-- event: begins -------------|  it is seized, for its execve    |
      |-- it is its turn -------------------------------------------------->|
      |                                | <-------- PTRACE_EVENT_EXEC ------|  execve
      | <-- moved ---------------------|  held at the first instruction, it leaves (deputy/moves/out_and_hop.py)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from engine.leaving.permission import Owner, may_leave
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import Frozen, look_past_filters
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import PTRACE_O_TRACEEXEC, Cause

PATIENCE = 3.0
"""Seconds within which a process executes its program whose turn it is."""


class Beginning:
    """One process, seized and running on. Only the loop calls poll() and take()."""

    def __init__(self, pid: int, program: os.stat_result) -> None:
        """program: of mosrun. Errors: OSError."""
        self._pid = pid
        self._thread = Thread(pid, pid)
        self._thread.follow(PTRACE_O_TRACEEXEC)
        has_begun = not os.path.samestat(program, program_of(pid))  # it has waited too long
        self._end = time.monotonic() + (0.0 if has_begun else PATIENCE)
        self._frozen: Frozen | None = None
        self._failure: OSError | None = None
        self.held_since = 0.0
        """as time.monotonic()"""

    @property
    def is_over(self) -> bool:
        """Whether it has executed its program, has ended, or takes too long."""
        return self._frozen is not None or self._failure is not None or time.monotonic() > self._end

    def poll(self) -> None:
        """Deals with its stops."""
        try:
            self._look()
        except OSError as error:
            self._failure = error

    def _look(self) -> None:
        for stop in self._stops():
            if stop.cause is Cause.EXECUTED:
                self.held_since = time.monotonic()
                self._frozen = at_first_instruction(self._pid)
                self._frozen.park()  # should we die, it goes on here
            elif stop.cause in (Cause.EXITED, Cause.KILLED):
                raise ProcessLookupError(f"process {self._pid} ended before it began")
            elif stop.cause is Cause.GROUP_STOP:
                tracing.listen(self._pid)
            else:
                tracing.proceed(self._pid, stop.number if stop.cause is Cause.SIGNAL else 0)

    def _stops(self) -> Iterator[tracing.Stop]:
        while self._frozen is None and (stops := tracing.poll([self._pid])):
            yield from stops

    def take(self, owners: Iterable[Owner]) -> Frozen | None:
        """Return the program at its first instruction, wanted away by `owners`; None: it has come to that before, or not in time, and
        nobody traces it any more. Errors: OSError (ProcessLookupError: it has ended); MoveRefused: it must not leave so, and runs on."""
        frozen, self._frozen = self._frozen, None
        if self._failure is not None:
            raise self._failure
        if frozen is None:
            self._thread.interrupt()
            self._thread.detach()
        elif (reason := may_leave(self._pid, owners)) is not None:
            frozen.detach()
            raise MoveRefused(self._pid, reason)
        return frozen

    def close(self) -> None:
        """It goes on where it is, if it has not been taken. Errors: OSError."""
        if self._frozen is not None:
            self._frozen.detach()
            self._frozen = None


def program_of(pid: int) -> os.stat_result:
    """The file that it executes. Errors: OSError."""
    return os.stat(f"/proc/{pid}/exe")


def at_first_instruction(pid: int) -> Frozen:
    """From the event, which is inside of execve, to a stop in user mode. Errors: OSError (ProcessLookupError: it was killed)."""
    thread = Thread(pid, pid)
    tracing.interrupt(pid)
    tracing.proceed(pid)
    thread.wait_stopped()
    thread.set_options(0)
    look_past_filters([thread])
    return Frozen(pid, {pid: thread})


__all__ = ["Beginning", "at_first_instruction", "program_of"]
