"""What others report about a node: its card counts only with its own signature, and a lie changes nothing that lasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.gossip.datagram import INCARNATION_LIMIT, Card, Datagram, Update, Word, farewell, node_id, pack_entry, statement
from balancer.gossip.gossip import Gossip
from balancer.gossip.opening import unpack
from balancer.gossip.signatures import Virtual
from balancer.load.load import LoadVector
from balancer.virtual import VirtualNetwork
from tests.balancer.vectors import node

EVIL = Card("n2", "10.0.0.2", 7226, 1)


class Cluster(VirtualNetwork):
    """Nodes n1 to n5 that know one another; n2 is the one that lies."""

    def __init__(self) -> None:
        self.vectors: dict[str, LoadVector] = {}
        super().__init__(7, lambda gossip: gossip.update_self(self.vectors[gossip.name]))
        for number in range(1, 6):
            self.start(f"n{number}", 1)
        self.run(15)

    def start(self, name: str, incarnation: int) -> Gossip:
        self.vectors[name] = node(name, 1.0, incarnation=incarnation, address=f"10.0.0.{name[1:]}")
        gossip = self.add(name)
        gossip.learn("n1", "10.0.0.1", 7226)
        return gossip

    def say(self, *updates: Update, entries: bytes = b"") -> None:
        """n2 says that to all others."""
        for name, gossip in self.nodes.items():
            if name != "n2":
                said = Datagram(replace(EVIL, incarnation=self.nodes["n2"].own.incarnation), entries, updates=updates)
                self.send(name, gossip.receive(unpack(said.pack()), "n2"))

    def cards(self, name: str) -> set[Card]:
        own = node_id(name)
        return {gossip.membership.members[own].card for at, gossip in self.nodes.items() if at != name}


def forged(word: Word, incarnation: int, signature: bytes) -> Update:
    card = Card("n3", "10.109.217.77", 9, incarnation, 64.0, 9.0, 1 << 40, signature=signature)
    return Update(word, card.id, incarnation, EVIL.id, card if word is Word.ALIVE else None, signature=signature)


def signatures(incarnation: int, of: Card) -> list[bytes]:
    """Returns the signatures that n2 can get: nothing, random bytes, its own signature, one of another card of the node."""
    card = Card("n3", "10.109.217.77", 9, incarnation, 64.0, 9.0, 1 << 40)
    mine = Virtual("n2")
    return [b"\0" * 64, b"\xff" * 64, mine.sign(statement(card)), mine.sign(farewell(card.id, incarnation)), of.signature]


@pytest.mark.parametrize("incarnation", [1, 2, 3, 1 << 28, INCARNATION_LIMIT - 1, INCARNATION_LIMIT])
@pytest.mark.parametrize("word", [Word.ALIVE, Word.HERE, Word.LEFT])
def test_no_node_can_speak_for_another(word: Word, incarnation: int) -> None:
    cluster = Cluster()
    before = cluster.cards("n3")
    (known,) = before
    for signature in signatures(incarnation, known):
        cluster.say(forged(word, incarnation, signature))
        assert cluster.cards("n3") == before
    cluster.run(cluster.now + 10)
    assert cluster.cards("n3") == before
    assert all(gossip.membership.members[known.id].word is Word.ALIVE for at, gossip in cluster.nodes.items() if at != "n3")


def test_a_card_without_its_signature_cannot_even_be_sent() -> None:
    with pytest.raises(ValueError, match="signed"):
        Datagram(EVIL, updates=[forged(Word.ALIVE, 5, b"")]).pack()


@pytest.mark.parametrize("incarnation", [1, 2, INCARNATION_LIMIT])
def test_repeated_lies_about_a_death_kill_no_node(incarnation: int) -> None:
    cluster = Cluster()
    for _ in range(200):
        of = max(incarnation, cluster.nodes["n3"].own.incarnation)
        cluster.say(*(Update(word, node_id("n3"), of, EVIL.id) for word in (Word.DEAD, Word.SUSPECT)))
        cluster.run(cluster.now + 0.1)
        assert "n3" in cluster.nodes["n1"].known.peers()
    cluster.run(cluster.now + 15)
    assert "n3" in cluster.nodes["n1"].known.view().entries
    assert not cluster.nodes["n1"].known.view().entries["n3"].suspected
    assert cluster.nodes["n3"].own.incarnation < 100


@pytest.mark.parametrize("incarnation", [1, 2, INCARNATION_LIMIT])
def test_a_made_up_load_is_outdone(incarnation: int) -> None:
    cluster = Cluster()
    body = incarnation.to_bytes(4, "big") + b"\xff\xff" + bytes(14)
    for _ in range(5):
        cluster.say(entries=pack_entry(0.0, node_id("n3"), body))
        cluster.run(cluster.now + 0.5)
    cluster.vectors["n3"] = node("n3", 7.0, address="10.0.0.3", incarnation=1)
    cluster.run(cluster.now + 12)
    for at in ("n1", "n4", "n5"):
        assert cluster.nodes[at].known.view().entries["n3"].vector.runnable == pytest.approx(7.0, rel=0.05)
    assert cluster.nodes["n3"].own.incarnation < 100


def test_entries_of_invented_nodes_do_not_push_out_those_of_members() -> None:
    cluster = Cluster()
    for start in range(0, 3000, 40):
        made_up = b"".join(pack_entry(0.0, node_id(f"x{number}"), b"\0\0\0\1" + bytes(16)) for number in range(start, start + 40))
        cluster.say(entries=made_up)
    cluster.run(cluster.now + 3)
    assert set(cluster.nodes["n1"].known.view().entries) == set(cluster.nodes)
    assert len(cluster.nodes["n1"].freshest) <= 1300


@pytest.mark.parametrize("incarnation", [1, 4])
def test_a_node_without_its_store_learns_its_incarnation_from_its_own_signature(incarnation: int) -> None:
    cluster = Cluster()
    for cores in range(2, 12):
        cluster.vectors["n4"] = replace(node("n4", 1.0, address="10.0.0.4"), cores=float(cores))
        cluster.run(cluster.now + 1)
    before = cluster.nodes["n4"].own.incarnation
    assert before > 10
    cluster.remove("n4")
    cluster.run(cluster.now + 1)
    reborn = cluster.start("n4", incarnation)
    cluster.run(cluster.now + 10)
    assert reborn.own.incarnation > before
    assert {card.cores for card in cluster.cards("n4")} == {cluster.vectors["n4"].cores}


def test_reports_about_a_node_before_its_key_is_known_are_checked_again() -> None:
    known: set[str] = set()

    class Careful(Virtual):
        def check(self, name: str, text: bytes, signature: bytes) -> bool | None:
            return super().check(name, text, signature) if name in known else None

    cluster = Cluster()
    card = cluster.cards("n3").pop()
    reader = Gossip("n9", cluster.clock, cluster.nodes["n1"]._rng, signatures=Careful("n9"))
    update = Update(Word.ALIVE, card.id, card.incarnation, EVIL.id, card)
    reader.receive(Datagram(EVIL, updates=[update]), "n2")
    assert list(reader.unproven) == [card.id]
    assert card.id not in reader.membership.members
    known.add("n3")
    reader.prove("n3")
    assert reader.membership.members[card.id].card == card
    assert not reader.unproven


def test_entries_that_wait_for_a_key_are_bounded() -> None:
    class Careful(Virtual):
        def check(self, name: str, text: bytes, signature: bytes) -> bool | None:
            return None

    cluster = Cluster()
    reader = Gossip("n9", cluster.clock, cluster.nodes["n1"]._rng, signatures=Careful("n9"))
    for number in range(1000):
        card = Card(f"x{number}", "10.0.0.9", 9, 5, signature=b"x" * 64)
        reader.receive(Datagram(EVIL, updates=[Update(Word.ALIVE, card.id, 5, EVIL.id, card)]), "n2")
    assert len(reader.unproven) == 256
