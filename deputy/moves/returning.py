"""One move home, from its reason to the answer: memory comes ahead, the process follows.

Everything here is called in the deputy's loop, and returns soon; what takes long runs in a worker (deputy/moves/memory_ahead.py). Only the
process itself comes in one go (deputy/moves/homecoming.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from deputy.away import Away
from deputy.link.guestlink import LinkLost
from deputy.moves import homecoming
from deputy.moves.memory_ahead import Approach
from deputy.moves.move import Move, Wanted
from deputy.moves.report import Report
from deputy.process import Process
from deputy.requests.freezing import MOMENT_PATIENCE, NotNow
from deputy.stub.traced import Replaced
from engine.pour.precopy import Progress
from kernel_helpers.common.errors import FarhomeError, sentence
from wire.frames import WireError

log = logging.getLogger("deputy")

ATTEMPTS = 5
RETRY = 0.5
"""Seconds until it is tried again for what only home can do."""


class Returning(Move):
    """For that reason; number: of mosd's message that asks for it, if one does; memory: of precopy.MODES."""

    def __init__(self, process: Process, away: Away, reason: str, number: int | None, memory: str) -> None:
        self._process = process
        self._away = away
        self._reason = reason
        self._number = number
        self._begun = time.monotonic()
        self._approach = Approach(away, memory, process.options.link_timeout)
        self._step: Callable[[], Move | None] = self._come_nearer
        self.wanted = Wanted(number, reason=reason) if number is not None else None

    @property
    def is_asked(self) -> bool:
        """Whether mosd has asked for it; else it is for a call, or the like."""
        return self._number is not None

    @property
    def progress(self) -> Progress:
        """Of the memory that comes ahead."""
        return self._approach.progress

    def start(self) -> Move | None:
        """First its memory, while it runs on; at once, if nothing of it runs until it is home, anyway."""
        if self._number is None and (len(self._away.stub.tids) == 1 or self._away.death is not None):
            self._approach.over_since = self._begun
            return self._come_home()
        self._approach.start(self._process.loop.wake)
        return self

    def step(self) -> Move | None:
        """See Move."""
        return self._step()

    def _come_nearer(self) -> Move | None:
        with suppress(LinkLost, Replaced):  # coming home finds it out again
            self._approach.poll()
        return self._come_home() if self._approach.is_over else self

    def _come_home(self) -> Move | None:
        """The process itself, when its memory has come as far as it does."""
        process, number, was = self._process, self._number, self._away.where
        try:
            report = self._come_home_patiently()
        except LinkLost as lost:
            process.lost(str(lost))
            self.abandon()
            return None
        except Replaced:
            self._step = lambda: self  # deputy/moves/programs/execution.py goes on
            return self
        except NotNow as error:
            if time.monotonic() - self._approach.over_since < MOMENT_PATIENCE:
                self._step = self._come_home
                return self
            self._approach.close()
            self._away.cannot_come_home()
            process.mosd.refuse(number, f"coming home from {was} failed: {sentence(error)}", process.where)
            return None
        except (FarhomeError, WireError, OSError) as error:
            log.warning("coming home from %s failed: %s", was, error, exc_info=True)
            self._approach.close()
            self._away.retry_home_at = time.monotonic() + RETRY
            self._away.cannot_come_home()
            if number is not None:
                process.mosd.refuse(number, f"coming home from {was} failed: {sentence(error)}", process.where)
            return None
        ms, size = report.frozen_ms, report.size
        log.info("process %d is home from %s (%s), frozen %.1f ms, %d bytes", process.pid, was, self._reason, ms, size)
        if number is not None:
            process.mosd.answer(number, report)
        process.mosd.state("home", self._reason, report.frozen_ms)
        if process.late_memory is None:
            process.finish()
        return None

    def _come_home_patiently(self) -> Report:
        """A thread that stands in another kernel's vdso cannot come; a moment later it has left it."""
        for _ in range(ATTEMPTS - 1):
            try:
                return homecoming.come_home(self._process, self._away, self._begun, self._approach)
            except homecoming.TryAgain as reason:
                log.info("not yet home: %s", reason)
        return homecoming.come_home(self._process, self._away, self._begun, self._approach)

    def overtaken(self) -> None:
        """The guest does not come home any more, nor is it where it was."""
        self._approach.spent()
        self._approach.close()

    def abandon(self) -> None:
        """The process has ended: as overtaken()."""
        self.overtaken()


__all__ = ["Returning"]
