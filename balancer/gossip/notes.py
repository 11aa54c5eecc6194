"""What this node has sent to others, until they report about it themselves.

What a node reports may be newer than what is known of it, and still older than what it has been sent: reported before that came, or while
it was still made room for. So its number of guests reports how much of what it was sent it counts already.
"""

from __future__ import annotations

from dataclasses import dataclass

LASTS = 1.0
"""Seconds after which a node surely counts what it has been sent, or has not got it."""


@dataclass(frozen=True, slots=True)
class _Note:
    guests: int
    """that the node reported before"""
    count: int
    more: float
    at: float


class Notes:
    """Runnable threads that are on their way to other nodes, by node."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Note] = {}

    def sent(self, node: bytes, more: float, guests: int, now: float) -> None:
        """Note a process with so many threads for a node that reports so many guests."""
        count, before = self._left(node, guests, now)
        self._of[node] = _Note(guests, count + 1, before + more, now)

    def not_taken(self, node: bytes, more: float, guests: int, now: float) -> None:
        """Note that the node has not taken one of them."""
        count, before = self._left(node, guests, now)
        if count > 1:
            self._of[node] = _Note(guests, count - 1, max(0.0, before - more), self._of[node].at)
        else:
            self._of.pop(node, None)

    def more(self, node: bytes, guests: int, born: float) -> float:
        """Return how many runnable threads to add to what a node reported at the moment `born`, when it had so many guests."""
        return self._left(node, guests, born)[1]

    def _left(self, node: bytes, guests: int, at: float) -> tuple[int, float]:
        """How many processes the node does not count, and their threads."""
        note = self._of.get(node)
        if note is None:
            return 0, 0.0
        if at - note.at > LASTS:
            return 0, 0.0
        left = note.count - max(0, guests - note.guests)
        return (left, note.more * left / note.count) if left > 0 else (0, 0.0)
