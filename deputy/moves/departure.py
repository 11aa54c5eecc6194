"""One move out or hop, from mosd's request to the answer: the target prepares, memory goes ahead, the process follows.

Everything here is called in the deputy's loop, and returns soon: what takes long runs in a worker (deputy/moves/preparation.py), and the
loop comes back when it is over. Only the process itself leaves in one go (deputy/moves/out_and_hop.py).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from deputy.moves import out_and_hop
from deputy.moves.frozen import Held
from deputy.moves.move import Move, Wanted
from deputy.moves.preparation import Preparation
from deputy.moves.programs.beginning import Beginning, program_of
from deputy.moves.report import Report
from deputy.requests import freezing
from deputy.requests.freezing import MOMENT_PATIENCE, NotNow, Writes
from deputy.requests.trace import STDERR, TraceFile
from deputy.stub.traced import Replaced
from engine.calls import rests
from engine.calls.restarts import shorten, timed_waits, waiting_places
from engine.leaving.refusal import passes, shares_memory
from engine.pour import precopy
from engine.pour.precopy import Ahead, Progress
from kernel_helpers.common.errors import FarhomeError, MoveRefused
from kernel_helpers.common.errors import sentence as sentence_of
from kernel_helpers.process.journal import Journal
from kernel_helpers.process.seizing import Frozen
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.process import Process

log = logging.getLogger("deputy")

WRITE_PATIENCE = 0.25
"""Seconds that a write may take which the process is in the middle of, for its memory to go ahead of it."""


class Departure(Move):
    """Of a process, from home or from another node, as the message `number` of mosd asks for it."""

    def __init__(self, process: Process, preparation: Preparation, number: int | None) -> None:
        self._process = process
        self._preparation = preparation
        self._number = number
        self._begun = time.monotonic()
        self._is_due: Callable[[], bool] = self._is_prepared
        """whether the next step can be made"""
        self._mosrun: os.stat_result | None = None
        """the program that the process still is, if it is about to execute another, which is to leave"""
        self._beginning: Beginning | None = None
        """it is that still"""
        self._voice: TraceFile | None = None
        """the standard error of the program that begins"""
        self._has_begun = False
        """mosrun has become it"""
        self.wanted = Wanted(number, preparation) if process.away is not None else None
        if preparation.begins:
            with suppress(OSError):  # it may just have ended
                self._mosrun = program_of(process.pid)

    def start(self) -> Move:
        """Return the target prepares."""
        start_thread("preparation", self._preparation.run, self._process.loop.wake)
        return self

    @property
    def progress(self) -> Progress:
        """Of the memory that goes ahead."""
        return self._preparation.progress

    def _is_prepared(self) -> bool:
        return self._preparation.is_over

    def step(self) -> Move | None:
        """See Move."""
        if not self._is_due():
            return self
        self._process.note_use()
        try:
            report = self._step()
        except Replaced:
            self._is_due = lambda: False  # deputy/moves/programs/execution.py makes it
            return self
        except NotNow as reason:
            if time.monotonic() - self._preparation.over_since < MOMENT_PATIENCE:
                self._is_due = self._is_prepared
                return self
            process = self._process
            self._fail(MoveRefused(process.pid, str(reason)) if process.away is None else reason)
            return None
        except (FarhomeError, WireError, OSError) as error:
            self._fail(error)
            return None
        if report is None:
            return self
        self._arrived(report)
        return None

    def _step(self) -> Report | None:
        """None: something has begun after which it goes on. Errors: Replaced, NotNow, FarhomeError, WireError, OSError: it stays where it
        is."""
        process, preparation, held, since = self._process, self._preparation, None, self._begun
        if process.finished:
            raise FarhomeError("the process ended")
        preparation.check()
        if preparation.begins and self._mosrun is not None:
            if self._beginning is None:
                self._begin(self._mosrun)
                return None
            held, since = self._take_begun(self._beginning)
        if process.away is None and held is None:
            _await_alone(process.pid)
            if process.rests:
                raise Writes
        if preparation.areas and preparation.ahead is None and self._go_ahead():
            return None
        if preparation.unwatched and process.away is not None:
            self._watch(process.away)
            return None
        if process.away is None:
            return out_and_hop.leave(process, preparation, since, self._look_at(held) if held is not None else None)
        return out_and_hop.hop(process, process.away, preparation, self._begun)

    def _begin(self, mosrun: os.stat_result) -> None:
        """The target is ready: mosrun may execute its program. Errors: OSError."""
        beginning = self._beginning = Beginning(self._process.pid, mosrun)
        if self._preparation.says and not beginning.is_over:
            self._voice = TraceFile(self._process.pid, STDERR)
            self._voice.open()
        self._process.mosd.begins()

        def has_begun() -> bool:
            beginning.poll()
            return beginning.is_over

        self._is_due = has_begun

    def _take_begun(self, beginning: Beginning) -> tuple[Frozen | None, float]:
        """The program at its first instruction, and since when; or None: it runs already, and leaves as any. Errors: as Beginning.take."""
        self._beginning, self._preparation.begins = None, ""
        try:
            held, since = beginning.take(self._preparation.owners), beginning.held_since
        except MoveRefused:
            self._has_begun = True
            raise
        self._has_begun = True
        if held is None:
            self._preparation.look_for_areas()
        return held, since or time.monotonic()

    def _look_at(self, frozen: Frozen) -> Held:
        """A program at its first instruction. Errors: as Held.examine; it runs on."""
        try:
            return Held.examine(self._process, frozen, self._preparation.owners, [])
        except BaseException:
            frozen.detach()
            raise

    def _go_ahead(self) -> bool:
        """Memory of the process is sent while it runs on. False: it writes, and all goes at once. Errors: NotNow, OSError."""
        process, preparation = self._process, self._preparation
        stub = process.away.stub if process.away is not None else None
        is_writing = freezing.await_writes(process.pid, stub, preparation.over_since, WRITE_PATIENCE)
        areas, preparation.areas = preparation.areas, []
        if is_writing:
            return False
        userfaultfd = -1
        if preparation.memory != "postcopy":
            userfaultfd, seconds = _watch_home(process)
            preparation.stood_still += seconds
        preparation.ahead = Ahead(process.pid, userfaultfd, areas, preparation.memory)
        self._work("memory", preparation.send_ahead)
        return True

    def _watch(self, away: Away) -> None:
        """The same, of a guest that was not watched yet. Errors: as freezing.watch_guest."""
        preparation = self._preparation
        assert preparation.source is not None
        preparation.unwatched = False
        preparation.stood_still += freezing.watch_guest(away, preparation.source)
        self._work("memory", preparation.prepare_source_again)

    def _work(self, name: str, work: Callable[[Callable[[], None]], None]) -> None:
        """In a worker, after which it goes on."""
        self._preparation.is_over = False
        start_thread(name, work, self._process.loop.wake)
        self._is_due = self._is_prepared

    def _fail(self, error: Exception) -> None:
        """The process stays where it is, and the reason goes to mosd."""
        process, target = self._process, self._preparation.target
        self.abandon()
        sentence = str(error) if isinstance(error, MoveRefused) else f"the move to {target.node} failed: {sentence_of(error)}"
        log.warning("%s", sentence, exc_info=not isinstance(error, (MoveRefused, NotNow, WireError)))
        if self._voice is not None:  # mosrun is its program by now, and reports nothing any more
            reason = error.reason if isinstance(error, MoveRefused) else sentence_of(error)
            if self._has_begun:
                self._voice.write(f"mosrun: it does not begin on {target.node}: {reason}; it runs at home\n".encode())
            self._voice.close()
        process.mosd.refuse(self._number, sentence, process.where)
        if process.away is None:
            process.finish()

    def _arrived(self, report: Report) -> None:
        """The process is where it was to go."""
        process = self._process
        if self._voice is not None:
            self._voice.close()
        process.note_use()
        log.info("process %d is on %s, frozen %.1f ms, %d bytes", process.pid, report.where, report.frozen_ms, report.size)
        process.mosd.answer(self._number, report)
        process.mosd.state(process.where, "moved", report.frozen_ms)

    def abandon(self) -> None:
        """The process has ended, or stays where it is."""
        self._preparation.abandon()
        if self._beginning is not None:
            with suppress(OSError):
                self._beginning.close()


def _await_alone(pid: int) -> None:
    """Whose memory is that of a child that is about to execute a program cannot be stopped before. Errors: NotNow, MoveRefused."""
    reason = shares_memory(pid)
    if reason is not None:
        raise NotNow(reason) if passes(reason) else MoveRefused(pid, reason)


def _watch_home(process: Process) -> tuple[int, float]:
    """Stops the process for a moment, from when on its memory may go ahead of it. Returns by which userfaultfd its writes are noted, -1 if
    they cannot be, and for how many seconds it stood still. Errors: OSError."""
    places = waiting_places(process.pid)
    waits = timed_waits(process.pid, places)
    begun = time.monotonic()
    frozen, ends = freezing.seize(process.pid, places, waits)
    cuts: dict[int, rests.Cut] = {}
    try:
        cuts = rests.find(frozen)
        frozen.keep(Journal(process.options.journal))
        userfaultfd = precopy.userfaultfd_or_none(frozen)
    finally:
        shorten(frozen, ends)
        process.rests.detach(frozen, cuts)
    return userfaultfd, time.monotonic() - begun


__all__ = ["Departure"]
