"""How long one end of a link has waited for the other one. Pure: the clock is a parameter.

Only time counts in which the other end could have been heard. A program that was itself stopped, starved or asleep finds, when it goes on,
that much time has passed, and knows nothing of what the other end did meanwhile: of such a gap it counts no more than a step.
"""

from __future__ import annotations

import math

STEP = 2.0
"""Seconds. Who waits looks far more often, if it can."""
LEAST, MOST = 1.0, 3600.0
"""Seconds: bounds of `link_timeout`."""


class Patience:
    """Of `limit` seconds; begins anew with begin()."""

    def __init__(self, limit: float, now: float, step: float = STEP) -> None:
        """step: seconds between two looks that count, at most."""
        self.limit = limit
        self._step = step
        self.waited = 0.0
        """seconds that count"""
        self._looked = now

    def begin(self, now: float) -> None:
        """The other end has just been heard."""
        self.waited, self._looked = 0.0, now

    def is_over(self, now: float) -> bool:
        """Looks at the clock; whether enough has been waited."""
        self.waited += min(max(0.0, now - self._looked), self._step)
        self._looked = now
        return self.waited > self.limit


class Silence:
    """After how long without a heartbeat (one comes each second) a connection is given up, and made anew: the longer, the more often that
    was so lately. A starved node would do nothing but connect otherwise."""

    SHORTEST, LONGEST, FORGETS = 3.0, 30.0, 60.0
    """Seconds; FORGETS: a connection that has held for so long is as good as any."""

    def __init__(self, now: float) -> None:
        self.bound = self.SHORTEST
        self._broke_at = now - self.FORGETS

    def broke(self, now: float) -> None:
        """A connection was given up, or has ended."""
        self.bound = self.SHORTEST if now - self._broke_at > self.FORGETS else min(2 * self.bound, self.LONGEST)
        self._broke_at = now


def longer(limit: float) -> float:
    """For how long the guest's end waits where its home waits for `limit` seconds. Home decides: while it may come back, nobody ends the
    guest; and the two ends do not notice a break at the same moment."""
    return limit * 1.1 + 1.0


def of_guest(reported: object, own: float) -> float:
    """For how long the guest's end waits: longer than its home, whose `link_timeout` comes as a move begins (own: if it is not)."""
    limit = float(reported) if isinstance(reported, (int, float)) and not isinstance(reported, bool) and math.isfinite(reported) else own
    return longer(min(max(limit, LEAST), MOST))
