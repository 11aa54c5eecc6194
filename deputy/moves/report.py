"""What a move did, as reported to mosd."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.phases import Phases
from engine.pour.precopy import Progress


@dataclass(frozen=True)
class Report:
    """Times in milliseconds, size in bytes that went over the network, ahead: what went while the process ran, follows: what is
    to go now that it runs again (bytes, at most); where: "home" or a node."""

    where: str
    frozen_ms: float
    total_ms: float
    size: int
    engine: str
    ahead: Progress = field(default_factory=Progress)
    follows: int = 0
    steps: tuple[tuple[str, float, bool], ...] = ()
    """what it was made of, in order: name, milliseconds, whether the process stood still"""


def steps_of(before: Phases | None, frozen: Phases) -> tuple[tuple[str, float, bool], ...]:
    """Return Report.steps of a move: before: while the process ran; frozen: from then on."""
    ran = [(name, ms, False) for name, ms in before.times] if before is not None else []
    return (*ran, *((name, ms, True) for name, ms in frozen.times))
