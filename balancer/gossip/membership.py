"""Who belongs to the cluster and who of them is there: SWIM with Lifeguard's ideas, as a machine without clock or network.

After Das, Gupta and Motivala (DSN 2002) and Dadgar, Phillips and Currey (DSN 2018). Every period one member is asked; if it
does not answer, three others are asked to ask it; if that brings nothing either, it is *suspected*, and all are informed. It may
refute that by a higher incarnation of itself, or by news of it that is younger than the suspicion; else it counts as *dead*
after a time that is the shorter the more members suspect it by their own experience. A node that notices that it is slow
itself (answers that are missing, ticks that come late) asks with more patience. A suspected node gets no guests; being
suspected or dead never ends a process.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from balancer.gossip.datagram import INCARNATION_LIMIT, Call, Card, Probe, Update, Word, node_id
from balancer.gossip.news import News
from balancer.load.load import Clock

PERIOD = 1.0
"""Seconds from one probe to the next."""
TRY = 0.25
"""Seconds after which a question is asked again: a datagram may be lost."""
TRIES = 4
HELPED_TRY = 3
HELPERS = 3
DEAF = 2
"""After so many answers by the surer way alone no datagram gets through to a node, or none from it."""
HELPER_TRIES = 2
SUSPICION = 4.0
"""Periods that a suspicion lasts at least in a cluster of up to ten; in greater ones times log10 of their number."""
SUSPICION_LONGEST = 6.0
"""As many times as long if nobody else comes to suspect it."""
CONFIRMATIONS = 2
AWARENESS_LIMIT = 8
LATE = 0.5
"""Seconds that a tick may be late before the node thinks itself slow."""
LEAP = 1 << 28
"""So much greater than the one before an incarnation may be: they begin as seconds since the epoch, and grow by one."""
CHANGES = 1000
DEAD_KEPT = 24 * 3600.0
"""Addresses of dead members are kept for long, so that the two halves of a cut network find each other again."""
LEFT_KEPT = 60.0
_KEPT = {Word.SUSPECT: math.inf, Word.DEAD: DEAD_KEPT, Word.LEFT: LEFT_KEPT}
_THERE = (Word.ALIVE, Word.SUSPECT)


@dataclass(slots=True)
class Member:
    """What is known of another node. `since` is when it became what it is, `confirmed` who suspects it."""

    card: Card
    word: Word
    since: float
    confirmed: frozenset[bytes] = frozenset()
    deaf: int = 0
    """How many times in a row it has answered by the surer way alone."""


@dataclass(slots=True)
class _Asked:
    """A probe of ours that is under way; for a helper's, `asker` and `number` are whose it is."""

    node: bytes
    begun: float
    patience: float
    tries: int = 1
    helped: int = 0
    nacks: int = 0
    asker: bytes | None = None
    number: int = 0


class Membership:
    """The members as one node knows them. Sends are returned as (id of a member, probe)."""

    def __init__(self, own: bytes, clock: Clock, rng: random.Random, limit: int, heard: Callable[[bytes], float]) -> None:
        """`heard` reports when the newest of what is known of a node was said by it."""
        self.own = own
        self.awareness = 0
        self.members: dict[bytes, Member] = {}
        self._limit = limit
        self._heard = heard
        self._clock = clock
        self._rng = rng
        self._order: list[bytes] = []
        self._asked: dict[int, _Asked] = {}
        self._number = rng.randrange(1 << 31)
        self._news = News(clock)
        self.ill: dict[bytes, Member] = {}
        self.nameless: set[bytes] = set()
        """Members of which nothing but the address is known."""
        self.changes: deque[tuple[str, Word]] = deque(maxlen=CHANGES)
        """Names of members and what they have become, for callers that report them; the oldest first."""
        self._last_tick: float | None = None
        self._next_probe = 0.0
        self._alive: list[bytes] | None = None

    # -- who is there --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no more members are taken."""
        return len(self.members) >= self._limit

    def alive(self) -> list[bytes]:
        """Return the members that are neither dead nor gone; those that are suspected are among them."""
        if self._alive is None:
            self._alive = sorted(node for node, member in self.members.items() if member.word in _THERE)
        return self._alive

    def address_of(self, name: str) -> tuple[str, int] | None:
        """Return address and port of a node that is known; one that has left may come again."""
        member = self.members.get(node_id(name))
        return (member.card.address, member.card.port) if member is not None else None

    def dead(self) -> list[bytes]:
        """Return the members that count as dead."""
        return sorted(node for node, member in self.ill.items() if member.word is Word.DEAD)

    def dead_for(self, name: str) -> float | None:
        """Return the seconds since a node counts as dead; None: it does not."""
        member = self.members.get(node_id(name))
        return self._clock() - member.since if member is not None and member.word is Word.DEAD else None

    def sample(self, count: int, without: bytes = b"") -> list[bytes]:
        """Return so many random members that are there."""
        alive = self.alive()
        chosen = self._rng.sample(alive, min(count + 1, len(alive)))
        return [node for node in chosen if node != without][:count]

    def is_outlived(self, node: bytes, incarnation: int) -> bool:
        """Return whether news of that incarnation of a node is of a life that is over."""
        member = self.members.get(node)
        return member is not None and member.word in (Word.DEAD, Word.LEFT) and incarnation <= member.card.incarnation

    def is_leap(self, node: bytes, incarnation: int) -> bool:
        """Return whether no node could have got there from the incarnation that is known of it."""
        member = self.members.get(node)
        known = member.card.incarnation if member is not None else 0
        return incarnation >= INCARNATION_LIMIT or (known > 0 and incarnation > known + LEAP)

    def forget(self, node: bytes) -> None:
        """Forget a node, as if it had never been there."""
        for known in (self.members, self.ill):
            known.pop(node, None)
        self._news.drop(node)
        self.nameless.discard(node)
        self._alive = None

    def learn(self, card: Card) -> None:
        """Take the address of a node of which nothing is known yet."""
        member = self.members.get(card.id)
        if card.id != self.own and (member is None or (member.card.incarnation == 0 and member.word is not Word.ALIVE)):
            self._set(card.id, card, Word.ALIVE)

    def seen(self, node: bytes, born: float, incarnation: int) -> None:
        """Take it that the node said something at that moment: a suspicion that is older is void."""
        member = self.members.get(node)
        if member is not None and member.word is Word.SUSPECT and born > member.since and incarnation >= member.card.incarnation:
            self._set(node, member.card, Word.ALIVE)
            self._news.drop_short(node)

    # -- updates -------------------------------------------------------------------------------------------------------

    def apply(self, update: Update) -> bool:
        """Take what somebody says of another node; returns whether it is news, which then is sent to others too.

        What only the node itself may say has been checked before. Who speaks of an incarnation that is not known yet is not believed
        that it is over: nobody can refute the life of another.
        """
        member = self.members.get(update.node)
        news = False
        if update.word in (Word.ALIVE, Word.HERE):
            card = update.card
            if card is None and member is not None:
                card = replace(member.card, incarnation=update.incarnation, signature=update.signature)
            if card is not None and (not self.full if member is None else card.incarnation > member.card.incarnation):
                self._set(update.node, card, Word.ALIVE)
                news = True
        elif member is not None and update.incarnation == member.card.incarnation > 0:
            news = self._worse(member, update)
        if news:
            self.announce(update)
        return news

    def _worse(self, member: Member, update: Update) -> bool:
        if update.word is Word.SUSPECT:
            if self._heard(update.node) > self._clock() - update.age:
                return False
            if member.word is Word.SUSPECT:
                # Only those who found out by themselves count, and what is not counted need not be passed on.
                if update.by in member.confirmed or len(member.confirmed) > CONFIRMATIONS:
                    return False
                member.confirmed |= {update.by}
                return True
            if member.word is Word.ALIVE:
                self._set(update.node, member.card, Word.SUSPECT).confirmed = frozenset({update.by})
                return True
            return False
        if member.word is update.word or member.word is Word.LEFT:
            return False
        if update.word is Word.DEAD and update.by != self.own and not self._is_long_suspected(member):
            # Others may be wrong, or lie: who is there has the time to say so that those have whom we ourselves suspect.
            return self._worse(member, replace(update, word=Word.SUSPECT, age=0.0)) and False
        self._set(update.node, member.card, update.word)
        return True

    def _is_long_suspected(self, member: Member) -> bool:
        return member.word is Word.SUSPECT and self._clock() - member.since >= self.suspicion / 2

    def greet(self, card: Card) -> None:
        """Take the card that a node itself sends, and has signed."""
        member = self.members.get(card.id)
        same = member is not None and replace(member.card, incarnation=card.incarnation) == card
        word, reported = (Word.HERE, None) if same else (Word.ALIVE, card)
        update = Update(word, card.id, card.incarnation, card.id, reported, signature=card.signature)
        if not self.apply(update) and member is not None and member.card.incarnation == card.incarnation:
            member.card = card  # it has changed without our having heard of it

    def announce(self, update: Update) -> None:
        """Send an update with the next message, instead of what was to be said about that node."""
        self._news.add(update)

    def about(self, node: bytes) -> Update | None:
        """Return what we think ill of a node, for itself to hear and refute."""
        member = self.members.get(node)
        if member is None or member.word is Word.ALIVE:
            return None
        word = member.word if member.word is Word.SUSPECT else Word.DEAD
        return Update(word, node, member.card.incarnation, self.own)

    def news(self, space: int, first: Update | None = None) -> list[Update]:
        """Return updates to send in so many bytes: `first`, then those that were sent least."""
        return self._news.take(space, len(self.members), first)

    def _set(self, node: bytes, card: Card, word: Word) -> Member:
        before = self.members.get(node)
        if before is None:
            self._order.insert(self._rng.randint(0, len(self._order)), node)
        member = self.members[node] = Member(card, word, self._clock(), deaf=before.deaf if before is not None else 0)
        if before is not None and before.word is not word:
            self.changes.append((card.name, word))
        if before is None or (before.word in _THERE) != (word in _THERE):
            self._alive = None
        (self.nameless.discard if card.incarnation else self.nameless.add)(node)
        if word is Word.ALIVE:
            self.ill.pop(node, None)
        else:
            self.ill[node] = member
        return member

    # -- probes --------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When tick() has something to do next."""
        moments = [self._next_probe, *(self._deadline(asked) for asked in self._asked.values())]
        return min([*moments, *(member.since + self._suspicion(member) for member in self._suspected())])

    def _suspected(self) -> Iterator[Member]:
        return (member for member in self.ill.values() if member.word is Word.SUSPECT)

    def tick(self) -> tuple[bytes | None, list[tuple[bytes, Probe]]]:
        """Let time pass; returns the member to probe now, if it is time (see ping()), and what to send besides."""
        now = self._clock()
        self._notice_own_slowness(now)
        sends: list[tuple[bytes, Probe]] = []
        for number, asked in list(self._asked.items()):
            if now >= self._deadline(asked):
                sends += self._overdue(number, asked)
        for member in [member for member in self._suspected() if now >= member.since + self._suspicion(member)]:
            self.apply(Update(Word.DEAD, member.card.id, member.card.incarnation, self.own))
        for node, member in list(self.ill.items()):
            if now - member.since > _KEPT[member.word]:
                self.forget(node)
        target = None
        if now >= self._next_probe:
            self._next_probe = now + PERIOD * (1 + self.awareness) * self._rng.uniform(0.9, 1.1)
            target = self._next_target()
        self._last_tick = max(now, self.due)
        return target, sends

    def _notice_own_slowness(self, now: float) -> None:
        """Give all who are asked or suspected the time that we ourselves did not run, in which we could not hear them."""
        late = now - self._last_tick if self._last_tick is not None else 0.0
        if late > LATE:
            self._aware(1)
            for asked in self._asked.values():
                asked.begun += late
            for member in self._suspected():
                member.since += late

    def _next_target(self) -> bytes | None:
        # In a random order, but each once in a round: no member waits for long until it is asked.
        for _ in range(2):
            while self._order:
                node = self._order.pop()
                if node in self.members and self.members[node].word in _THERE:
                    return node
            self._order = self._rng.sample(self.alive(), len(self.alive()))
        return None

    def ping(self, node: bytes) -> Probe:
        """Begin to ask a member; returns what to send to it."""
        return self._ask(_Asked(node, self._clock(), TRY * (1 + self.awareness)))

    def _ask(self, asked: _Asked) -> Probe:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._asked[self._number] = asked
        return Probe(Call.PING, self._number, asked.node)

    @staticmethod
    def _deadline(asked: _Asked) -> float:
        return asked.begun + asked.patience * asked.tries

    def _overdue(self, number: int, asked: _Asked) -> list[tuple[bytes, Probe]]:
        asked.tries += 1
        again = (asked.node, Probe(Call.PING, number, asked.node))
        if asked.asker is not None:
            if asked.tries <= HELPER_TRIES:
                return [again]
            del self._asked[number]
            return [(asked.asker, Probe(Call.NACK, asked.number, asked.node))]
        if asked.tries <= TRIES:
            if asked.tries != HELPED_TRY:
                return [again]
            helpers = self.sample(HELPERS, without=asked.node)
            asked.helped += len(helpers)
            asks = [(helper, Probe(Call.ASK, number, asked.node)) for helper in helpers]
            return [again, (asked.node, replace(again[1], surely=True)), *asks]
        del self._asked[number]
        # If not even the helpers' answers arrive, the problem is probably ours.
        self._aware(asked.helped - asked.nacks if asked.helped else 1)
        member = self.members.get(asked.node)
        if member is not None and member.word in _THERE:
            if member.card.incarnation:
                age = self._clock() - asked.begun
                self.apply(Update(Word.SUSPECT, asked.node, member.card.incarnation, self.own, age=age))
            else:
                self._set(asked.node, member.card, Word.DEAD)
        return []

    def is_deaf(self, node: bytes) -> bool:
        """Return whether datagrams do not get through to a member, or from it."""
        member = self.members.get(node)
        return member is not None and member.deaf >= DEAF

    def deaf(self) -> list[str]:
        """Return the names of members that are there, but that no datagrams get through to, or from."""
        return sorted(self.members[node].card.name for node in self.alive() if self.is_deaf(node))

    def hear(self, sender: bytes, probe: Probe) -> list[tuple[bytes, Probe]]:
        """Take a probe or an answer, which came `surely` or not; returns what to send."""
        if probe.call is Call.PING:
            return [(sender, Probe(Call.ACK, probe.number, self.own, probe.surely))] if probe.node == self.own else []
        if probe.call is Call.ASK:
            if probe.node not in self.members:
                return []
            asked = _Asked(probe.node, self._clock(), TRY * 0.8, asker=sender, number=probe.number)
            return [(probe.node, self._ask(asked))]
        if probe.call is Call.ACK and probe.node == sender and sender in self.members:
            self.members[sender].deaf = self.members[sender].deaf + 1 if probe.surely else 0
        mine = self._asked.get(probe.number)
        if mine is None or mine.node != probe.node:
            return []
        if probe.call is Call.NACK:
            mine.nacks += 1
            return []
        del self._asked[probe.number]
        if mine.asker is not None:
            return [(mine.asker, Probe(Call.ACK, mine.number, mine.node))]
        self._aware(-1)
        self._answered(mine)
        return []

    def _answered(self, asked: _Asked) -> None:
        member = self.members.get(asked.node)
        if member is not None and member.word is Word.SUSPECT and asked.begun > member.since:
            self.seen(asked.node, self._clock(), member.card.incarnation)

    def _aware(self, more: int) -> None:
        self.awareness = max(0, min(AWARENESS_LIMIT, self.awareness + more))

    @property
    def suspicion(self) -> float:
        """The seconds that a member is suspected at least before it counts as dead."""
        return SUSPICION * max(1.0, math.log10(len(self.alive()) + 1)) * PERIOD

    def _suspicion(self, member: Member) -> float:
        """Return for how long a member may be suspected before it counts as dead (Lifeguard, section IV-B)."""
        least = self.suspicion
        if len(self.alive()) <= CONFIRMATIONS:
            return least
        most = SUSPICION_LONGEST * least
        share = math.log(len(member.confirmed)) / math.log(CONFIRMATIONS + 1) if member.confirmed else 0.0
        return max(least, most - (most - least) * share)
