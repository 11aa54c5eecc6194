"""What moves this daemon's processes have made, counted since it began: for what watches it over time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from node.moves.home_process import HOME


@dataclass
class MoveCounts:
    """Moves by kind, those that were not made, processes that were lost, how long processes stood still for moves, and bytes; never less
    than before."""

    since: float = field(default_factory=time.time)
    out: int = 0
    hop: int = 0
    home: int = 0
    failed: int = 0
    lost: int = 0
    """processes"""
    frozen_seconds: float = 0.0
    moved_bytes: int = 0

    def made(self, source: str, target: str, frozen_ms: float, size: int) -> None:
        """One more move."""
        if target == HOME:
            self.home += 1
        elif source == HOME:
            self.out += 1
        else:
            self.hop += 1
        self.frozen_seconds += frozen_ms / 1000
        self.moved_bytes += size

    def not_made(self) -> None:
        """One more that was refused or failed."""
        self.failed += 1

    def row(self) -> dict[str, Any]:
        """As it goes to those who watch."""
        return asdict(self)
