"""Limits pending connections, whose peers have not proven who they are: nobody keeps members out by opening many.

Each address has some places, and so have all strangers together; addresses of known nodes have places of their own. When no place is left,
a new connection takes that of the connection that has been silent for longest, since a member speaks as soon as it is connected, or that of
a slow handshake. Before all places are taken some new connections are handled so at random, more of them the fewer places are left (as
MaxStartups of OpenSSH does).
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable
from dataclasses import dataclass

STRANGERS = 256
"""Connections of addresses that no member has."""
MEMBERS = 128
"""Those of addresses that members have."""
OF_SOURCE = 32
"""Of one address, or one network of 64 bits."""
SLOW = 1.0
"""Seconds after which a handshake lasts too long, if there is no other place."""
EARLY = 0.5
"""The share of places from which on some are turned away, and how many of those at first."""
EARLY_RATE = 0.3


@dataclass(eq=False)
class Place:
    """One connection; `drop` ends it, `speaks` returns whether unread bytes have come; begun: a task handles it."""

    source: str
    known: bool
    since: float
    drop: Callable[[], object] = lambda: None
    silent: bool = True
    speaks: Callable[[], bool] = lambda: False
    begun: bool = False
    gone: bool = False


class PendingConnections:
    """The places and their connections. Without network: clock and random numbers are parameters."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._places: list[Place] = []
        self.dropped = 0
        """Connections that were dropped for others, or found no place."""

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, address: str, known: bool) -> Place | None:
        """Return a place for a connection from that address, perhaps that of another one, which is dropped; None: it is turned away."""
        source = source_of(address)
        group = [place for place in self._places if place.known == known]
        same = [place for place in group if place.source == source]
        most = MEMBERS if known else STRANGERS
        if len(same) >= OF_SOURCE:
            crowd = same
        elif len(group) >= most or (len(group) >= EARLY * most and self._rng.random() < self._rate(len(group) / most)):
            crowd = group
        else:
            crowd = []
        if crowd:
            slow = self._clock() - SLOW
            silent = (place for place in crowd if place.silent and not place.speaks())
            victim = next(silent, None) or next((place for place in crowd if not place.silent and place.since < slow), None)
            self.dropped += 1
            if victim is None:
                return None
            self.leave(victim)
            victim.drop()
        place = Place(source, known, self._clock())
        self._places.append(place)
        return place

    @staticmethod
    def _rate(full: float) -> float:
        return EARLY_RATE + (1 - EARLY_RATE) * (full - EARLY) / (1 - EARLY)

    def leave(self, place: Place) -> None:
        """Gives the place back; once more does nothing."""
        if not place.gone:
            place.gone = True
            self._places.remove(place)


def source_of(address: str) -> str:
    """Return what counts as one source: an address, of IPv6 its /64 network, since a host with one address of it has them all."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
