"""A member of the cluster that lies: of others in gossip, with its own good key, and by names that are not its own."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from balancer.gossip.datagram import (
    INCARNATION_LIMIT,
    Call,
    Card,
    Datagram,
    Probe,
    Update,
    Word,
    node_id,
    pack_entry,
    statement,
)
from node.cluster.front.gossip_encryption import INTRODUCTION_REPLY, DatagramCiphers
from node.cluster.keys.certificates import Certificates
from node.cluster.keys.pki import KeyStore
from tests.node.nodes import PORT, Cluster, Node, wait_for


class Liar:
    """Has the keys of n2, and sends to others whatever the test wants."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        keys = KeyStore(cluster[2].base / "state" / "pki")
        life = int((cluster[2].base / "state" / "life").read_text())
        self.certificates = Certificates(keys)
        self.certificates.reload()
        self.ciphers = DatagramCiphers(keys, (life << 32) + (1 << 31))
        for node in (cluster[1], cluster[3]):
            other = KeyStore(node.base / "state" / "pki").certificate().public_bytes(Encoding.DER)
            assert self.ciphers.meet(INTRODUCTION_REPLY + other) == node.name
        self.card = Card("n2", cluster[2].address, PORT, life)
        self.card = Card("n2", cluster[2].address, PORT, life, signature=self.certificates.sign(statement(self.card)))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def say(self, to: Node, **what: Any) -> None:
        self.send(to, Datagram(self.card, **what).pack())

    def send(self, to: Node, data: bytes) -> None:
        self.socket.sendto(self.ciphers.encrypt(to.name, data), (to.address, PORT))

    def lie(self, to: Node, incarnation: int) -> None:
        """All that it can come by: n3 is elsewhere, is stronger, is there, is dead, has left, has another load."""
        about, me = node_id("n3"), node_id("n2")
        card = Card("n3", "10.109.217.77", 9, incarnation, 64.0, 9.0, 1 << 40)
        for signature in (self.certificates.sign(statement(card)), bytes(64), os.urandom(64), self.card.signature):
            signed = Card("n3", "10.109.217.77", 9, incarnation, 64.0, 9.0, 1 << 40, signature=signature)
            self.say(to, updates=[Update(Word.ALIVE, about, incarnation, me, signed)])
            self.say(to, updates=[Update(word, about, incarnation, me, signature=signature) for word in (Word.HERE, Word.LEFT)])
        self.say(to, updates=[Update(word, about, incarnation, me) for word in (Word.DEAD, Word.SUSPECT)])
        self.say(to, entries=pack_entry(0.0, about, incarnation.to_bytes(4, "big") + os.urandom(16)))

    def close(self) -> None:
        self.socket.close()


def known(node: Node) -> dict[str, Any]:
    """Returns the node's entry for n3."""
    rows = json.loads(node.ok("mosctl", "nodes", "--json"))
    return next(({"address": row["address"], "cores": row["cores"]} for row in rows if row["name"] == "n3"), {})


def incarnation_of(node: Node) -> int:
    return int((node.base / "state" / "life").read_text())


def test_one_lying_member_neither_expels_nor_adorns_another(three: Cluster) -> None:
    n1, n2, n3 = three.nodes
    n2.kill()  # its keys are in other hands
    liar, before = Liar(three), known(n1)
    peers = json.loads((n1.run / "peers.json").read_text())
    try:
        own = incarnation_of(n3)
        for incarnation in (1, own, own + 1, own + (1 << 20), INCARNATION_LIMIT - 1, INCARNATION_LIMIT):
            for to in (n1, n3):
                liar.lie(to, incarnation)
            assert known(n1) in (before, {})
        wait_for(lambda: known(n1) == before, 30)
        assert json.loads((n1.run / "peers.json").read_text())["n3"] == peers["n3"]
        # It begins anew, and has lost all that it knew: it gets in again.
        n3.kill()
        (n3.base / "state" / "life").unlink()
        (n3.run / "peers.json").unlink(missing_ok=True)
        n3.restart()
        wait_for(lambda: known(n1) == before and "n1" in n3.nodes(), 60)
    finally:
        liar.close()
    assert "Traceback" not in n1.log.read_text() + n3.log.read_text()


def test_addresses_of_before_do_not_poison(three: Cluster) -> None:
    n1, _, n3 = three.nodes
    before = known(n1)
    n1.kill()
    (n1.run / "peers.json").write_text(json.dumps({"n3": ["10.109.217.77", 9], "n2": ["10.109.217.77", 9], "n7": ["10.109.217.77", 9]}))
    n1.restart()
    wait_for(lambda: known(n1) == before and n1.nodes() == {"n1", "n2", "n3"}, 60)
    wait_for(lambda: json.loads((n1.run / "peers.json").read_text())["n3"] == [n3.address, PORT], 10)


def test_authenticated_nonsense_changes_nothing(three: Cluster) -> None:
    n1, n2, n3 = three.nodes
    n2.kill()
    liar, before, dice = Liar(three), known(n1), random.Random(3)
    update = Update(Word.ALIVE, node_id("n3"), 5, node_id("n2"), Card("n3", n3.address, PORT, 5, signature=bytes(64)))
    base = Datagram(liar.card, updates=[update], probes=[Probe(Call.PING, 1, node_id("n1"))], wanted=[node_id("n3")]).pack()
    try:
        for number in range(2000):
            data = bytearray(base)
            for _ in range(dice.randrange(1, 8)):
                data[dice.randrange(9, len(data))] = dice.randrange(256)
            if dice.random() < 0.2:
                data = data[: dice.randrange(len(data))]
            if dice.random() < 0.1:
                data += dice.randbytes(dice.randrange(1, 600))
            liar.send(n1, bytes(data[:1360]))
            if number % 40 == 0:
                time.sleep(0.01)  # so that the socket's buffer takes them; nothing is waited for
        wait_for(lambda: known(n1) == before, 30)
        assert "n3" in n1.nodes()
    finally:
        liar.close()
    assert "Traceback" not in n1.log.read_text()
