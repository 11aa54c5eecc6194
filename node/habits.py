"""What home processes read and write, and how many calls home answers for them: measured where they are, for the decisions.

At home the kernel counts a process's reads and writes; away its deputy counts the calls that it has made for it, and their bytes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from balancer.nearness import Habit, Meter
from balancer.process import HOME
from node import process
from node.moves import Mover
from node.programs import ProgramError
from node.registry import HomeProcess, Registry

PERIOD = 2.0
REST = 20
"""How many times as long as the daemon computes during a look there is none."""
TIMEOUT = 2.0

Stay = tuple[str, float]
"""Where, since when: counters go on through one stay."""


class Habits:
    """Of each home process."""

    def __init__(self, registry: Registry, mover: Mover) -> None:
        self._registry = registry
        self._mover = mover
        self._known: dict[int, tuple[int, Stay, Habit]] = {}
        self._took = 0.0

    def period(self) -> float:
        """Seconds until the next look."""
        return max(PERIOD, REST * self._took)

    def of(self, entry: HomeProcess) -> Habit:
        """What is known of it; nothing at first."""
        starttime, _, habit = self._known.get(entry.pid, (entry.starttime, None, Habit()))
        return habit if starttime == entry.starttime else Habit()

    async def look(self) -> None:
        """Reads all counters."""
        begun = time.thread_time()
        entries = [entry for entry in self._registry if entry.state in ("home", "away") and not entry.home_only]
        self._known = {entry.pid: self._known[entry.pid] for entry in entries if entry.pid in self._known}
        away = [entry for entry in entries if entry.where != HOME]
        for entry in entries:
            if entry.where == HOME and (done := process.read_traffic(entry.pid)) is not None:
                self._read(entry, *done)
        await asyncio.gather(*(self._ask(entry) for entry in away))
        self._took = time.thread_time() - begun

    async def _ask(self, entry: HomeProcess) -> None:
        try:
            status = await self._mover.deputy_status(entry.pid, TIMEOUT)
            if status.get("where") == entry.where:
                self._read(entry, int(status["calls"]), int(status["carried"]))
        except (ProgramError, KeyError, TypeError, ValueError):
            return                               # it is on its way, or has ended

    def _read(self, entry: HomeProcess, calls: int, moved: int) -> None:
        if entry.where != HOME and not self._registry.told_of_stay(entry):
            return
        now, stay = time.time(), (entry.where, entry.since)
        known, habit = self._known.get(entry.pid, (0, None, Habit()))[1:], self.of(entry)
        if known[0] != stay:
            habit = replace(habit, known=None)
        meter = Meter(now, self._registry.cpu_seconds(entry, now), calls, moved)
        self._known[entry.pid] = entry.starttime, stay, habit.read(meter)
