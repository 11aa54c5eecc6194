"""Pressure stall information (PSI): how long programs of this node have waited for memory, a disk or a processor of late.

The kernel can report at once when it becomes too much (a trigger); without CAP_SYS_RESOURCE it does so over windows of 2 s alone. Where it
arms none at all, the counters are looked at.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from balancer.load.load import Pressure
from node.common import kernel_files
from node.guests.cgroups import hierarchies

STALL_US, WINDOW_US = 150_000, 2_000_000
"""A node is pressed where programs have waited for so long of that window."""
POLL = 0.25
"""Seconds between two reads of a counter."""
RESOURCES = ("memory", "io")

log = logging.getLogger("mosd.pressure")


def directory() -> Path | None:
    """Return where this node's own figures are: those of its control group, if that has some (a virtual node's are not the machine's)."""
    unified = hierarchies().get("unified")
    if unified is not None and (unified / "memory.pressure").exists():
        return unified
    return None


def file_of(resource: str, at: Path | None) -> Path:
    """The file that reports cpu, memory or io."""
    return at / f"{resource}.pressure" if at is not None else Path("/proc/pressure") / resource


def figures(path: Path, who: str = "some") -> tuple[float, int] | None:
    """Share of the last 10 s in which something waited ("some") or all did ("full"), and µs in all; None if it does not report it."""
    try:
        lines = {words[0]: words[1:] for words in map(str.split, kernel_files.read(path).decode("ascii").splitlines()) if words}
        reported = dict(word.split("=") for word in lines[who])
        return float(reported["avg10"]) / 100, int(reported["total"])
    except (OSError, ValueError, KeyError):
        return None


class Waits:
    """How much of the time things wait on this node, for the load vector."""

    def __init__(self, at: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._at = at or directory()
        self._clock = clock
        self._seen: tuple[float, int] | None = None

    def poll(self) -> Pressure:
        """Of processors since the last check: who moves cannot wait until an average has come to know of it. Of the rest over 10 s."""
        memory = self._average("memory", "some"), self._average("memory", "full")
        return Pressure(self._of_processors(), *memory, self._average("io", "full"))

    def _average(self, resource: str, who: str) -> float | None:
        reported = figures(file_of(resource, self._at), who)
        return reported[0] if reported is not None else None

    def _of_processors(self) -> float | None:
        reported = figures(file_of("cpu", self._at))
        if reported is None:
            return None
        now, total = self._clock(), reported[1]
        before, self._seen = self._seen, (now, total)
        if before is None or now <= before[0]:
            return reported[0]
        return min(1.0, max(0.0, (total - before[1]) / 1e6 / (now - before[0])))


class PressureWatch:
    """Knows whether the node is pressed for memory or disk. Descriptors are open between start() and close()."""

    def __init__(self, at: Path | None = None) -> None:
        self._at = at
        self._pressed_at = float("-inf")
        self._triggers: dict[int, str] = {}
        self._epoll: select.epoll | None = None
        self._totals: dict[str, deque[tuple[float, int]]] = {}
        self._looked = float("-inf")

    @property
    def is_armed(self) -> bool:
        """Whether the kernel reports by itself, for all resources."""
        return self._epoll is not None and not self._totals

    def start(self) -> None:
        """Arms what can be armed; the rest is looked at."""
        self._at = self._at or directory()
        self._epoll = select.epoll()
        for resource in RESOURCES:
            path = file_of(resource, self._at)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                log.debug("%s: %s", path, error)
                self._totals[resource] = deque()
                continue
            try:
                os.write(descriptor, f"some {STALL_US} {WINDOW_US}\0".encode())
                self._epoll.register(descriptor, select.EPOLLPRI)
                self._triggers[descriptor] = resource
            except OSError as error:
                log.debug("%s takes no trigger: %s", path, error)
                os.close(descriptor)
                self._totals[resource] = deque()
        # The loop waits for what can be read; an epoll can be when one of its own has something urgent.
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._triggered)

    def _triggered(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            log.info("programs wait for %s", self._triggers.get(descriptor, "something"))
            self._pressed_at = time.monotonic()

    def is_pressed(self) -> bool:
        """Return whether it has been within the last window."""
        now = time.monotonic()
        if self._totals and now - self._looked >= POLL:
            self._looked = now
            for resource, seen in self._totals.items():
                if (reported := figures(file_of(resource, self._at))) is not None:
                    self._look(seen, now, reported[1])
        return now - self._pressed_at < WINDOW_US / 1e6

    def _look(self, seen: deque[tuple[float, int]], now: float, total: int) -> None:
        seen.append((now, total))
        while now - seen[0][0] > WINDOW_US / 1e6:
            seen.popleft()
        if total - seen[0][1] >= STALL_US:
            self._pressed_at = now

    def close(self) -> None:
        """Lets go of the triggers."""
        if self._epoll is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        for descriptor in self._triggers:
            os.close(descriptor)
        self._triggers.clear()
        self._totals.clear()
