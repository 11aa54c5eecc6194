"""What a move did, as reported to mosd."""

from __future__ import annotations

from dataclasses import dataclass, field

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
