"""Datagrams between nodes over a real network: introductions, and rejection of datagrams that no member has sent."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from balancer.gossip.datagram import ENVELOPE, LIMIT
from node.cluster.front.front import bound
from node.cluster.front.gossip_encryption import INTRODUCTION_REPLY, INTRODUCTION_REQUEST, DatagramCiphers, DatagramRejected
from node.cluster.front.gossip_socket import INTRODUCTIONS, GossipSocket
from node.cluster.keys.pki import KeyStore, new_key

PORT = 7226


def member(base: Path, authority: KeyStore, name: str) -> KeyStore:
    """A node that has joined."""
    keys, key = KeyStore(base / secrets.token_hex(4)), new_key()
    keys.install(key, authority.sign(key.public_key(), name), authority.authority_certificate.read_bytes())
    return keys


class Ears:
    """The sockets of n1 and n2, what each has heard, and a way to send to n1 what one likes."""

    def __init__(self, keys: dict[str, KeyStore]) -> None:
        network = f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
        self.addresses = {name: (f"{network}.{name[1:]}", PORT) for name in ("n1", "n2")}
        self.heard: dict[str, list[tuple[str, bytes]]] = {name: [] for name in keys}
        self.spent: list[int] = []
        self.sockets = {name: self.ear(name, store) for name, store in keys.items()}

    def ear(self, name: str, keys: KeyStore, incarnation: int = 7) -> GossipSocket:
        made = GossipSocket(keys, incarnation, self.addresses.get, lambda by, data: self.hear(name, by, data), self.spent.append)
        made.start(bound(socket.SOCK_DGRAM, *self.addresses[name]))
        return made

    def hear(self, name: str, by: str, data: bytes) -> None:
        self.heard[name].append((by, data))
        if data == b"nonsense":
            raise ValueError("gossip: it is nonsense")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()


@asynccontextmanager
async def ears(keys: dict[str, KeyStore]) -> AsyncIterator[Ears]:
    made = Ears(keys)
    try:
        yield made
    finally:
        made.close()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


def test_two_nodes_that_have_never_met_hear_one_another(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        async with ears({"n1": first, "n2": member(tmp_path, first, "n2")}) as both:
            both.sockets["n1"].send("n2", b"hello")
            both.sockets["n2"].send("n1", b"you too")
            await both.until(lambda: both.heard == {"n1": [("n2", b"you too")], "n2": [("n1", b"hello")]})
            assert both.sockets["n1"].dropped["forged"] == both.sockets["n2"].dropped["forged"] == 0

    run(work())


def test_a_restarted_node_is_heard_at_once_and_its_earlier_datagrams_are_not_replayed(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        keys = member(tmp_path, first, "n2")
        async with ears({"n1": first, "n2": keys}) as both:
            both.sockets["n2"].send("n1", b"one")
            await both.until(lambda: len(both.heard["n1"]) == 1)
            both.sockets["n2"].close()
            both.sockets["n2"] = both.ear("n2", keys, incarnation=8)
            both.sockets["n1"].send("n2", b"are you back?")  # it does not know us, and asks
            await both.until(lambda: both.sockets["n2"].dropped["unknown"] == 1)
            both.sockets["n2"].send("n1", b"two")
            await both.until(lambda: both.heard["n1"] == [("n2", b"one"), ("n2", b"two")])

    run(work())


def test_a_node_that_has_joined_anew_with_another_key_is_heard(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        async with ears({"n1": first, "n2": member(tmp_path, first, "n2")}) as both:
            both.sockets["n2"].send("n1", b"one")
            await both.until(lambda: len(both.heard["n1"]) == 1)
            both.sockets["n2"].close()
            both.sockets["n2"] = both.ear("n2", member(tmp_path, first, "n2"))
            both.sockets["n2"].send("n1", b"two")
            await both.until(lambda: len(both.heard["n1"]) == 2)

    run(work())


def test_forged_cut_or_replayed_datagrams_are_dropped_and_counted(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        keys, rng = member(tmp_path, first, "n2"), random.Random(3)
        async with ears({"n1": first, "n2": keys}) as both:
            n1 = both.sockets["n1"]
            both.sockets["n2"].send("n1", b"one")
            await both.until(lambda: len(both.heard["n1"]) == 1)
            both.sockets.pop("n2").close()
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            thief.bind(both.addresses["n2"])
            says = DatagramCiphers(keys, 9 << 32)
            says.meet(INTRODUCTION_REPLY + first.certificate().public_bytes(Encoding.DER))
            good = [says.encrypt("n1", b"datagram %d" % number * 20) for number in range(3)]
            sent = 0

            async def send(data: bytes) -> None:
                nonlocal sent
                sent += 1
                thief.sendto(data, both.addresses["n1"])
                await both.until(lambda: n1.dropped.total() + len(both.heard["n1"]) == sent + 1)

            for data in (good[1], good[0], good[2]):  # the network may bring them in another order
                await send(data)
            assert len(both.heard["n1"]) == 4
            for data in good:
                await send(data)
            assert n1.dropped == {"replayed": 3}
            for _ in range(200):
                changed = bytearray(says.encrypt("n1", b"x" * 100))
                changed[rng.randrange(1, len(changed))] ^= 1 << rng.randrange(8)
                await send(bytes(changed))
            for length in (1, ENVELOPE - 1, ENVELOPE, ENVELOPE + 1, 60):
                await send(good[0][:length])
            for length in (1, 40, 1300, LIMIT + 1):
                await send(b"\x01" + os.urandom(length))
            await send(good[2] + b"x" * LIMIT)
            await send(b"")
            assert len(both.heard["n1"]) == 4
            assert n1.dropped["forged"] > 150 and n1.dropped["garbled"] > 5 and n1.dropped["unknown"] > 0
            await send(says.encrypt("n1", b"last"))
            assert both.heard["n1"][-1] == ("n2", b"last")
            thief.sendto(says.encrypt("n1", b"nonsense"), both.addresses["n1"])
            await both.until(lambda: n1.dropped["nonsense"] == 1)
            thief.close()

    run(work())


def test_a_stranger_gets_nothing_but_the_certificate_and_that_not_often(tmp_path: Path, first: KeyStore) -> None:
    stranger = KeyStore(tmp_path / "stranger")
    stranger.init("other", "n2")
    ciphers = DatagramCiphers(stranger, 1)

    async def work() -> None:
        async with ears({"n1": first}) as one:
            n1, address = one.sockets["n1"], one.addresses["n1"]
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            thief.bind(one.addresses["n2"])
            thief.setblocking(False)
            for _ in range(30):
                for _ in range(10):
                    thief.sendto(ciphers.introduction(INTRODUCTION_REQUEST), address)
                    thief.sendto(b"\x01" + os.urandom(100), address)
                    thief.sendto(b"\x02" + os.urandom(500), address)
                await asyncio.sleep(0)
            await one.until(lambda: n1.dropped.total() >= 900)
            answers = []
            while True:
                try:
                    answers.append(thief.recv(4096))
                except BlockingIOError:
                    break
            assert set(answers) <= {DatagramCiphers(first, 1).introduction(INTRODUCTION_REQUEST)}
            assert len(answers) < 5 * INTRODUCTIONS
            assert len(one.spent) == len(answers) and max(one.spent) < LIMIT
            assert n1.dropped["unexamined"] > 100
            assert one.heard["n1"] == []
            thief.close()

    run(work())


def test_no_node_can_speak_for_another_or_replay_what_it_received(tmp_path: Path, first: KeyStore) -> None:
    n1, n2, n3 = (DatagramCiphers(keys, 1) for keys in (first, member(tmp_path, first, "n2"), member(tmp_path, first, "n3")))
    all_nodes = (n1, n2, n3)
    for one in all_nodes:
        for other in all_nodes:
            if other is not one:
                one.meet(other.introduction(INTRODUCTION_REPLY))
    encrypted = n1.encrypt("n2", b"for n2")
    for wrong in (n3, n1):
        with pytest.raises(DatagramRejected) as caught:
            wrong.decrypt(encrypted)
        assert caught.value.why in ("forged", "unknown")
    as_n3 = encrypted[:1] + n3.encrypt("n2", b"")[1:7] + encrypted[7:]
    with pytest.raises(DatagramRejected, match="forged"):
        n2.decrypt(as_n3)
    assert n2.decrypt(encrypted) == ("n1", b"for n2")
    with pytest.raises(DatagramRejected, match="replayed"):
        n2.decrypt(encrypted)


def test_an_older_certificate_of_a_node_does_not_take_the_place_of_its_newer_one(
    tmp_path: Path, first: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    from node.cluster.keys import pki

    newer = DatagramCiphers(member(tmp_path, first, "n2"), 1)
    monkeypatch.setattr(pki, "CLOCK_SKEW", datetime.timedelta(days=2))
    older = DatagramCiphers(member(tmp_path, first, "n2"), 1)
    n1 = DatagramCiphers(first, 1)
    assert n1.meet(newer.introduction(INTRODUCTION_REPLY)) == "n2"
    with pytest.raises(DatagramRejected, match="replayed"):
        n1.meet(older.introduction(INTRODUCTION_REPLY))
    with pytest.raises(DatagramRejected, match="forged"):
        n1.meet(DatagramCiphers(first, 1).introduction(INTRODUCTION_REPLY))  # ourselves
