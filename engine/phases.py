"""Where the time of a move goes: told to the log, at debug level, by both sides."""

from __future__ import annotations

import logging
import time


class Phases:
    """A stop-watch: done(name) says that the phase of that name ends now and the next begins."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.times: list[tuple[str, float]] = []
        """(phase, milliseconds), in order"""

    def done(self, name: str) -> None:
        now = time.monotonic()
        self.times.append((name, (now - self._last) * 1e3))
        self._last = now

    def tell(self, log: logging.Logger, what: str) -> None:
        """One line."""
        log.debug("%s took %.1f ms: %s", what, sum(ms for _, ms in self.times), ", ".join(f"{name} {ms:.1f}" for name, ms in self.times))
