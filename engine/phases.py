"""The steps of a move: where its time goes, logged at debug level by both sides."""

from __future__ import annotations

import logging
import time

from wire import steps


class Phases:
    """A stop-watch: done(name) says that the phase of that name ends now and the next begins."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = time.monotonic()
        self.times: list[tuple[str, float]] = []
        """(phase, milliseconds), in order"""

    def done(self, name: str) -> None:
        now = time.monotonic()
        self.times.append((name, (now - self._last) * 1e3))
        self._last = now
        steps.reached(f"{self._what}: {name}")

    def report(self, log: logging.Logger) -> None:
        """One line."""
        phases = ", ".join(f"{name} {ms:.1f}" for name, ms in self.times)
        log.debug("%s took %.1f ms: %s", self._what, sum(ms for _, ms in self.times), phases)
