"""Gossip: convergence, ages, restarts, cuts, and payloads that are not to be trusted."""

from __future__ import annotations

import random

import msgpack
import pytest

from balancer.gossip import FORGET_AFTER, Gossip, parse_payload
from balancer.load import LoadVector


def make_vector(name: str, sequence: int = 1, incarnation: int = 1) -> LoadVector:
    number = int(name[1:])
    return LoadVector(name, incarnation, sequence, f"10.0.0.{number}", 7226, 0.0, 0.0, 1.0, 1.0, 8 << 30, 16 << 30, 0, True, False, 1)


class Cluster:
    """n nodes that gossip once a second of virtual time; `cut` says which pairs cannot talk."""

    def __init__(self, count: int, seed: int = 1, loss: float = 0.0) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.loss = loss
        self.sequence = 0
        self.halves: dict[str, int] = {}
        self.nodes = {f"n{i}": Gossip(f"n{i}", lambda: self.now, random.Random(seed * 1000 + i)) for i in range(1, count + 1)}
        for gossip in self.nodes.values():
            gossip.learn("n1", "10.0.0.1", 7226)

    def period(self, silent: frozenset[str] = frozenset()) -> None:
        self.sequence += 1
        self.now += 1.0
        for name, gossip in self.nodes.items():
            if name in silent:
                continue
            gossip.update_self(make_vector(name, self.sequence))
        for name, gossip in self.nodes.items():
            if name in silent:
                continue
            for peer, payload in gossip.outgoing():
                if peer in silent or self.halves.get(name, 0) != self.halves.get(peer, 0) or self.rng.random() < self.loss:
                    continue
                self.nodes[peer].receive(payload)

    def complete(self) -> bool:
        return all(len(gossip.view().entries) == len(self.nodes) for gossip in self.nodes.values())


@pytest.mark.parametrize(("count", "periods"), [(2, 3), (3, 5), (8, 10), (16, 10), (64, 40)])
def test_all_know_all_soon_though_they_knew_one_seed(count: int, periods: int) -> None:
    cluster = Cluster(count)
    for _ in range(periods):
        cluster.period()
    assert cluster.complete()


@pytest.mark.parametrize(("count", "limit"), [(16, 2.8), (32, 3.5), (64, 4.5)])
def test_average_age_stays_below_what_the_theory_allows(count: int, limit: float) -> None:
    cluster = Cluster(count, seed=3)
    ages: list[float] = []
    for period in range(60):
        cluster.period()
        if period > 25:
            ages.extend(entry.age for gossip in cluster.nodes.values() for entry in gossip.view().others())
    assert sum(ages) / len(ages) <= limit


def test_a_fifth_of_the_messages_may_be_lost() -> None:
    cluster = Cluster(16, loss=0.2)
    for _ in range(40):
        cluster.period()
    assert cluster.complete()


def test_dead_node_is_forgotten_and_is_not_brought_back_by_others() -> None:
    cluster = Cluster(8)
    for _ in range(20):
        cluster.period()
    for _ in range(int(FORGET_AFTER) + 2):
        cluster.period(silent=frozenset({"n5"}))
    assert not any("n5" in gossip.view().entries for name, gossip in cluster.nodes.items() if name != "n5")
    assert "n5" in cluster.nodes["n1"].peers()


def test_halves_of_a_cut_cluster_meet_again() -> None:
    cluster = Cluster(6)
    for _ in range(15):
        cluster.period()
    cluster.halves = {"n1": 1, "n2": 1, "n3": 1}
    for _ in range(60):
        cluster.period()
    assert set(cluster.nodes["n1"].view().entries) == {"n1", "n2", "n3"}
    cluster.halves = {}
    for _ in range(40):
        cluster.period()
    assert cluster.complete()


def test_age_grows_where_an_entry_rests_and_is_carried_on() -> None:
    now = [100.0]
    first, second, third = (Gossip(name, lambda: now[0], random.Random(1)) for name in ("n1", "n2", "n3"))
    first.update_self(make_vector("n1"))
    first.learn("n2", "10.0.0.2", 7226)
    second.learn("n3", "10.0.0.3", 7226)
    now[0] += 2
    second.receive(dict(first.outgoing())["n2"])
    now[0] += 3
    for _ in range(20):  # n2 knows n1 and n3; sooner or later n3 is told
        for peer, payload in second.outgoing():
            if peer == "n3":
                third.receive(payload)
    assert third.view().entries["n1"].age == pytest.approx(5.0, abs=0.01)


def test_old_news_does_not_replace_newer() -> None:
    now = [0.0]
    sender = Gossip("n1", lambda: now[0], random.Random(1))
    receiver = Gossip("n2", lambda: now[0], random.Random(1))
    sender.learn("n2", "10.0.0.2", 7226)
    sender.update_self(make_vector("n1", sequence=1))
    old = dict(sender.outgoing())["n2"]
    sender.update_self(make_vector("n1", sequence=2))
    assert receiver.receive(dict(sender.outgoing())["n2"]) == 1
    assert receiver.receive(old) == 0
    assert receiver.view().entries["n1"].vector.sequence == 2


def test_restarted_node_is_heard_though_others_remember_its_earlier_life() -> None:
    cluster = Cluster(4)
    for _ in range(50):
        cluster.period()
    reborn = Gossip("n2", lambda: cluster.now, random.Random(9))
    reborn.learn("n1", "10.0.0.1", 7226)
    cluster.nodes["n2"] = reborn
    cluster.sequence = 0
    for _ in range(10):
        cluster.period()
    assert reborn.incarnation >= 2
    assert all(gossip.view().entries["n2"].vector.incarnation >= 2 for gossip in cluster.nodes.values())
    assert all(gossip.view().entries["n2"].age < 9 for gossip in cluster.nodes.values())


def test_payload_stays_small_whatever_the_number_of_nodes() -> None:
    gossip = Gossip("n1", lambda: 0.0, random.Random(1))
    gossip.update_self(make_vector("n1"))
    for number in range(2, 200):
        other = Gossip(f"n{number}", lambda: 0.0, random.Random(1))
        other.update_self(make_vector(f"n{number}"))
        other.learn("n1", "10.0.0.1", 7226)
        gossip.receive(other.outgoing()[0][1])
    payload = gossip.outgoing()[0][1]
    entries = parse_payload(payload)
    assert len(entries) == 32
    assert entries[0][1].name == "n1"
    assert len(payload) < 3000


def payload_of(*entries: object, version: object = 1) -> bytes:
    data: bytes = msgpack.packb([version, "n9", list(entries)])
    return data


GOOD = [0.5, *make_vector("n3").to_fields()]


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", b"garbage", b"\xdd\x7f\xff\xff\xff", b"x" * 70000, msgpack.packb(7), msgpack.packb([1, "n9"]),
        payload_of(GOOD, version=2), payload_of("entry"), payload_of([]), payload_of([True, *GOOD[1:]]),
        payload_of([-1.0, *GOOD[1:]]), payload_of([float("nan"), *GOOD[1:]]), payload_of(GOOD[:-1]),
        payload_of([*GOOD, 1]),
        payload_of(GOOD, [0.5, *GOOD[1:5], "7226", *GOOD[6:]]), payload_of(*[GOOD] * 300), payload_of(GOOD) + b"more",
    ],
)  # fmt: skip
def test_garbage_is_refused_with_a_sentence_and_nothing_of_it_is_taken(payload: bytes) -> None:
    gossip = Gossip("n1", lambda: 0.0, random.Random(1))
    with pytest.raises(ValueError, match=r"^(gossip|load vector): .+"):
        gossip.receive(payload)
    assert gossip.view().entries == {}


def test_random_bytes_never_raise_anything_but_value_error() -> None:
    rng = random.Random(5)
    gossip = Gossip("n1", lambda: 0.0, random.Random(1))
    good = payload_of(GOOD)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            gossip.receive(bytes(data[: rng.randint(1, len(data))]))
        except ValueError:
            continue
    assert len(gossip.view().entries) < 300
