"""One move out or hop, from mosd's request to the answer: the target prepares, memory goes ahead, the process follows.

Everything here is called in the deputy's loop, and returns soon: what takes long runs in a worker (deputy/preparation.py), and the loop
comes back when it is over. Only the process itself leaves in one go (deputy/leaving.py).
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from deputy import freezing, leaving
from deputy.beginning import Beginning, program_of
from deputy.freezing import MOMENT_PATIENCE, NotNow, Writes
from deputy.preparation import Preparation
from deputy.report import Report
from deputy.trace import STDERR, TraceFile
from deputy.traced import Replaced
from engine.precopy import Ahead
from kernel_helpers.errors import FarhomeError, MoveRefused
from kernel_helpers.errors import sentence as sentence_of
from kernel_helpers.process.seizing import Frozen
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.deputy import Deputy

log = logging.getLogger("deputy")

WRITE_PATIENCE = 0.25
"""Seconds that a write may take which the process is in the middle of, for its memory to go ahead of it."""


class Departure:
    """Of a deputy's process, from home or from another node, as the message `number` of mosd asks for it."""

    def __init__(self, deputy: Deputy, preparation: Preparation, number: int | None) -> None:
        self._deputy = deputy
        self._preparation = preparation
        self._number = number
        self._begun = time.monotonic()
        self._mosrun: os.stat_result | None = None
        """the program that the process still is, if it is about to execute another, which is to leave"""
        self._voice: TraceFile | None = None
        """the standard error of the program that begins"""
        self._has_begun = False
        """mosrun has become it"""
        if preparation.begins:
            with suppress(OSError):  # it may just have ended
                self._mosrun = program_of(deputy.pid)

    def start(self) -> None:
        """The target prepares."""
        self._deputy.prepare(self._preparation, self._go_on)

    def _go_on(self) -> None:
        """The next step, when the one before is over."""
        deputy, preparation = self._deputy, self._preparation
        try:
            report = self._step()
        except Replaced:
            return  # deputy/execution.py makes it
        except NotNow as reason:
            if time.monotonic() - preparation.over_since < MOMENT_PATIENCE:
                deputy.await_prepared(preparation, self._go_on)
            else:
                self._fail(MoveRefused(deputy.pid, str(reason)) if deputy.where == "home" else reason)
            return
        except (FarhomeError, WireError, OSError) as error:
            self._fail(error)
            return
        if report is not None:
            self._arrived(report)

    def _step(self) -> Report | None:
        """None: something has begun after which it goes on. Errors: Replaced, NotNow, FarhomeError, WireError, OSError: it stays where it
        is."""
        deputy, preparation, held, since = self._deputy, self._preparation, None, self._begun
        if deputy.finished:
            raise FarhomeError("the process ended")
        preparation.check()
        if preparation.begins and self._mosrun is not None:
            if deputy.beginning is None:
                self._begin(self._mosrun)
                return None
            held, since = self._take_begun(deputy.beginning)
        if deputy.where == "home" and held is None:
            leaving.await_alone(deputy.pid)
            if deputy.rests:
                raise Writes
        if preparation.areas and preparation.ahead is None:
            self._go_ahead()
            return None
        if preparation.unwatched:
            self._watch()
            return None
        if deputy.where == "home":
            return leaving.leave(deputy, preparation, since, held)
        return leaving.hop(deputy, preparation, self._begun)

    def _begin(self, mosrun: os.stat_result) -> None:
        """The target is ready: mosrun may execute its program. Errors: OSError."""
        beginning = self._deputy.beginning = Beginning(self._deputy.pid, mosrun)
        if self._preparation.says and not beginning.is_over:
            self._voice = TraceFile(self._deputy.pid, STDERR)
            self._voice.open()
        self._deputy.mosd.begins()

        def is_over() -> bool:
            beginning.look()
            return beginning.is_over

        self._deputy.await_that(self._preparation, is_over, self._go_on)

    def _take_begun(self, beginning: Beginning) -> tuple[Frozen | None, float]:
        """The program at its first instruction, and since when; or None: it runs already, and leaves as any. Errors: as Beginning.take."""
        self._deputy.beginning, self._preparation.begins = None, ""
        try:
            held, since = beginning.take(self._preparation.owners), beginning.held_since
        except MoveRefused:
            self._has_begun = True
            raise
        self._has_begun = True
        if held is None:
            self._preparation.look_for_areas()
        return held, since or time.monotonic()

    def _go_ahead(self) -> None:
        """Memory of the process is sent while it runs on. Errors: NotNow, OSError."""
        preparation = self._preparation
        is_writing = freezing.await_writes(self._deputy, preparation.over_since, WRITE_PATIENCE)
        areas, preparation.areas = preparation.areas, []
        if is_writing:
            self._go_on()
            return
        userfaultfd = -1
        if preparation.memory != "postcopy":
            userfaultfd, seconds = leaving.watch(self._deputy)
            preparation.stood_still += seconds
        preparation.ahead = Ahead(self._deputy.pid, userfaultfd, areas, preparation.memory)
        preparation.is_over = False
        start_thread("memory", preparation.send_ahead, self._deputy.tree.waker.wake)
        self._deputy.await_prepared(preparation, self._go_on)

    def _watch(self) -> None:
        """The same, of a guest that was not watched yet. Errors: as freezing.watch_guest."""
        preparation = self._preparation
        assert preparation.source is not None
        preparation.unwatched = False
        preparation.stood_still += freezing.watch_guest(self._deputy, preparation.source)
        preparation.is_over = False
        start_thread("memory", preparation.prepare_source_again, self._deputy.tree.waker.wake)
        self._deputy.await_prepared(preparation, self._go_on)

    def _fail(self, error: Exception) -> None:
        """The process stays where it is, and mosd is told why."""
        deputy, target = self._deputy, self._preparation.target
        deputy.wanted = None
        self._preparation.abandon()
        sentence = str(error) if isinstance(error, MoveRefused) else f"the move to {target.node} failed: {sentence_of(error)}"
        log.warning("%s", sentence, exc_info=not isinstance(error, (MoveRefused, NotNow, WireError)))
        if self._voice is not None:  # mosrun is its program by now, and tells nothing any more
            reason = error.reason if isinstance(error, MoveRefused) else sentence_of(error)
            if self._has_begun:
                self._voice.write(f"mosrun: it does not begin on {target.node}: {reason}; it runs at home\n".encode())
            self._voice.close()
        deputy.mosd.refuse(self._number, sentence, deputy.where)
        if deputy.where == "home":
            deputy.finish()

    def _arrived(self, report: Report) -> None:
        """The process is where it was to go."""
        deputy = self._deputy
        deputy.wanted = None
        if self._voice is not None:
            self._voice.close()
        deputy.note_use()
        log.info("process %d is on %s, frozen %.1f ms, %d bytes", deputy.pid, report.where, report.frozen_ms, report.size)
        deputy.mosd.answer(self._number, report)
        deputy.mosd.state(deputy.where, "moved", report.frozen_ms)


__all__ = ["Departure"]
