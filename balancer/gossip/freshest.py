"""The newest entry of every node, and the freshest of them all."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterator

Known = tuple[float, bytes, bytes]
"""When it was born on our own clock (its arrival less the age it came with), the node's id, the body."""

LIMIT = 1024
"""Nodes that are kept. In a greater cluster each node knows the freshest thousand, which are those it can use."""


class Freshest:
    """Keeps packed entries as they came: the ten thousand that pass in a second are looked into only where one is used."""

    #: by id; gossip's innermost loop looks into it
    known: dict[bytes, Known]

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.known = {}

    def __len__(self) -> int:
        return len(self.known)

    def __iter__(self) -> Iterator[Known]:
        return iter(self.known.values())

    def get(self, node: bytes) -> Known | None:
        """Return what is known of a node."""
        return self.known.get(node)

    def born(self, node: bytes) -> float:
        """Return when the newest entry of a node was born; long ago if there is none."""
        known = self.known.get(node)
        return known[0] if known is not None else -math.inf

    def put(self, born: float, node: bytes, body: bytes) -> bool:
        """Keep an entry if it is newer than what is known; returns whether it is.

        The same entry once more is no news, even if it looks younger: time on the wire is counted in no age, so that of two
        ages the greater is the truer one.
        """
        old = self.known.get(node)
        if old is not None and body <= old[2]:
            return False
        self.known[node] = (born, node, body)
        return True

    def newest(self, count: int) -> list[Known]:
        """Return so many of the freshest, the freshest first."""
        return heapq.nlargest(count, self.known.values())

    def forget(self, before: float, members: Container[bytes] = ()) -> None:
        """Forget what was born before that moment, and of what is too much the oldest, those who are no members first."""
        if len(self.known) > self._limit * 5 // 4:
            kept = heapq.nlargest(self._limit, self.known.values(), key=lambda known: (known[1] in members, known[0]))
            self.known = {known[1]: known for known in kept}
        for node in [node for node, known in self.known.items() if known[0] < before]:
            del self.known[node]

    def drop(self, node: bytes) -> None:
        """Forget one node."""
        self.known.pop(node, None)
