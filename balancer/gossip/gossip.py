"""Spreads load vectors: every node sends two random peers, once a second, the freshest that it knows.

After Amar, Barak, Drezner and Okun (CPE 21, 2009): with a window of w of n entries the average age is about ln w + n/w
periods with one peer, and two thirds of it with two. Entries carry their age, to which every node adds the time that it
kept them; wall clocks are never compared. Which nodes are there, and which are not, is sent in the same datagrams (membership.py).

What a node is (its card) it signs itself; what others report about it without that counts for nothing. An entry counts if it is of the
incarnation that the signed card reports: if another node makes one up, the node's own next incarnation replaces it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from balancer.gossip.datagram import (
    AGE_LIMIT,
    ENVELOPE,
    FREE,
    ID,
    PROBE,
    REMOVED,
    SIGNATURE,
    UDP,
    URGENT,
    Call,
    Card,
    Datagram,
    Probe,
    Update,
    Urgent,
    Word,
    entries_of,
    farewell,
    node_id,
    pack_body,
    pack_card,
    pack_entry,
    size_of,
    statement,
    version_of,
)  # fmt: skip
from balancer.gossip.freshest import LIMIT, Freshest
from balancer.gossip.known import FORGET_AFTER, WINDOW, Known
from balancer.gossip.letters import BYTES_PER_SECOND, Allowance, Letter, Sent
from balancer.gossip.membership import Membership
from balancer.gossip.own import Own
from balancer.gossip.signatures import Signatures, Virtual
from balancer.load.load import Clock, LoadVector

PERIOD = 1.0
FAN_OUT = 2
MANY = 256
URGENT_PEERS = 3
LEAVING_PEERS = 8
"""A node that leaves cannot say so again."""
URGENT_PERIOD = 1.0
WANTED = 16
SMALL = 200
"""Bytes of updates in a datagram that has only a probe to bring, or something urgent."""
UNPROVEN = 256
"""Updates that wait until it is known by which key they are to be checked."""
REVIVAL = 0.2
"""How likely a dead member is informed of its death in each period, so that halves of a cut cluster meet again."""


class Gossip:
    """One node's part in it: datagrams in, datagrams out. The caller sends what tick() and receive() return.

    tick() is due at `due` (seconds of `clock`), which receive() and update_self() may bring forward.
    """

    def __init__(
        self, name: str, clock: Clock, rng: random.Random, forget_after: float = FORGET_AFTER, signatures: Signatures | None = None
    ) -> None:
        """signatures: of a real node; None: under virtual time."""
        self.name = name
        self.signatures = signatures or Virtual(name)
        self.removed = bytes(REMOVED)
        """What stands for those who were taken out of the cluster."""
        self.differing: set[str] = set()
        """Nodes with which it is another one."""
        self.unproven: dict[bytes, Update] = {}
        """What was said about nodes of which the key is not known yet."""
        self.id = node_id(name)
        self.freshest = Freshest()
        self.membership = Membership(self.id, clock, rng, LIMIT, self.freshest.born)
        self.allowance = Allowance(clock)
        self.clock = clock
        self._rng = rng
        self.own = Own(name, clock, self.signatures, self.membership)
        self.known = Known(self.own, clock, self.membership, self.freshest, forget_after)
        self._renewed: set[bytes] = set()
        self._next_round = clock() + rng.uniform(0, PERIOD)
        self._urgent_at = math.inf
        self._urgent_last = -math.inf
        self._left = False

    def update_self(self, vector: LoadVector) -> None:
        """Take this node's own newest load vector. What others must know at once is sent with the next tick()."""
        if self.own.update(vector):
            self._urgent_at = min(self._urgent_at, max(self.own.updated, self._urgent_last + URGENT_PERIOD))

    # -- others --------------------------------------------------------------------------------------------------------

    def learn(self, name: str, address: str, port: int) -> None:
        """Take the address of a peer of which nothing else is known, such as a seed that has been dialled."""
        self.membership.learn(Card(name, address, port))

    def forget(self, name: str) -> None:
        """Forget a node that was taken out of the cluster."""
        self.begin_anew(name)
        self.unproven.pop(node_id(name), None)
        self.differing.discard(name)

    def begin_anew(self, name: str) -> None:
        """Forget what a node has said under another key than the one that it has now."""
        self.membership.forget(node_id(name))
        self.freshest.drop(node_id(name))

    def prove(self, name: str) -> None:
        """Look again at what was said about a node whose key is known now."""
        if (update := self.unproven.pop(node_id(name), None)) is not None:
            self._apply(update)

    def hear_of(self, vector: LoadVector) -> None:
        """Take what a node said of itself just now, such as with its refusal of a guest."""
        self._take(self.clock(), node_id(vector.name), pack_body(vector))

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When tick() has something to do next; never, once this node has left."""
        return math.inf if self._left else min(self._next_round, self._urgent_at, self.membership.due)

    def tick(self) -> Sent:
        """Let time pass; returns what to send now."""
        if self._left:
            return []
        now = self.clock()
        target, probes = self.membership.tick()
        sent = [datagram for node, probe in probes for datagram in self._short(node, [probe])]
        if now >= self._urgent_at:
            self._urgent_at, self._urgent_last = math.inf, now
            sent += self._push(self._own_urgent(), without=b"")
        if now >= self._next_round:
            self._next_round = now + PERIOD * self._rng.uniform(0.9, 1.1)
            self.freshest.forget(now - min(AGE_LIMIT, self.known.kept()), self.membership.members)
            sent += self._round(target)
        elif target is not None:
            sent += self._short(target, [self.membership.ping(target)])
        return sent

    def _round(self, target: bytes | None) -> Sent:
        """Send the window to the member that is to be probed and to a random one, or to two random ones."""
        chosen = [target] if target is not None else []
        chosen += self.membership.sample(FAN_OUT - len(chosen), without=target or b"")
        # A node that has sent too much already sends the newest alone.
        windows = self._windows()[: None if self.allowance.left >= 0 else 1]
        sent: Sent = []
        for place, node in enumerate(chosen):
            if place and self.allowance.left <= 0:
                break
            probes = [self.membership.ping(node)] if node == target else []
            for window in windows:
                sent += self._datagram(node, window, probes=probes)
                probes = []
        dead = self.membership.dead()
        if dead and (not chosen or self._rng.random() < REVIVAL):
            sent += self._short(self._rng.choice(dead))
        return sent

    def _windows(self) -> list[bytes]:
        now = self.clock()
        many = len(self.membership.alive()) + 1 >= MANY
        own = self.own.entry()
        entries = [own] if own else []
        count = (2 if many else 1) * WINDOW - len(entries)
        entries += [pack_entry(now - born, node, body) for born, node, body in self.freshest.newest(count)]
        return [b"".join(entries[at : at + WINDOW]) for at in range(0, max(1, len(entries)), WINDOW)]

    def introduce(self, name: str) -> Sent:
        """Return what to send to a node that has just come into touch: it need not wait for its turn."""
        node = node_id(name)
        return [datagram for window in self._windows() for datagram in self._datagram(node, window)]

    def greet(self, name: str) -> Sent:
        """Return what to send to a node that has thought something else of this one: its own entry, and nothing besides."""
        return self._datagram(node_id(name), self.own.entry(), updates=())

    def leave(self) -> Sent:
        """Return what to send when this node leaves the cluster for good; it says nothing after that."""
        signature = self.signatures.sign(farewell(self.id, self.own.incarnation))
        left = [Update(Word.LEFT, self.id, self.own.incarnation, self.id, signature=signature)] if signature else []
        sent = [letter for node in self.membership.sample(LEAVING_PEERS) for letter in self._datagram(node, updates=left)]
        self._left = True
        return sent

    def _own_urgent(self) -> Urgent:
        hops = math.ceil(math.log2(len(self.membership.alive()) + 1)) + 2
        return Urgent(hops, self.clock() - self.own.updated, self.id, self.own.body() or b"")

    def _push(self, urgent: Urgent | None, without: bytes) -> Sent:
        peers = self.membership.sample(URGENT_PEERS, without)
        return [sent for node in peers for sent in self._datagram(node, urgent=[urgent] if urgent else [], space=SMALL)]

    def _short(self, node: bytes, probes: Sequence[Probe] = ()) -> Sent:
        surely = any(probe.surely for probe in probes)
        return self._datagram(node, self.own.entry() if surely else b"", probes=probes, space=SMALL, surely=surely)

    def _datagram(
        self, node: bytes, entries: bytes = b"", *, urgent: Sequence[Urgent] = (), probes: Sequence[Probe] = (),
        updates: Sequence[Update] | None = None, space: int = FREE, surely: bool = False,
    ) -> Sent:  # fmt: skip
        member = self.membership.members.get(node)
        if member is None:
            return []
        if not surely and self.membership.is_deaf(node):
            # Questions and answers go on as datagrams: that is how it is noticed when those get through again.
            tried = [probe for probe in probes if probe.call in (Call.PING, Call.ACK)]
            rest = [probe for probe in probes if probe not in tried]
            sent = self._letter(member.card.name, Datagram(self.own.unsigned(), probes=tried, removed=self.removed)) if tried else []
            if entries or urgent or rest or not tried:
                sent += self._datagram(node, entries, urgent=urgent, probes=rest, updates=updates, space=space, surely=True)
            return sent
        card = self.own.unsigned() if node in self.own.reported else self.own.card
        self.own.reported.add(node)
        room = FREE - len(pack_card(card)) - len(card.signature) - len(entries) - URGENT * len(urgent) - PROBE * len(probes)
        wanted = self._missing(room // ID) if entries else []
        if updates is None:
            # A node that has sent too much already sends less.
            space = min(space, SMALL) if self.allowance.left < 0 else space
            updates = self.membership.news(min(space, room - ID * len(wanted)), self.membership.about(node))
        return self._letter(member.card.name, Datagram(card, entries, urgent, wanted, probes, updates, self.removed), surely)

    def _letter(self, name: str, datagram: Datagram, surely: bool = False) -> Sent:
        data = datagram.pack()
        self.allowance.spend(UDP + ENVELOPE + len(data))
        return [Letter(name, data, surely)]

    def _missing(self, room: int) -> list[bytes]:
        """Return a few nodes of which there is news, but no card or only one of an earlier life."""
        members = self.membership.members
        missing, self._renewed = [*self._renewed, *(node for node in self.membership.nameless if node in self.freshest.known)], set()
        if not self.membership.full and len(self.freshest) > len(self.membership.alive()):
            missing += [node for _, node, _ in self.freshest if node not in members]
        return self._rng.sample(missing, min(WANTED, room, len(missing)))

    # -- in ------------------------------------------------------------------------------------------------------------

    def receive(self, datagram: Datagram, by: str | None = None, surely: bool = False) -> Sent:
        """Take a datagram, which `by` is known to have sent; returns what to send at once because of it.

        `surely`: it came by the surer way. Errors: ValueError with one sentence if it is by somebody else; then nothing of it has been
        taken.
        """
        sender = datagram.sender.id
        if by is not None and datagram.sender.name != by:
            raise ValueError(f"gossip: {by} sends what is not its own")
        if self._left or sender == self.id:
            return []
        if datagram.removed != self.removed:
            self.differing.add(datagram.sender.name)
        sent = self._greet(datagram.sender)
        refuted = False
        for update in datagram.updates:
            if update.node == self.id:
                refuted |= self.own.refute(update)
            elif self._apply(update) and update.word is Word.LEFT:
                sent += self._push(None, without=sender)
        now = self.clock()
        known, ill, kept = self.freshest.known, self.membership.ill, self.known.kept()
        for age, node, body in entries_of(datagram.entries):
            old = known.get(node)
            if old is None or node in ill or body[:4] != old[2][:4]:
                self._take(now - age / 50, node, body)
            elif body > old[2] and age / 50 < kept:
                known[node] = (now - age / 50, node, body)
        for urgent in datagram.urgent:
            if self._take(now - urgent.age, urgent.node, urgent.body) and urgent.hops:
                sent += self._push(replace(urgent, hops=urgent.hops - 1), without=sender)
        probes = [replace(probe, surely=True) for probe in datagram.probes] if surely else datagram.probes
        answers = [answer for probe in probes for answer in self.membership.hear(sender, probe)]
        for node, probe in answers:
            sent += self._short(node, [probe])
        if refuted or (self.membership.about(sender) is not None and not answers):
            sent += self._short(sender)  # with our newest card, or with why it is not believed
        if datagram.wanted and self.allowance.left > -BYTES_PER_SECOND:
            sent += self._datagram(sender, updates=self._cards(datagram.wanted))
        return sent

    def _greet(self, card: Card) -> Sent:
        """Take the card that came with a datagram, which is its sender's; returns what is to be said to that."""
        known = self.membership.members.get(card.id)
        if known is not None and card.incarnation == known.card.incarnation and len(card.signature) <= len(known.card.signature):
            return []
        if known is not None and card.incarnation < known.card.incarnation:
            # It began anew, and does not know how it was called last.
            evidence = Update(Word.ALIVE, card.id, known.card.incarnation, self.id, known.card)
            return self._datagram(card.id, updates=[evidence]) if known.card.signature and self.allowance.left > 0 else []
        if self.membership.is_leap(card.id, card.incarnation):
            return []
        if card.signature and self._is_said(Update(Word.ALIVE, card.id, card.incarnation, card.id, card)):
            self.membership.greet(card)
            self._drop_made_up(card.id)
            return []
        self.membership.learn(replace(card, incarnation=0, signature=b""))
        # What it has not signed is not to be passed on, so it is not believed either: nobody could learn it from us.
        return self._want(card.id) if card.incarnation and not card.signature else []

    def _want(self, node: bytes) -> Sent:
        member = self.membership.members.get(node)
        if member is None or self.allowance.left <= -BYTES_PER_SECOND:
            return []
        return self._letter(member.card.name, Datagram(self.own.unsigned(), wanted=[node], removed=self.removed))

    def _apply(self, update: Update) -> bool:
        member = self.membership.members.get(update.node)
        if update.word in (Word.ALIVE, Word.HERE):
            known = member.card.incarnation if member is not None else -1
            if update.incarnation <= known or self.membership.is_leap(update.node, update.incarnation) or not self._is_said(update):
                return False
        elif update.word is Word.LEFT:
            if member is None or update.incarnation != member.card.incarnation or not self._is_said(update):
                return False
        elif member is not None and update.incarnation > member.card.incarnation:
            self._renewed.add(update.node)
        news = self.membership.apply(update)
        if news and update.word in (Word.DEAD, Word.LEFT):
            self.freshest.drop(update.node)
        elif news:
            self._drop_made_up(update.node)
        return news

    def _drop_made_up(self, node: bytes) -> None:
        """Forget an entry that is of no incarnation that the node has had."""
        known, member = self.freshest.get(node), self.membership.members.get(node)
        if known is not None and member is not None and version_of(known[2])[0] > member.card.incarnation:
            self.freshest.drop(node)

    def _is_said(self, update: Update) -> bool:
        """Return whether the node itself says so; if that is not known yet it is checked again when its key is known."""
        member = self.membership.members.get(update.node)
        card = update.card
        if card is None:
            if member is None:
                return False
            card = replace(member.card, incarnation=update.incarnation)
        text = farewell(update.node, update.incarnation) if update.word is Word.LEFT else statement(card)
        signature = update.signature or card.signature
        said = self.signatures.check(card.name, text, signature) if len(signature) == SIGNATURE else False
        if said is None:
            while len(self.unproven) >= UNPROVEN:
                del self.unproven[next(iter(self.unproven))]
            waiting = self.unproven.get(update.node)
            if waiting is None or update.incarnation > waiting.incarnation:
                self.unproven[update.node] = update
        elif not said and update.word is Word.HERE:
            self._renewed.add(update.node)  # the rest of its card has changed, too
        return bool(said)

    def _take(self, born: float, node: bytes, body: bytes) -> bool:
        """Take an entry; returns whether it is news."""
        if node == self.id:
            # What others remember of our life before a restart must not count as newer than what we say now.
            # An incarnation that it has never signed is made up.
            incarnation, sequence = version_of(body)
            if incarnation == self.own.incarnation and sequence > self.own.sequence:
                self.own.outdo(incarnation)
            return False
        known = self.freshest.get(node)
        if (known is not None and body <= known[2]) or self.clock() - born > self.known.kept():
            return False
        incarnation, _ = version_of(body)
        member = self.membership.members.get(node)
        if member is not None and incarnation > member.card.incarnation:
            self._renewed.add(node)
            if member.card.incarnation:
                return False
        elif member is not None and member.word is not Word.ALIVE:
            if self.membership.is_outlived(node, incarnation):
                return False
            self.membership.seen(node, born, incarnation)
        return self.freshest.put(born, node, body)

    def _cards(self, wanted: Sequence[bytes]) -> list[Update]:
        space = FREE - len(pack_card(self.own.card)) - SIGNATURE
        members = self.membership.members
        cards = [members[node].card for node in wanted if node in members and members[node].word is Word.ALIVE]
        updates = []
        for card in [self.own.card, *cards] if self.id in wanted else cards:
            update = Update(Word.ALIVE, card.id, card.incarnation, self.id, card)
            space -= size_of(update)
            if card.incarnation and card.signature and space >= 0:
                updates.append(update)
        return updates
