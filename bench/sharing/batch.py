"""A batch of jobs for the real bench of balancing: how much work each is, what it could take at least, and when each has ended.

Work is counted in pieces (bench/sharing/batch.c), about two milliseconds of a processor each; what a node does of them in a second is
measured in the same run, with all nodes busy at once, since they are one machine.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.common.result import BenchFailed

if TYPE_CHECKING:
    from lab import Lab, Node

ENDS = "/run/batch-ends"
"""Where jobs report their ends, on the node where they are at home."""
PATIENCE = 8.0
"""How many times as long as it could a batch may take."""
LOOK = 0.05
SPREAD = 40.0
"""How many times as long the longest of Pareto's jobs can be as the shortest."""


@dataclass(frozen=True)
class Speeds:
    """Pieces a second that each node does when all are busy, and what share of their quotas of processor they were granted for that."""

    of: Mapping[str, float]
    granted: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.of.values())

    def bound(self, work: Sequence[int]) -> float:
        """The seconds that no schedule of these jobs could be quicker than."""
        return max(sum(work) / self.total, max(work) / max(self.of.values()))

    def scaled(self, sizes: Sequence[float], seconds: float) -> list[int]:
        """Work in the proportions of these sizes whose bound is so many seconds."""
        longest = max(sum(sizes) / self.total, max(sizes) / max(self.of.values()))
        return [max(1, round(size * seconds / longest)) for size in sizes]


def measure_speeds(lab: Lab, program: str, seconds: float) -> Speeds:
    """Has every node compute for so long. Errors: BenchFailed."""
    running = {node.name: node.popen([program, "for", f"{seconds:g}"], stdout=subprocess.PIPE, text=True) for node in lab.nodes()}
    found, granted = {}, {}
    for node in lab.nodes():
        try:
            output, _ = running[node.name].communicate(timeout=seconds + 30)
            done, nanoseconds, processor = map(int, output.split())
        except (subprocess.TimeoutExpired, ValueError) as error:
            running[node.name].kill()
            raise BenchFailed(f"the yardstick on {node.name} did not say what it has done") from error
        found[node.name] = done / nanoseconds * 1e9
        granted[node.name] = processor / nanoseconds / (node.state.cpus * node.state.speed)
    return Speeds(found, granted)


def pareto(count: int, seed: int) -> list[float]:
    """Sizes whose tail is 1/x, in no order: what the lives of processes look like."""
    rng = random.Random(seed)
    return [1 / (1 - rng.random() * (1 - 1 / SPREAD)) for _ in range(count)]


def forget_ends(nodes: Sequence[Node]) -> None:
    """Before the next batch."""
    for node in nodes:
        (node.root / ENDS.lstrip("/")).unlink(missing_ok=True)


def _ends(nodes: Sequence[Node]) -> dict[int, float]:
    found = {}
    for node in nodes:
        path = node.root / ENDS.lstrip("/")
        for line in path.read_text().splitlines() if path.exists() else ():
            number, nanoseconds = line.split()
            found[int(number)] = int(nanoseconds) / 1e9
    return found


def await_ends(nodes: Sequence[Node], count: int, begun: float, bound: float, what: str) -> list[float]:
    """Seconds from `begun` (of the epoch) to the end of each job, when all have ended. Errors: BenchFailed."""
    limit = time.monotonic() + PATIENCE * bound + 30
    while len(found := _ends(nodes)) < count:
        if time.monotonic() > limit:
            raise BenchFailed(f"{count - len(found)} of {count} jobs of {what} did not end within {PATIENCE:.0f} times the least time")
        time.sleep(LOOK)
    return [found[number] - begun for number in sorted(found)]
