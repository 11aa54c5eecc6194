"""Spreading load vectors: every node tells two random peers, once a second, the freshest it knows.

After Amar, Barak, Drezner and Okun (CPE 21, 2009): with a window of w of n entries the average age is about ln w + n/w
periods. Entries carry their age, to which every node adds the time that it kept them; wall clocks are never compared.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgpack

from balancer.load import NAME_LIMIT, Clock, LoadVector

PERIOD = 1.0
FAN_OUT = 2
WINDOW = 32
FORGET_AFTER = 30.0
FORMAT = 1
PAYLOAD_LIMIT = 64 * 1024
ENTRIES_LIMIT = 256
#: Addresses outlive load vectors by far, so that the two halves of a cut network find each other again.
ADDRESS_KEPT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A load vector as known here, and how old it is now, in seconds."""

    vector: LoadVector
    age: float


@dataclass(frozen=True, slots=True)
class View:
    """What one node knows of all at one moment, itself included; `entries` is by name of the node."""

    name: str
    entries: Mapping[str, Entry]

    @property
    def own(self) -> LoadVector | None:
        """The vector of the node whose view this is, if it has made one."""
        entry = self.entries.get(self.name)
        return entry.vector if entry else None

    def others(self) -> list[Entry]:
        """Return the entries of the other nodes, by name."""
        return [entry for name, entry in sorted(self.entries.items()) if name != self.name]

    def rows(self) -> list[dict[str, object]]:
        """Return one plain table row per node, as `mon` and `mosctl nodes` show it."""
        rows: list[dict[str, object]] = []
        for name, entry in sorted(self.entries.items()):
            vector = entry.vector
            row: dict[str, object] = {key: getattr(vector, key) for key in _ROW_KEYS}
            rows.append(row | {"age": round(entry.age, 3), "self": name == self.name})
        return rows


_ROW_KEYS = (
    "name", "address", "port", "runnable", "load", "cores", "speed",
    "memory_free", "memory_total", "guests", "lending", "blocked", "version",
)  # fmt: skip


@dataclass(slots=True)
class _Known:
    vector: LoadVector
    born: float  # on our own clock: arrival minus the age it came with


class Gossip:
    """State of gossip at one node. The caller sends what `outgoing` returns once a `PERIOD`, jittered by a tenth."""

    def __init__(self, name: str, clock: Clock, rng: random.Random, forget_after: float = FORGET_AFTER) -> None:
        self.name = name
        self.forget_after = forget_after
        self.incarnation = 0
        self._clock = clock
        self._rng = rng
        self._known: dict[str, _Known] = {}
        self._addresses: dict[str, tuple[str, int, float]] = {}

    def update_self(self, vector: LoadVector) -> None:
        """Take this node's own newest load vector."""
        if vector.name != self.name:
            raise ValueError(f"gossip of {self.name} was given the load vector of {vector.name}")
        # What others remember of our life before a restart must not count as newer than what we say now.
        self.incarnation = max(self.incarnation, vector.incarnation)
        self._known[self.name] = _Known(replace(vector, incarnation=self.incarnation), self._clock())

    def learn(self, name: str, address: str, port: int) -> None:
        """Take the address of a peer of which no load vector is known yet, such as a seed that has been dialled."""
        if name != self.name:
            self._addresses[name] = (address, port, self._clock())

    def peers(self) -> dict[str, tuple[str, int]]:
        """Return address and port of every other node that is known, by name."""
        self._expire()
        return {name: (address, port) for name, (address, port, _) in sorted(self._addresses.items())}

    def outgoing(self) -> list[tuple[str, bytes]]:
        """Return what to send now: (name of the peer, payload) for two random peers.

        Once in a while a third goes to a node that has not been heard of for long, so that halves of a cut cluster
        meet again.
        """
        self._expire()
        names = sorted(self._addresses)
        live = [name for name in names if name in self._known]
        silent = [name for name in names if name not in self._known]
        chosen = self._rng.sample(live, min(FAN_OUT, len(live)))
        if silent and (len(chosen) < FAN_OUT or self._rng.random() < 0.2):
            chosen.append(self._rng.choice(silent))
        payload = self.payload() if chosen else b""
        return [(name, payload) for name in chosen]

    def payload(self) -> bytes:
        """Return this node's own vector and the freshest of others, as they go over the wire."""
        now = self._clock()
        known_others = (known for name, known in self._known.items() if name != self.name)
        window = sorted(known_others, key=lambda known: -known.born)[: WINDOW - 1]
        if self.name in self._known:
            window.insert(0, self._known[self.name])
        entries = [[round(max(0.0, now - known.born), 3), *known.vector.to_fields()] for known in window]
        payload: bytes = msgpack.packb([FORMAT, self.name, entries], use_single_float=True)
        return payload

    def receive(self, payload: bytes) -> int:
        """Merge what a peer sent; returns how many nodes it brought news of.

        Errors: ValueError with one sentence if it is not a payload of this format; then nothing of it has been taken.
        """
        news = 0
        for age, vector in parse_payload(payload):
            if vector.name == self.name:
                self._refute(vector)
            elif age < self._kept() and self._is_news(vector):
                self._known[vector.name] = _Known(vector, self._clock() - age)
                self._addresses[vector.name] = (vector.address, vector.port, self._clock() - age)
                news += 1
        return news

    def _refute(self, vector: LoadVector) -> None:
        mine = self._known.get(self.name)
        current = mine.vector.sequence if mine else -1
        if (vector.incarnation, vector.sequence) > (self.incarnation, current):
            self.incarnation = vector.incarnation + 1
            if mine:
                mine.vector = replace(mine.vector, incarnation=self.incarnation)

    def _is_news(self, vector: LoadVector) -> bool:
        # The same vector once more is no news, even if it looks younger: time on the wire is counted in no age, so that
        # of two ages the greater is the truer one.
        known = self._known.get(vector.name)
        if known is None:
            return True
        return (vector.incarnation, vector.sequence) > (known.vector.incarnation, known.vector.sequence)

    def _kept(self) -> float:
        # With a window of fixed size the age of the oldest entry grows with the number of nodes (about as n / window).
        return self.forget_after * max(1.0, len(self._addresses) / WINDOW)

    def _expire(self) -> None:
        now = self._clock()
        kept = self._kept()
        for name in [n for n, k in self._known.items() if n != self.name and now - k.born > kept]:
            del self._known[name]
        for name in [n for n, (_, _, heard) in self._addresses.items() if now - heard > ADDRESS_KEPT]:
            del self._addresses[name]

    def view(self) -> View:
        """Return what is known now, each entry with its age; what is too old is not in it."""
        self._expire()
        now = self._clock()
        return View(self.name, {name: Entry(k.vector, max(0.0, now - k.born)) for name, k in self._known.items()})


def parse_payload(payload: bytes) -> list[tuple[float, LoadVector]]:
    """Return (age in seconds, vector) of each entry. Errors: ValueError, one sentence."""
    if len(payload) > PAYLOAD_LIMIT:
        raise ValueError(f"gossip: {len(payload)} bytes are more than the {PAYLOAD_LIMIT} that are allowed")
    try:
        message = msgpack.unpackb(payload, strict_map_key=True, max_array_len=ENTRIES_LIMIT, max_str_len=4 * NAME_LIMIT)
    except Exception as error:  # msgpack raises a dozen kinds, for what are all the same fault of the sender
        raise ValueError("gossip: the payload is not msgpack") from error
    if not isinstance(message, list) or len(message) != 3 or message[0] != FORMAT or not isinstance(message[2], list):
        raise ValueError(f"gossip: the payload is not of format {FORMAT}")
    entries = []
    for item in message[2]:
        if not isinstance(item, list) or not item or isinstance(item[0], bool) or not isinstance(item[0], (int, float)):
            raise ValueError("gossip: an entry has no age")
        if not 0 <= item[0] < 1e6:
            raise ValueError("gossip: the age of an entry cannot be")
        entries.append((float(item[0]), LoadVector.from_fields(item[1:])))
    return entries
