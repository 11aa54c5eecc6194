"""Gossip between nodes over a real network: by datagrams, and over TCP where those do not get through."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from balancer.gossip.datagram import Word, node_id
from balancer.gossip.gossip import Gossip
from node.cluster.front.front import Front
from node.cluster.front.peer_server import Caller
from node.cluster.gossiping import Gossiping
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from tests.balancer.vectors import node
from tests.node.cluster.test_gossip_socket import PORT, member, run


class Talker:
    """A node that does nothing but gossip."""

    def __init__(self, name: str, network: str, keys: KeyStore, seed: tuple[str, str]) -> None:
        self.name, self.keys, self.address = name, keys, f"{network}.{name[1:]}"
        self.gossip = Gossip(name, time.monotonic, random.Random(name))
        self.gossip.learn(seed[0], seed[1], PORT)
        self.front = Front(keys, lambda: 2, self.answer, self.answer)  # type: ignore[arg-type]
        self.peers = Peers(keys, self.front, self.hello, self.gossip.membership.address_of, lambda name, hello: None)
        self.gossiping = Gossiping(self.gossip, self.peers, self.tick)
        self.front.start()
        self.calls = 0
        self.task: asyncio.Task[None] | None = None

    def tick(self) -> None:
        self.gossiping.tick()

    def hello(self) -> dict[str, Any]:
        return {"name": self.name}

    async def answer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        if method != "gossip":
            return self.hello()
        self.calls += 1
        return self.gossiping.receive_call(caller.name, parameters["payload"])

    def talk(self, by_datagrams: bool = True) -> None:
        self.task = asyncio.get_running_loop().create_task(self._talk(by_datagrams))

    async def _talk(self, by_datagrams: bool) -> None:
        if by_datagrams:
            await self.gossiping.open(self.front, 1, self.address, PORT)
        while True:
            self.gossip.update_self(node(self.name, 1.0, address=self.address))
            self.gossiping.tick()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.gossiping.close()
        self.peers.close()
        self.front.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(25):
        while not condition():
            await asyncio.sleep(0.02)


async def cluster(base: Path, authority: KeyStore, count: int) -> list[Talker]:
    network = f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
    keys = {"n1": authority} | {f"n{number}": member(base, authority, f"n{number}") for number in range(2, count + 1)}
    nodes = [Talker(name, network, store, ("n1", f"{network}.1")) for name, store in keys.items()]
    for one in nodes:
        await one.front.listen(one.address, PORT)
    await until(lambda: all(one.front.is_ready for one in nodes))
    return nodes


def test_due_gossip_is_sent_without_a_request(tmp_path: Path, first: KeyStore) -> None:
    """The gossip sends on its own timer: the test never calls its tick."""

    async def work() -> None:
        nodes = await cluster(tmp_path, first, 2)
        for one in nodes:
            await one.gossiping.open(one.front, 1, one.address, PORT)
            one.gossiping.update_self(node(one.name, 1.0, address=one.address))
        try:
            await until(lambda: all(len(one.gossip.known.view().entries) == 2 for one in nodes))
            heard = nodes[0].gossip.known.view().entries["n2"].vector.sequence
            await until(lambda: nodes[0].gossip.known.view().entries["n2"].vector.sequence > heard)
        finally:
            for one in nodes:
                await one.close()

    run(work())


def test_nodes_that_know_one_seed_get_to_know_all_without_one_call(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        nodes = await cluster(tmp_path, first, 4)
        try:
            for one in nodes:
                one.talk()
            await until(lambda: all(len(one.gossip.known.view().entries) == 4 for one in nodes))
            assert sum(one.calls for one in nodes) == 0
            assert all(not one.peers.connected() for one in nodes)
            assert all(one.gossiping.dropped.total() == one.gossiping.dropped["unknown"] for one in nodes)
        finally:
            for one in nodes:
                await one.close()

    run(work())


def test_node_that_leaves_is_gone_at_once_and_not_dead(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        nodes = await cluster(tmp_path, first, 3)
        try:
            for one in nodes:
                one.talk()
            await until(lambda: all(len(one.gossip.known.view().entries) == 3 for one in nodes))
            await nodes[2].gossiping.leave()
            await until(lambda: all("n3" not in one.gossip.known.view().entries for one in nodes[:2]))
            assert [one.gossip.membership.members[node_id("n3")].word for one in nodes[:2]] == [Word.LEFT] * 2
            assert all("n3" not in one.gossip.known.peers() for one in nodes[:2])
        finally:
            for one in nodes:
                await one.close()

    run(work())


def test_a_node_whose_datagrams_are_lost_is_reached_over_tcp(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        n1, n2 = await cluster(tmp_path, first, 2)
        try:
            n1.talk()
            n2.talk(by_datagrams=False)
            await until(lambda: n1.gossip.membership.deaf() == ["n2"])
            seen = [n1.gossip.known.view().entries["n2"].suspected]
            assert n2.calls > 0 and seen == [False]
            await n2.gossiping.open(n2.front, 1, n2.address, PORT)
            await until(lambda: n1.gossip.membership.deaf() == [])
        finally:
            await n1.close()
            await n2.close()

    run(work())
