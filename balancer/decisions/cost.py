"""What a move costs, learned from the moves that were made."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEARNING = 0.2


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a straight line over bytes of memory."""

    fixed: float
    per_byte: float

    def at(self, memory: int) -> float:
        """Return the seconds for so many bytes."""
        return self.fixed + self.per_byte * memory

    def learn(self, seconds: float, memory: int) -> Line:
        """Return the line with one more measured point in it.

        Little memory teaches the fixed part and much the part per byte: which of the two a difference belongs to is taken
        from how much of what was expected each of them was.
        """
        if seconds < 0 or memory < 0:
            raise ValueError("a move takes neither negative time nor negative memory")
        expected = self.at(memory)
        more = LEARNING * (min(seconds, 100 * expected) / expected - 1)
        by_bytes = self.per_byte * memory / expected
        return Line(max(0.01, self.fixed * (1 + more * (1 - by_bytes))), max(1e-11, self.per_byte * (1 + more * by_bytes)))


@dataclass(frozen=True, slots=True)
class MoveCost:
    """Of a move: the seconds that the process loses by it, in which it stands still, and those that it takes in all.

    Memory that goes ahead or follows keeps the process waiting only where it is needed, so that the two differ.
    """

    lost: Line = Line(0.4, 1 / 1e9)
    taken: Line = Line(0.6, 1 / 110e6)

    def of(self, memory: int) -> float:
        """Return the seconds that a process with so many bytes of memory is expected to lose."""
        return self.lost.at(memory)

    def takes(self, memory: int) -> float:
        """Return the seconds that its move is expected to take."""
        return max(self.lost.at(memory), self.taken.at(memory))

    def learn(self, lost: float, taken: float, memory: int) -> MoveCost:
        """Return the cost with one more measured move in it. Errors: ValueError if that cannot have been."""
        return replace(self, lost=self.lost.learn(lost, memory), taken=self.taken.learn(taken, memory))
