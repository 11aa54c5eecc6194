"""Datagrams between nodes over a real network: who meets whom, and what becomes of what a member has not said."""

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

from balancer.datagram import LIMIT, SEAL
from node.cluster.front.front import bound
from node.cluster.front.gossip_seals import ASKING, TELLING, Seals, Unopened
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

    def ear(self, name: str, keys: KeyStore, life: int = 7) -> GossipSocket:
        made = GossipSocket(keys, life, self.addresses.get, lambda by, data: self.hear(name, by, data), self.spent.append)
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


def test_two_who_have_never_met_hear_one_another(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        async with ears({"n1": first, "n2": member(tmp_path, first, "n2")}) as both:
            both.sockets["n1"].send("n2", b"hello")
            both.sockets["n2"].send("n1", b"you too")
            await both.until(lambda: both.heard == {"n1": [("n2", b"you too")], "n2": [("n1", b"hello")]})
            assert both.sockets["n1"].dropped["forged"] == both.sockets["n2"].dropped["forged"] == 0

    run(work())


def test_who_has_started_anew_is_heard_at_once_and_what_it_said_before_is_not_heard_again(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        keys = member(tmp_path, first, "n2")
        async with ears({"n1": first, "n2": keys}) as both:
            both.sockets["n2"].send("n1", b"one")
            await both.until(lambda: len(both.heard["n1"]) == 1)
            both.sockets["n2"].close()
            both.sockets["n2"] = both.ear("n2", keys, life=8)
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


def test_what_is_forged_cut_or_sent_again_is_dropped_and_counted(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        keys, rng = member(tmp_path, first, "n2"), random.Random(3)
        async with ears({"n1": first, "n2": keys}) as both:
            n1 = both.sockets["n1"]
            both.sockets["n2"].send("n1", b"one")
            await both.until(lambda: len(both.heard["n1"]) == 1)
            both.sockets.pop("n2").close()
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            thief.bind(both.addresses["n2"])
            says = Seals(keys, 9 << 32)
            says.meet(TELLING + first.certificate().public_bytes(Encoding.DER))
            good = [says.close("n1", b"datagram %d" % number * 20) for number in range(3)]
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
                changed = bytearray(says.close("n1", b"x" * 100))
                changed[rng.randrange(1, len(changed))] ^= 1 << rng.randrange(8)
                await send(bytes(changed))
            for length in (1, SEAL - 1, SEAL, SEAL + 1, 60):
                await send(good[0][:length])
            for length in (1, 40, 1300, LIMIT + 1):
                await send(b"\x01" + os.urandom(length))
            await send(good[2] + b"x" * LIMIT)
            await send(b"")
            assert len(both.heard["n1"]) == 4
            assert n1.dropped["forged"] > 150 and n1.dropped["garbled"] > 5 and n1.dropped["unknown"] > 0
            await send(says.close("n1", b"last"))
            assert both.heard["n1"][-1] == ("n2", b"last")
            thief.sendto(says.close("n1", b"nonsense"), both.addresses["n1"])
            await both.until(lambda: n1.dropped["nonsense"] == 1)
            thief.close()

    run(work())


def test_a_stranger_gets_nothing_but_the_certificate_and_that_not_often(tmp_path: Path, first: KeyStore) -> None:
    stranger = KeyStore(tmp_path / "stranger")
    stranger.init("other", "n2")
    seals = Seals(stranger, 1)

    async def work() -> None:
        async with ears({"n1": first}) as one:
            n1, address = one.sockets["n1"], one.addresses["n1"]
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            thief.bind(one.addresses["n2"])
            thief.setblocking(False)
            for _ in range(30):
                for _ in range(10):
                    thief.sendto(seals.introduction(ASKING), address)
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
            assert set(answers) <= {Seals(first, 1).introduction(ASKING)}
            assert len(answers) < 5 * INTRODUCTIONS
            assert len(one.spent) == len(answers) and max(one.spent) < LIMIT
            assert n1.dropped["unexamined"] > 100
            assert one.heard["n1"] == []
            thief.close()

    run(work())


def test_nobody_speaks_for_another_nor_sends_back_what_it_heard(tmp_path: Path, first: KeyStore) -> None:
    n1, n2, n3 = (Seals(keys, 1) for keys in (first, member(tmp_path, first, "n2"), member(tmp_path, first, "n3")))
    everybody = (n1, n2, n3)
    for one in everybody:
        for other in everybody:
            if other is not one:
                one.meet(other.introduction(TELLING))
    sealed = n1.close("n2", b"for n2")
    for wrong in (n3, n1):
        with pytest.raises(Unopened) as caught:
            wrong.open(sealed)
        assert caught.value.why in ("forged", "unknown")
    as_n3 = sealed[:1] + n3.close("n2", b"")[1:7] + sealed[7:]
    with pytest.raises(Unopened, match="forged"):
        n2.open(as_n3)
    assert n2.open(sealed) == ("n1", b"for n2")
    with pytest.raises(Unopened, match="replayed"):
        n2.open(sealed)


def test_an_older_certificate_of_a_node_does_not_take_the_place_of_its_newer_one(
    tmp_path: Path, first: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    from node.cluster.keys import pki

    newer = Seals(member(tmp_path, first, "n2"), 1)
    monkeypatch.setattr(pki, "CLOCK_SKEW", datetime.timedelta(days=2))
    older = Seals(member(tmp_path, first, "n2"), 1)
    n1 = Seals(first, 1)
    assert n1.meet(newer.introduction(TELLING)) == "n2"
    with pytest.raises(Unopened, match="replayed"):
        n1.meet(older.introduction(TELLING))
    with pytest.raises(Unopened, match="forged"):
        n1.meet(Seals(first, 1).introduction(TELLING))  # ourselves
