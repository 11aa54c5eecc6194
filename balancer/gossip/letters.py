"""What gossip has to be sent, and how much of it may be."""

from __future__ import annotations

from typing import NamedTuple

from balancer.load.load import Clock

BYTES_PER_SECOND = 2900.0
"""What a node sends at most on the average, envelopes and headers of the network included: where the windows are of two datagrams,
not every second peer's turn comes."""


class Letter(NamedTuple):
    """A datagram without its envelope, and the name of the node that it is for.

    `surely`: not as a datagram, which does not get through, but by a way that is slower and surer.
    """

    to: str
    data: bytes
    surely: bool = False


Sent = list[Letter]


class Allowance:
    """What may be spent, bytes as a rule: so many a second, and those of some seconds at once."""

    def __init__(self, clock: Clock, each_second: float = BYTES_PER_SECOND, at_once: float = 2.0) -> None:
        self.spent = 0
        """In all."""
        self._most = at_once * each_second
        self._clock = clock
        self._rate = each_second
        self._left = each_second
        self._at = clock()

    def spend(self, size: int) -> None:
        """Take so many bytes, whether they are left or not."""
        self.spent += size
        self._left = self.left - size

    @property
    def left(self) -> float:
        """What may be sent now, which may be less than nothing."""
        now = self._clock()
        self._left = min(self._most, self._left + self._rate * (now - self._at))
        self._at = now
        return self._left
