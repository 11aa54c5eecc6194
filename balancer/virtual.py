"""A network under virtual time: many nodes' gossip in one process, with loss, delays, cuts, pauses and deaths, from a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

from balancer.gossip.datagram import ENVELOPE, LIMIT
from balancer.gossip.gossip import Gossip
from balancer.gossip.letters import Letter, Sent
from balancer.gossip.opening import unpack

DELAY = 0.0005
"""Seconds that a datagram is under way at least; it is up to four times as many."""


class VirtualNetwork:
    """Carries the datagrams of its nodes; `now` is the time of all of them.

    `loss` is the share of datagrams that never arrive; `barred` has pairs (from, to) between which none does; `side` says which
    side of a cut a node is on; a node that is in `paused` does nothing before that moment, and finds then what came meanwhile.
    """

    def __init__(self, seed: int, report: Callable[[Gossip], None], loss: float = 0.0) -> None:
        """`report` gives a node its own newest load vector, before each of its ticks."""
        self.now = 0.0
        self._report = report
        self.loss = loss
        self.nodes: dict[str, Gossip] = {}
        self.barred: set[tuple[str, str]] = set()
        self.side: dict[str, int] = {}
        self.paused: dict[str, float] = {}
        self.largest = 0
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._awake: dict[str, float] = {}

    def clock(self) -> float:
        """Return the time of now."""
        return self.now

    def add(self, name: str) -> Gossip:
        """Add a node that knows nobody, or start one anew that has forgotten all."""
        gossip = self.nodes[name] = Gossip(name, self.clock, random.Random(self._rng.random()))
        self._wake(name, gossip)
        return gossip

    def remove(self, name: str) -> None:
        """Let a node die without a word."""
        del self.nodes[name]

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Have something done at that time."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, action))

    def run(self, until: float) -> None:
        """Let time pass until then."""
        while self._events and self._events[0][0] <= until:
            moment, _, action = heapq.heappop(self._events)
            self.now = max(self.now, moment)
            action()
        self.now = until

    def send(self, source: str, sent: Sent) -> None:
        """Carry what a node sends."""
        for letter in sent:
            size = ENVELOPE + len(letter.data)
            self.largest = max(self.largest, size)
            if size > LIMIT:
                raise ValueError(f"{source} sends a datagram of {size} bytes")
            lost = self._rng.random() < self.loss or (source, letter.to) in self.barred
            if (letter.surely or not lost) and self.side.get(source) == self.side.get(letter.to):
                delay = DELAY * self._rng.uniform(1, 4)
                self.at(self.now + delay, lambda letter=letter: self._arrive(source, letter))  # type: ignore[misc]

    def ages(self) -> Iterator[float]:
        """Yield the age of what each node knows of each other."""
        for gossip in self.nodes.values():
            for born, node, _ in gossip.freshest:
                if node != gossip.id:
                    yield self.now - born

    def _arrive(self, source: str, letter: Letter) -> None:
        if (until := self.paused.get(letter.to, 0.0)) > self.now:
            self.at(until, lambda: self._arrive(source, letter))
        elif (gossip := self.nodes.get(letter.to)) is not None:
            self.send(letter.to, gossip.receive(unpack(letter.data), source, letter.surely))
            self._wake(letter.to, gossip)

    def _wake(self, name: str, gossip: Gossip) -> None:
        due = max(gossip.due, self.paused.get(name, 0.0))
        if due < self._awake.get(name, float("inf")) or self.nodes.get(name) is not gossip:
            self._awake[name] = due
            self.at(due, lambda: self._tick(name, gossip))

    def _tick(self, name: str, gossip: Gossip) -> None:
        if self.nodes.get(name) is not gossip:
            return
        if (until := self.paused.get(name, 0.0)) > self.now:
            self.at(until, lambda: self._tick(name, gossip))
            return
        if self._awake.get(name, 0.0) <= self.now:
            self._awake[name] = float("inf")
            self._report(gossip)
            self.send(name, gossip.tick())
            self._wake(name, gossip)
