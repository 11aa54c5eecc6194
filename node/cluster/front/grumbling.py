"""Lines of the log that strangers cause: one a minute for each kind and source, however many come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

PERIOD = 60.0
MOST = 256
"""Pairs of kind and source that are told apart; beyond them a kind has one line for all others."""


class Grumbler:
    """Tells a log of what strangers do."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(self, kind: str, source: str, sentence: str) -> None:
        """Says the sentence, or counts it. kind: one of a few words of ours, never what came from the stranger."""
        now, key = self._clock(), (kind, source)
        if key not in self._told and len(self._told) >= MOST:
            self._told = {known: told for known, told in self._told.items() if now - told[0] < PERIOD}
            if len(self._told) >= MOST:
                key = kind, ""
        since, held_back = self._told.get(key, (float("-inf"), 0))
        if now - since < PERIOD:
            self._told[key] = since, held_back + 1
            return
        self._told[key] = now, 0
        more = f" ({held_back} more since the last such line)" if held_back else ""
        self._log.warning("%s%s", sentence, more)
