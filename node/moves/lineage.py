"""Which home process a process descends from, also when those between have ended before anybody could look: daemons, `setsid -f`,
what a shell leaves in the background.

The kernel reports births in their order (kernel_helpers/inspection/forks.py), even if the processes have ended. Where it does not, children
are found only among those of parents that live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kernel_helpers.inspection.forks import Forks
from node.common import process

T = TypeVar("T")
MOST_BETWEEN = 4096
"""Processes that are followed without being home processes themselves."""

log = logging.getLogger("mosd.lineage")


class Births(Protocol):
    """What Forks is; tests have one of their own."""

    def take(self) -> tuple[list[tuple[int, int]], bool]: ...

    def close(self) -> None: ...


def listen() -> Births | None:
    """Return the source of births; None: there is none here."""
    try:
        return Forks()
    except OSError as error:
        log.info("programs that go into the background are not followed: %s", error)
        return None


class Lineage(Generic[T]):
    """Descendants of what is known, as births report about them."""

    def __init__(self, births: Births | None) -> None:
        self._births = births
        self._between: dict[int, T] = {}
        self._has_lost = False

    def take(self, known: Callable[[int], T | None]) -> list[tuple[int, T]]:
        """Processes that were born since the last time, and what is known that each descends from, in their order."""
        if self._births is None:
            return []
        over = [pid for pid in self._between if process.read_stat(pid) is None]  # what those have borne is reported by now
        births, lost = self._births.take()
        if lost and not self._has_lost:
            log.warning("more processes were born than could be taken note of: some that are in the background may not be found")
        self._has_lost = lost
        found: dict[int, T] = {}
        for parent, child in births:
            ancestor = known(parent) or self._between.get(parent)
            for earlier in (self._between, found):
                earlier.pop(child, None)  # a process of that number that has ended
            if ancestor is not None and len(self._between) < MOST_BETWEEN:
                self._between[child] = ancestor
                found[child] = ancestor
        born = {child for _, child in births}
        for pid in over:
            if pid not in born:
                self._between.pop(pid, None)
        return list(found.items())

    def leave_out(self, pid: int) -> None:
        """It is known itself."""
        self._between.pop(pid, None)

    def close(self) -> None:
        """Stops listening."""
        if self._births is not None:
            self._births.close()
            self._births = None
