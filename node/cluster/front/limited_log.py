"""Lines of the log that strangers cause: one a minute for each kind and source, however many come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

PERIOD = 60.0
MOST = 256
"""Pairs of kind and source that are counted separately; beyond them a kind has one line for all others."""


class LimitedLog:
    """Logs what strangers do, at a bounded rate."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._reported: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(self, kind: str, source: str, sentence: str) -> None:
        """Says the sentence, or counts it. kind: one of a few words of ours, never what came from the stranger."""
        now, key = self._clock(), (kind, source)
        if key not in self._reported and len(self._reported) >= MOST:
            self._reported = {known: reported for known, reported in self._reported.items() if now - reported[0] < PERIOD}
            if len(self._reported) >= MOST:
                key = kind, ""
        since, held_back = self._reported.get(key, (float("-inf"), 0))
        if now - since < PERIOD:
            self._reported[key] = since, held_back + 1
            return
        self._reported[key] = now, 0
        more = f" ({held_back} more since the last such line)" if held_back else ""
        self._log.warning("%s%s", sentence, more)
