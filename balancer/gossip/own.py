"""This node as gossip reports it: its card, which it signs itself, and its load vector, each time newer than before."""

from __future__ import annotations

import math
from dataclasses import replace

from balancer.gossip.datagram import INCARNATION_LIMIT, SEQUENCE_LIMIT, Card, Update, Word, node_id, pack_body, pack_entry, statement
from balancer.gossip.membership import Membership
from balancer.gossip.signatures import Signatures
from balancer.load.load import Clock, LoadVector, is_urgent

OUTDOING_PERIOD = 0.5
"""Seconds between two incarnations of a node that others have said wrong things of: who lies all the time costs no more."""


class Own:
    """What one node says of itself."""

    def __init__(self, name: str, clock: Clock, signatures: Signatures, membership: Membership) -> None:
        self.name = name
        self.id = node_id(name)
        self.card = Card(name, "-", 1)
        self.vector: LoadVector | None = None
        self.updated = 0.0
        self.sequence = 0
        self.reported: set[bytes] = set()
        """Nodes that have been sent the card with its signature; who has lost it asks for it."""
        self._clock = clock
        self._signatures = signatures
        self._membership = membership
        self._outdone_at = -math.inf

    @property
    def incarnation(self) -> int:
        return self.card.incarnation

    def update(self, vector: LoadVector) -> bool:
        """Take this node's own newest load vector; returns whether others must know of it at once. Errors: ValueError."""
        if vector.name != self.name:
            raise ValueError(f"gossip of {self.name} was given the load vector of {vector.name}")
        card = Card(
            self.name, vector.address, vector.port, self.incarnation, vector.cores, vector.speed, vector.memory_total, vector.version,
            vector.processor,
        )  # fmt: skip
        if self.vector is None:
            card = replace(card, incarnation=max(1, vector.incarnation, self.incarnation))
        elif card != self.card:
            card = replace(card, incarnation=self.incarnation + 1)
        if card != self.card or not self.card.signature:
            self._introduce(card)
        before, self.vector, self.updated = self.vector, vector, self._clock()
        return before is not None and is_urgent(before, vector)

    def sign_anew(self) -> None:
        """Sign the card with the key of now, and have all know it."""
        if self.vector is not None:
            self._introduce(replace(self.card, incarnation=self.incarnation + 1))

    def _sign(self, card: Card) -> None:
        self.card, self.sequence = replace(card, signature=self._signatures.sign(statement(card))), 0
        self.reported.clear()

    def _introduce(self, card: Card) -> None:
        self._sign(card)
        if self.card.signature:
            self._membership.announce(Update(Word.ALIVE, self.id, card.incarnation, self.id, self.card))

    def body(self) -> bytes | None:
        """Return what this node says of itself now; each time it is newer than before."""
        if self.vector is None:
            return None
        self.sequence += 1
        if self.sequence > SEQUENCE_LIMIT:
            self._introduce(replace(self.card, incarnation=self.incarnation + 1))
        return pack_body(replace(self.vector, incarnation=self.incarnation, sequence=self.sequence))

    def entry(self) -> bytes:
        """Return the entry of it now, or nothing."""
        own = self.body()
        return pack_entry(self._clock() - self.updated, self.id, own) if own is not None else b""

    def vector_now(self) -> LoadVector:
        """Return what this node says of itself now, newer than what it has sent. Errors: ValueError if it knows nothing yet."""
        if self.vector is None:
            raise ValueError(f"gossip of {self.name} has no load vector yet")
        self.body()
        return replace(self.vector, incarnation=self.incarnation, sequence=self.sequence)

    def unsigned(self) -> Card:
        """Return the card without its signature."""
        return replace(self.card, signature=b"")

    def refute(self, update: Update) -> bool:
        """Return whether that is wrong of this node, which says so by another incarnation."""
        card = update.card
        if (
            card is not None
            and update.incarnation > self.incarnation
            and self._signatures.check(self.name, statement(card), card.signature)
        ):
            self.outdo(update.incarnation)  # we ourselves have said so, in a life that we do not remember
            return True
        if update.word not in (Word.SUSPECT, Word.DEAD) or update.incarnation != self.incarnation:
            return False
        # News of this node that is younger than a suspicion makes it void. Only one that lives on in spite of that is refuted.
        if update.word is Word.SUSPECT and update.age < self._membership.suspicion / 2:
            return False
        self.outdo(update.incarnation)
        return True

    def outdo(self, incarnation: int) -> None:
        """Begin an incarnation after that one."""
        if self._clock() - self._outdone_at < OUTDOING_PERIOD or incarnation >= INCARNATION_LIMIT - 1:
            return
        self._outdone_at = self._clock()
        self._sign(replace(self.card, incarnation=incarnation + 1))
        if self.card.signature:
            self._membership.announce(Update(Word.HERE, self.id, self.incarnation, self.id, signature=self.card.signature))
