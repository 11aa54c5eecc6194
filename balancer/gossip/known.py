"""What is known of other nodes, as the freshest entries and the members report it."""

from __future__ import annotations

from dataclasses import replace

from balancer.gossip.datagram import Word, node_id, unpack_body
from balancer.gossip.freshest import Freshest
from balancer.gossip.membership import Membership
from balancer.gossip.notes import Notes
from balancer.gossip.own import Own
from balancer.load.load import Clock
from balancer.load.view import Entry, View

FORGET_AFTER = 30.0
WINDOW = 32
"""Entries in a datagram, and those that are sent: twice as many, in two datagrams, from MANY nodes on."""


class Known:
    """What one node knows."""

    def __init__(self, own: Own, clock: Clock, membership: Membership, freshest: Freshest, forget_after: float) -> None:
        self._own = own
        self._clock = clock
        self._membership = membership
        self._freshest = freshest
        self._forget_after = forget_after
        self._notes = Notes()

    def peers(self) -> dict[str, tuple[str, int]]:
        """Return address and port of every other node that is known, dead ones too, by name."""
        members = self._membership.members.values()
        cards = [member.card for member in members if member.word is not Word.LEFT]
        return {card.name: (card.address, card.port) for card in sorted(cards, key=lambda card: card.name)}

    def view(self) -> View:
        """Return what is known now, each entry with its age; who is dead or gone, or was not heard of for long, is not in it."""
        now = self._clock()
        entries: dict[str, Entry] = {}
        if self._own.vector is not None:
            own = replace(self._own.vector, incarnation=self._own.incarnation, sequence=self._own.sequence)
            entries[self._own.name] = Entry(own, max(0.0, now - self._own.updated))
        for born, node, body in self._freshest:
            member = self._membership.members.get(node)
            if member is None or not member.card.incarnation or now - born > self.kept():
                continue
            if member.word in (Word.ALIVE, Word.SUSPECT):
                vector = unpack_body(member.card, body)
                if more := self._notes.more(node, vector.guests, born):
                    vector = vector.with_more(more)
                entries[vector.name] = Entry(vector, max(0.0, now - born), member.word is Word.SUSPECT)
        return View(self._own.name, entries)

    def kept(self) -> float:
        """Return for how many seconds entries are kept."""
        # With a window of fixed size the age of the oldest entry grows with the number of nodes (about as n / window).
        return self._forget_after * max(1.0, len(self._membership.members) / WINDOW)

    def sent(self, name: str, more: float) -> None:
        """Count so many more runnable threads on a node that this one sends a process, until it counts them itself."""
        if (guests := self._guests_of(name)) is not None:
            self._notes.sent(node_id(name), more, guests, self._clock())

    def not_taken(self, name: str, more: float) -> None:
        """Count them no more: the node has not taken it."""
        if (guests := self._guests_of(name)) is not None:
            self._notes.not_taken(node_id(name), more, guests, self._clock())

    def _guests_of(self, name: str) -> int | None:
        """As the node has reported, if it is known."""
        node = node_id(name)
        known, member = self._freshest.get(node), self._membership.members.get(node)
        return unpack_body(member.card, known[2]).guests if known is not None and member is not None else None
