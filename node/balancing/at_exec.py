"""Processes at home that execute programs: what those have used before decides whether they are placed at once, by the rule of
balancer/decisions/at_exec.py.

The kernel reports each execution and end; what happens for each of them is C (kernel_helpers/inspection/programs/). Here come those of
programs that something is known of, and the ends of those that were not short.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Protocol

from balancer.decisions.at_exec import decide_at_exec, why_short
from balancer.decisions.cost import Line, MoveCost
from balancer.decisions.journal import Journal
from balancer.decisions.process import Decision, Process
from balancer.decisions.programs import LEAST, Expected, Programs
from balancer.load.view import View
from kernel_helpers.inspection.programs.executions import Execution, Executions
from node.balancing.cluster_view import ClusterView
from node.common.config import Config
from node.common.paths import write_atomically
from node.common.periodic import periodically
from node.common.tasks import Tasks
from node.moves.home_process import HOME, HomeProcess
from node.moves.moves import Mover
from node.moves.registry import Registry

AT_ONCE = 6
"""Moves of such processes; others wait at home for their turn, and run meanwhile."""
MOST_WAITING = 256
PERIOD = 1.0
SAVE_PERIOD = 60.0
PAUSE = 0.002
"""Seconds between two checks for programs that were executed: a machine that executes without end is not to have the daemon for itself."""
LATE = 1.0
"""Seconds in which a deputy has reported what a process has used away that has ended."""
KEPT_ENDS = 1024
"""Of processes that have ended away."""
COUNTS = 0.05
"""Seconds of cpu away from which on calls are known."""

log = logging.getLogger("mosd.at_exec")


class Balancing(Protocol):
    """What the balancer does for it (balancing.py)."""

    journal: Journal

    def view_ahead(self) -> View:
        """What is known of all, less what is on its way out."""

    def figures(self, entry: HomeProcess) -> Process:
        """A process as the decisions see it."""

    async def act(self, decision: Decision) -> bool:
        """Makes a move; whether another target might take the process where this one has not."""


class AtExec:
    """Places processes at home that execute."""

    def __init__(
        self, config: Callable[[], Config], registry: Registry, mover: Mover, cluster: ClusterView, balancing: Balancing, path: Path
    ) -> None:
        """path: where it is kept over restarts what programs have used."""
        self._config = config
        self._registry = registry
        self._mover = mover
        self._cluster = cluster
        self._balancing = balancing
        self._path = path
        self._rng = random.Random()
        self._tasks = Tasks()
        self._executions: Executions | None = None
        self._is_reported = True
        self._followed: set[tuple[int, int]] = set()
        """Pid and start time."""
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._coming: Counter[str] = Counter()
        self._used_away: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._saved_at, self._is_new = 0.0, False
        self.programs = Programs()

    def start(self) -> None:
        """Until close()."""
        self._load()
        self._mover.deputies.ended_away = self._ended_away
        self._tasks.spawn(periodically("what is executed", self._look, lambda: PERIOD))

    # -- what is followed ----------------------------------------------------------------------------------------------------

    @property
    def _is_wanted(self) -> bool:
        return self._config().balance and self._config().at_exec

    def _look(self) -> None:
        if self._is_wanted and self._executions is None and self._is_reported:
            self._open()
        elif not self._is_wanted and self._executions is not None:
            self._let_go()
        if self._executions is not None:
            entries = {(entry.pid, entry.starttime) for entry in self._registry if not entry.home_only and not entry.locked}
            for pid, _ in entries - self._followed:
                self._executions.follow(pid)
            self._followed = entries
        if self._is_new and time.monotonic() - self._saved_at > SAVE_PERIOD:
            self._save()

    def begun(self, entry: HomeProcess) -> None:
        """A process has begun: its children are followed from its first one on."""
        if self._executions is not None and not entry.home_only and not entry.locked:
            self._take()
            self._executions.follow(entry.pid)
            self._followed.add((entry.pid, entry.starttime))

    def _open(self) -> None:
        try:
            self._executions = Executions(LEAST)
        except OSError as error:
            self._is_reported = False
            log.info("programs are not placed when they are executed: %s", error)
            return
        for uid, path in self.programs:
            self._executions.know(uid, path)
        self._listen()

    def _listen(self) -> None:
        if self._executions is not None:
            asyncio.get_running_loop().add_reader(self._executions.fileno(), self._ready)

    def _ready(self) -> None:
        assert self._executions is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._executions.fileno())
        loop.call_later(PAUSE, self._listen)
        self._take()

    def _let_go(self) -> None:
        if self._executions is not None:
            asyncio.get_running_loop().remove_reader(self._executions.fileno())
            self._executions.close()
            self._executions = None
            self._followed.clear()

    def _take(self) -> None:
        for one in self._executions.take() if self._executions is not None else ():
            if one.has_ended:
                self._ended(one)
            elif (expected := self.programs.expected(one.uid, one.path)) is not None:
                self._executed(one.pid, expected)

    # -- what is executed ----------------------------------------------------------------------------------------------------

    def _executed(self, pid: int, expected: Expected) -> None:
        if (reason := why_short(expected)) is not None:
            self._balancing.journal.record(time.time(), Decision(pid, None, reason), HOME)
            return
        entry = self._registry.get(pid) or self._registry.adopt(pid)
        if entry is None or entry.state != "home" or self._mover.is_moving(pid):
            return
        # It will compute: counts at once, here until it has gone.
        self._cluster.estimator.inflate(pid, hold=0.0)
        if self._waiting < MOST_WAITING:
            self._tasks.spawn(self._place(entry, expected))

    async def _place(self, entry: HomeProcess, expected: Expected) -> None:
        self._waiting += 1
        try:
            async with self._turn:
                await self._place_now(entry, expected)
        finally:
            self._waiting -= 1

    async def _place_now(self, before: HomeProcess, expected: Expected) -> None:
        refused: set[str] = set()
        for _ in range(self._cluster.settings().placings):
            entry = self._registry.get(before.pid)
            if entry is None or entry.starttime != before.starttime or entry.state != "home" or not self._is_wanted:
                return
            figures, settings = self._balancing.figures(entry), self._cluster.settings()
            decision = decide_at_exec(self._balancing.view_ahead(), figures, expected, self._rng, settings, self._coming, refused)
            self._balancing.journal.record(time.time(), decision, HOME)
            if (target := decision.target) is None:
                return
            self._coming[target] += 1
            try:
                if not await self._balancing.act(decision):
                    return
            finally:
                self._coming[target] -= 1
            refused.add(target)

    # -- what has ended ------------------------------------------------------------------------------------------------------

    def _ended_away(self, pid: int, cpu: float, calls: int) -> None:
        """A process has ended away, and had used that there; its deputy says so."""
        self._used_away[pid] = cpu, calls
        while len(self._used_away) > KEPT_ENDS:
            self._used_away.popitem(last=False)

    def _ended(self, one: Execution) -> None:
        entry = self._registry.get(one.pid) or self._registry.ended.get(one.pid)
        if entry is None or not entry.moves:
            self._record(one, one.cpu, None)
        elif not one.replaced:  # else a program away has executed another: nobody reports what each of them has used
            asyncio.get_running_loop().call_later(LATE, self._ended_elsewhere, one)

    def _ended_elsewhere(self, one: Execution) -> None:
        if (used := self._used_away.pop(one.pid, None)) is not None:
            cpu, calls = used
            self._record(one, one.cpu + cpu, calls / cpu if cpu >= COUNTS else None)

    def _record(self, one: Execution, cpu: float, calls: float | None) -> None:
        if self._executions is None:
            return
        self._executions.know(one.uid, one.path)
        try:
            forgotten = self.programs.record(one.uid, one.path, cpu, calls)
        except ValueError as error:
            log.warning("%s: %s", one.path, error)
            return
        for uid, path in forgotten:
            self._executions.know(uid, path, False)
        self._is_new = True

    # -- what is kept --------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            kept = json.loads(self._path.read_bytes())
            self.programs = Programs.from_record(kept["programs"])
            lost, taken = (Line(float(fixed), float(per_byte)) for fixed, per_byte in kept["cost"])
            if not all(0 < figure < 1e4 for line in (lost, taken) for figure in astuple(line)):
                raise ValueError("a move that takes what cannot be")
            self._mover.cost = MoveCost(lost, taken)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s is dropped: %s", self._path, error)

    def _save(self) -> None:
        self._saved_at, self._is_new = time.monotonic(), False
        cost = self._mover.cost
        kept = {"cost": [astuple(cost.lost), astuple(cost.taken)], "programs": self.programs.to_record()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(kept).encode())
        except OSError as error:
            log.warning("%s: %s", self._path, error.strerror)

    def close(self) -> None:
        """Follows nothing any more."""
        self._tasks.cancel()
        self._let_go()
        if self._is_new:
            self._save()


__all__ = ["AtExec"]
