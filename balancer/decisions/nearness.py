"""What it costs a process to be elsewhere than what it reads and writes, and how much it does of that.

All per second of processor time that it uses: so the figures are the same wherever it is and however busy that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from balancer.decisions.process import HOME, Process, Settings

FORGETS = 20.0
"""Seconds after which what was known of a process counts for half."""
WORTH_TELLING = 0.1
"""Of a difference, in units of slowdown."""
LEAST_SHARE = 0.05
"""Of a processor: who uses less waits for something else than for answers, or is waited for."""


def stretch(process: Process, place: str, settings: Settings) -> float:
    """Return how many times as long all takes there because what the process reads and writes is at other places."""
    far = settings.seconds_per_byte * sum(rate for where, rate in process.files.items() if where != place)
    return 1 + far + (settings.seconds_per_call * process.calls if place != HOME else 0.0)


def words_on(process: Process, there: str, settings: Settings) -> str:
    """Return the words on what a move means for that, if it means anything; to follow those on the slowdowns."""
    more = stretch(process, there, settings) - stretch(process, process.where, settings)
    if abs(more) < WORTH_TELLING:
        return ""
    return f" (there it is {'far from' if more > 0 else 'near'} what it reads and writes)"


@dataclass(frozen=True, slots=True)
class Meter:
    """What a process had done in all by some moment (seconds of the caller's clock), as far as it was counted where it was;
    `cpu` in seconds of processor time, `calls` and `moved` (bytes) of home, `far` bytes of other nodes' files."""

    at: float
    cpu: float
    calls: int
    moved: int
    far: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rates:
    """Calls and bytes for each second of processor time, lately; `known` is the meter that they are known up to, `watched` for
    how many seconds they have been, `far` the bytes of other nodes' files, by node."""

    calls: float = 0.0
    moved: float = 0.0
    known: Meter | None = None
    watched: float = 0.0
    far: Mapping[str, float] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, float]:
        """Where the bytes are: home and nodes."""
        return {HOME: self.moved, **self.far}

    def read(self, meter: Meter) -> Rates:
        """Return the rates with what has been done since the last meter in it. A meter that has begun anew (the process has
        moved, or the counter did) only says where the next one begins."""
        before = self.known
        if before is None or meter.calls < before.calls or meter.moved < before.moved or meter.at <= before.at:
            return replace(self, known=meter)
        passed = meter.at - before.at
        ran = max(meter.cpu - before.cpu, LEAST_SHARE * passed)
        kept: float = min(0.5 ** (passed / FORGETS), self.watched / (self.watched + passed))

        def follow(rate: float, done: int) -> float:
            return kept * rate + (1 - kept) * done / ran

        return Rates(
            follow(self.calls, meter.calls - before.calls),
            follow(self.moved, meter.moved - before.moved),
            meter,
            self.watched + passed,
            {node: follow(self.far.get(node, 0.0), done - before.far.get(node, 0)) for node, done in meter.far.items()},
        )
