"""What a move costs, learned from the moves that were made."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEARNING = 0.2


@dataclass(frozen=True, slots=True)
class MoveCost:
    """Seconds that a process loses by a move: a fixed part, and one for each byte of its memory."""

    fixed: float = 0.4
    seconds_per_byte: float = 1 / 110e6

    def of(self, memory: int) -> float:
        """Return the expected cost in seconds of moving a process with so many bytes of memory."""
        return self.fixed + self.seconds_per_byte * memory

    def learn(self, seconds: float, memory: int) -> MoveCost:
        """Return the cost with one more measured move in it.

        Small moves teach the fixed part and big ones the part per byte: which of the two a difference belongs to is
        taken from how much of the expected cost each of them was.
        """
        if seconds < 0 or memory < 0:
            raise ValueError("a move takes neither negative time nor negative memory")
        expected = self.of(memory)
        ratio = 1 + LEARNING * (min(seconds, 100 * expected) / expected - 1)
        by_bytes = self.seconds_per_byte * memory / expected
        return replace(
            self,
            fixed=max(0.01, self.fixed * (1 + (ratio - 1) * (1 - by_bytes))),
            seconds_per_byte=max(1e-11, self.seconds_per_byte * (1 + (ratio - 1) * by_bytes)),
        )
