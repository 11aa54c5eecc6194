"""What home processes read and write, and how many calls home answers for them: measured where they are, for the decisions.

At home the kernel counts a process's reads and writes; away its deputy counts the calls that it has made for it, and their bytes. What of
that were files of other nodes show the positions of its descriptors; on the node of such files it reads them without home, and the
kernel there counts.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from balancer.decisions.nearness import Meter, Rates
from balancer.decisions.process import HOME
from node.common import process
from node.moves.home_process import HomeProcess
from node.moves.moves import Mover
from node.moves.registry import Registry
from node.programs.programs import ProgramError

PERIOD = 2.0
NEW, LATER = 10.0, 5.5
"""Seconds for which a process is observed each time, and between two observations of it from then on."""
REST = 20
"""How many times as long as the daemon computes during a look there is none."""
TIMEOUT = 2.0

Stay = tuple[str, float]
"""Where, since when: counters go on through one stay."""


class TrafficMeter:
    """Of each home process."""

    def __init__(self, registry: Registry, mover: Mover, tree: Callable[[], str | None]) -> None:
        """tree: where all nodes' files are, if processes read those of the node where they are without home."""
        self._registry = registry
        self._mover = mover
        self._tree = tree
        self._known: dict[int, _Known] = {}
        self._reads_there: dict[int, tuple[Stay, int]] = {}
        self._took = 0.0

    def period(self) -> float:
        """Seconds until the next check."""
        return max(PERIOD, REST * self._took)

    def of(self, entry: HomeProcess) -> Rates:
        """What is known of it; nothing at first."""
        known = self._known.get(entry.pid)
        return known.rates if known is not None and known.starttime == entry.starttime else Rates()

    async def poll(self) -> None:
        """Reads all counters."""
        begun = time.thread_time()
        entries = [entry for entry in self._registry if entry.state in ("home", "away") and not entry.home_only]
        self._known = {entry.pid: self._known[entry.pid] for entry in entries if entry.pid in self._known}
        self._reads_there = {entry.pid: self._reads_there[entry.pid] for entry in entries if entry.pid in self._reads_there}
        entries = [entry for entry in entries if self._is_due(entry)]
        away = [entry for entry in entries if entry.where != HOME]
        traffic = process.traffic(entry.pid for entry in entries if entry.where == HOME)
        for entry in entries:
            if (done := traffic.get(entry.pid)) is not None:
                self._read(entry, *done)
        await asyncio.gather(*(self._ask(entry) for entry in away))
        self._took = time.thread_time() - begun

    def _is_due(self, entry: HomeProcess) -> bool:
        """What has been watched for a while changes its rates slowly, or rather what is known of them does."""
        rates = self.of(entry)
        return rates.known is None or rates.watched < NEW or time.time() - rates.known.at >= LATER

    def has_read_there(self, entry: HomeProcess, done: int) -> None:
        """The node that it is on says how many bytes it has read by its own calls in this stay."""
        self._reads_there[entry.pid] = (entry.where, entry.since), done

    async def _ask(self, entry: HomeProcess) -> None:
        try:
            status = await self._mover.deputies.status(entry.pid, TIMEOUT)
            if status.get("where") == entry.where:
                self._read(entry, int(status["calls"]), int(status["carried"]))
        except (ProgramError, KeyError, TypeError, ValueError):
            return  # it is on its way, or has ended

    def _read(self, entry: HomeProcess, calls: int, moved: int) -> None:
        if entry.where != HOME and not self._registry.reported_in_stay(entry):
            return
        now, known = time.time(), self._known.get(entry.pid)
        if known is not None and known.starttime != entry.starttime:
            known = None
        traffic = self._traffic(entry, known.traffic if known else None, calls, moved)
        rates = known.rates if known else Rates()
        if known is None or known.traffic.stay != traffic.stay:
            rates = replace(rates, known=None)
        meter = Meter(now, self._registry.cpu_seconds(entry, now), traffic.calls, traffic.moved, traffic.far)
        self._known[entry.pid] = _Known(entry.starttime, traffic, rates.read(meter))

    def _traffic(self, entry: HomeProcess, before: Traffic | None, calls: int, moved: int) -> Traffic:
        stay, tree = (entry.where, entry.since), self._tree()
        positions = process.far_positions(entry.pid, tree) if tree is not None else {}
        reported_in, there = self._reads_there.get(entry.pid, (stay, 0))
        now = Traffic(stay, calls, moved, positions, there if reported_in == stay else 0)
        return now if before is None else before.followed_by(now)


@dataclass(frozen=True)
class Traffic:
    """What a process had read and written by a look. `counted_calls` and `counted_bytes`: where it was, in this stay; `positions`: of its
    descriptors of other nodes' files, `turned` those that have gone back: nobody knows how often between two checks, so whatever else the
    process reads and writes is taken for theirs; `there`: bytes that it has read where it is away without home. Since it was first looked
    at: `calls` and `moved`, of home's; `far`: bytes of other nodes' files."""

    stay: Stay
    counted_calls: int
    counted_bytes: int
    positions: Mapping[tuple[int, str], int]
    there: int
    turned: frozenset[tuple[int, str]] = frozenset()
    calls: int = 0
    moved: int = 0
    far: Mapping[str, int] = field(default_factory=dict)

    def followed_by(self, now: Traffic) -> Traffic:
        """What the next check has found, and what it means."""
        calls, moved = now.counted_calls - self.counted_calls, now.counted_bytes - self.counted_bytes
        if now.stay != self.stay or calls < 0 or moved < 0:
            return replace(now, calls=self.calls, moved=self.moved, far=self.far)
        fresh: Counter[str] = Counter()
        before = {key: self.positions.get(key, position) for key, position in now.positions.items()}
        turned = {key for key, position in now.positions.items() if position < before[key] or key in self.turned}
        for key in now.positions.keys() - turned:
            fresh[_node_of(key)] += now.positions[key] - before[key]
        rest = max(0, moved - fresh.total())
        for key in turned:
            fresh[_node_of(key)] += rest // len(turned)
        asked = min(moved, fresh.total())  # by way of home, or at home
        where, _ = now.stay
        if any(_node_of(key) == where for key in now.positions):
            fresh[where] += max(0, now.there - self.there)
        far = Counter(self.far) + fresh
        calls -= round(calls * asked / moved) if moved else 0
        return replace(now, calls=self.calls + calls, moved=self.moved + moved - asked, far=far, turned=frozenset(turned))


def _node_of(key: tuple[int, str]) -> str:
    return key[1].partition("/")[0]


@dataclass(frozen=True)
class _Known:
    """Of one process."""

    starttime: int
    traffic: Traffic
    rates: Rates
