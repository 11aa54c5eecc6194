"""Updates to be sent to other members, those that were sent least first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

from balancer.gossip.datagram import Update, Word, size_of
from balancer.load.load import Clock

REPORTED = 4
"""An update is sent so many times log10 of the number of members."""


@dataclass(slots=True)
class _One:
    update: Update
    at: float  # on our own clock: when it came, less its age
    reported: int = 0


class News:
    """What one node has to send about others, one update of each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._short: dict[bytes, _One] = {}
        self._cards: dict[bytes, _One] = {}

    def add(self, update: Update) -> None:
        """Takes an update instead of what was to be said about that node."""
        self.drop(update.node)
        queue = self._short if update.card is None else self._cards
        queue[update.node] = _One(update, self._clock() - update.age)

    def drop(self, node: bytes) -> None:
        """Send nothing about that node."""
        self._short.pop(node, None)
        self._cards.pop(node, None)

    def drop_short(self, node: bytes) -> None:
        """Send nothing but its card about that node."""
        self._short.pop(node, None)

    def take(self, space: int, members: int, first: Update | None = None) -> list[Update]:
        """Return updates to send in so many bytes: `first`, then those that were sent least. members: how many there are."""
        now, limit = self._clock(), math.ceil(math.log10(members + 2))
        chosen = [first] if first is not None else []
        space -= sum(size_of(update) for update in chosen)
        # Cards are long, and who misses one asks for it; each new one is sent as often as the others, and no oftener.
        for queue, times in (
            (sorted(self._short.items(), key=_times_sent), REPORTED * limit),
            (list(islice(self._cards.items(), 16)), 1 + limit),
        ):
            for node, one in queue:
                update = one.update
                space -= size_of(update)
                if space < 0:
                    return chosen
                chosen.append(replace(update, age=now - one.at) if update.word is Word.SUSPECT else update)
                one.reported += 1
                reported = self._short if update.card is None else self._cards
                del reported[node]
                if one.reported < times:
                    reported[node] = one
        return chosen


def _times_sent(item: tuple[bytes, _One]) -> int:
    return item[1].reported
