"""The guest as a whole is to stand still, or to go on: what home says of that, for a move, an execve, or a stop of its process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from engine.signals.pending import Pending
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.link.ends.events import Event
from kernel_helpers.process import tracing
from remote.requests.direct_files import DirectFiles
from remote.requests.execution import Executions, Programs
from remote.tracee.freezing import Freezing
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.masks import Masks
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Tracee
from remote.tracee.waits import Waits
from wire.control import Control, pack, unpack

log = logging.getLogger("remote")


class Memory(Protocol):
    """What the loop of the remote is informed of about the guest's memory."""

    def stop_giving_pages(self) -> None:
        """It does not move after all."""

    def released(self) -> None:
        """The guest has let go of its memory: its parent goes on if it has waited for that."""


class Guest(Protocol):
    """What is done with the guest as a whole (remote/guest.py)."""

    def run(self) -> None:
        """Lets the frozen guest go."""

    def kill(self) -> None:
        """Ends all of its threads."""

    def handle(self, event: Event) -> None:
        """One event of the link."""


class Standstill:
    """Of one guest. waits_for_child: whether a child has its memory (vfork)."""

    def __init__(
        self, tracee: Tracee, interrupted: InterruptedCalls, signals: GuestSignals, waits: Waits, masks: Masks, freezing: Freezing,
        executions: Executions,
        direct: DirectFiles, guest: Guest, memory: Memory, programs: Programs, waits_for_child: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._tracee = tracee
        self._link = tracee.link
        self._interrupted = interrupted
        self._signals = signals
        self._waits = waits
        self._masks = masks
        self._freezing = freezing
        self._executions = executions
        self._direct = direct
        self._guest = guest
        self._memory = memory
        self._programs = programs
        self._waits_for_child = waits_for_child
        self._quiet: Event | None = None
        """what asks for a standstill, until all threads know of their ticks what only home knows"""

    def handle(self, event: Event) -> bool:
        """Takes a frame of home that is about the whole guest. False: it is about something else."""
        if event.kind == Control.PAUSE:
            self._tracee.is_pausing = True
            self._interrupted.begin_pause()
            self._link.pause()
            self._link.send(Control.PAUSED)
        elif event.kind == Control.QUIET:
            if self._signals.is_asking:
                self._quiet = event  # home answers, as long as it waits for FROZEN
            else:
                self._stand_still(event)
        elif event.kind == Control.THAW:
            self._thaw(int(unpack(event.data).get("watched", 0)))
        elif event.kind == Control.EXECUTED:
            self._over()
        elif event.kind == Control.PROGRAM:
            self._programs.take(unpack(event.data))
        elif event.kind == Control.COMMIT:
            self._programs.run(unpack(event.data))
        elif event.kind == Control.STOPPED:
            self._tracee.is_stopped = True
            self._tracee.undecided.clear()
            for tid in self._tracee.threads if self._tracee.frozen is None else ():
                if not self._tracee.stands(tid):
                    tracing.interrupt(tid)
        elif event.kind == Control.OVERRUNS:
            self._signals.overruns(event.tid, int(unpack(event.data)["overruns"]))
            quiet, self._quiet = self._quiet, None
            if quiet is not None:
                self.handle(quiet)
        else:
            return False
        return True

    def _over(self) -> None:
        """The process executes another program at home: what waits for it, and what it has used, is sent, and nothing of it runs any
        more. Who waits for its memory (vfork) goes on."""
        self._tracee.is_pausing = True
        ignored = tracing.signal_state(self._tracee.pid, self._tracee.pid).ignored
        pending: Pending = []
        if not self._freezing.would_find_nothing():
            self._link.pause()
            error = self._freezing.freeze(is_over=True)
            pending = [] if error else self._freezing.pending()
        place = self._programs.place()
        self._link.send(Control.OVER, 0, pack(pending=pending, used=self._link.account.used(), ignored=ignored, **place))
        self._guest.kill()
        self._memory.released()
        self._programs.expect()

    def _stand_still(self, event: Event) -> None:
        """QUIET: every thread comes to a standstill, and home gets what waits for it."""
        again = self._waits_for_child()
        error = "it waits for a child that has its memory (vfork)" if again else self._freezing.freeze()
        blocked, error = ([], error) if error or not unpack(event.data).get("watch") else self._prepare_to_watch()
        pending, used = ([], []) if error else (self._freezing.pending(), self._link.account.used())
        positions = [] if error else self._direct.positions()
        self._link.send(
            Control.FROZEN, 0,
            pack(error=error, again=again, pending=pending, used=used, positions=positions, own=self._direct.own(), blocked=blocked),
        )  # fmt: skip

    def _prepare_to_watch(self) -> tuple[list[list[int]], str]:
        """What its threads block, or why that is not known."""
        assert self._tracee.frozen is not None
        try:
            return self._masks.prepare(self._tracee.frozen), ""
        except (FarhomeError, OSError) as error:
            log.warning("masks of the guest cannot be watched", exc_info=True)
            return [], sentence(error)

    def _thaw(self, watched: int = 0) -> None:
        """The move is off: the guest runs on, and takes calls again. watched: if not 0, what waits at home from now on."""
        self._tracee.is_pausing, self._quiet = False, None
        self._memory.stop_giving_pages()
        if self._tracee.frozen is None:
            self._waits.thaw()
            self._link.unpause()
            for event in self._executions.again():
                self._guest.handle(event)
            return
        self._executions.forget()
        self._direct.forget()
        if watched:
            self._masks.take(self._tracee.frozen, watched)
        self._guest.run()
        self._link.unpause()
