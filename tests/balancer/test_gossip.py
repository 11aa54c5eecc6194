"""Gossip under virtual time: spread and age of what nodes know of one another, its cost, and urgent news."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from balancer.gossip.datagram import ENTRY, LIMIT, Card, Update, Word
from balancer.gossip.gossip import FORGET_AFTER, Gossip
from balancer.gossip.letters import BYTES_PER_SECOND
from balancer.gossip.opening import unpack
from balancer.lending.owner import Stage
from balancer.load.load import LoadVector
from balancer.virtual import VirtualNetwork
from tests.balancer.vectors import node


class Cluster(VirtualNetwork):
    """Nodes n1, n2, …, of which all know n1 alone at first."""

    def __init__(self, count: int, seed: int = 1, loss: float = 0.0) -> None:
        self.vectors: dict[str, LoadVector] = {}
        super().__init__(seed, lambda gossip: gossip.update_self(self.vectors[gossip.name]), loss)
        for number in range(1, count + 1):
            self.start(f"n{number}", 1)

    def start(self, name: str, incarnation: int) -> Gossip:
        self.vectors[name] = node(name, 1.0, incarnation=incarnation, address=f"10.0.0.{name[1:]}")
        gossip = self.add(name)
        gossip.learn("n1", "10.0.0.1", 7226)
        return gossip

    def acquaint(self) -> None:
        """Let all know the cards of all."""
        for gossip in self.nodes.values():
            for v in self.vectors.values():
                gossip.membership.learn(Card(v.name, v.address, v.port, 1, v.cores, v.speed, v.memory_total, v.version))

    def complete(self) -> bool:
        return all(len(gossip.known.view().entries) == len(self.nodes) for gossip in self.nodes.values())


@pytest.mark.parametrize(("count", "seconds"), [(2, 3), (3, 5), (8, 10), (16, 12), pytest.param(64, 25, marks=pytest.mark.soak)])
def test_all_know_all_soon_though_they_knew_one_seed(count: int, seconds: int) -> None:
    cluster = Cluster(count)
    cluster.run(seconds)
    assert cluster.complete()
    assert cluster.largest <= LIMIT


@pytest.mark.parametrize(
    ("count", "limit"), [(16, 2.8), pytest.param(32, 3.5, marks=pytest.mark.soak), pytest.param(64, 4.5, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_average_age_stays_below_the_theoretical_bound(count: int, limit: float, loss: float) -> None:
    cluster = Cluster(count, seed=3, loss=loss)
    cluster.acquaint()
    cluster.run(20)
    averages = []
    for second in range(6):
        cluster.run(21 + second)
        averages.append(fmean(cluster.ages()))
    assert cluster.complete()
    assert fmean(averages) <= limit * (1.25 if loss else 1)


def test_traffic_and_datagrams_stay_small_though_windows_double() -> None:
    cluster = Cluster(256)
    cluster.acquaint()
    cluster.run(8)
    before = sum(gossip.allowance.spent for gossip in cluster.nodes.values())
    cluster.run(13)
    sent = sum(gossip.allowance.spent for gossip in cluster.nodes.values()) - before
    assert sent / 5 / 256 <= BYTES_PER_SECOND * 1.03
    windows = [unpack(data) for _, data, _ in cluster.nodes["n1"].introduce("n2")]
    assert [len(window.entries) // ENTRY for window in windows] == [32, 32]
    assert windows[0].entries[2:8] == cluster.nodes["n1"].id


@pytest.mark.parametrize("count", [128, pytest.param(256, marks=pytest.mark.soak)])
def test_a_node_over_its_budget_sends_only_the_newest_entries(count: int) -> None:
    cluster = Cluster(count)
    cluster.acquaint()
    cluster.run(3)
    gossip = cluster.nodes["n1"]
    gossip.allowance.spend(10 * int(BYTES_PER_SECOND))
    before = gossip.allowance.spent
    cluster.run(7)
    assert 4 * 900 < gossip.allowance.spent - before < 4 * BYTES_PER_SECOND * 0.9


def test_an_overrated_node_sends_only_its_own_entry() -> None:
    cluster = Cluster(16)
    cluster.acquaint()
    cluster.run(10)
    cluster.vectors["n2"] = node("n2", 7.0, address="10.0.0.2")
    gossip = cluster.nodes["n2"]
    gossip.update_self(cluster.vectors["n2"])
    (letter,) = gossip.greet("n5")
    assert len(letter.data) < 200
    cluster.nodes["n5"].receive(unpack(letter.data))
    assert cluster.nodes["n5"].known.view().entries["n2"].vector.runnable == pytest.approx(7.0, rel=0.05)


def test_window_is_of_the_freshest() -> None:
    cluster = Cluster(80)
    cluster.run(20)
    gossip = cluster.nodes["n7"]
    (window,) = [unpack(data) for _, data, _ in gossip.introduce("n2")]
    sent_nodes = {window.entries[at + 2 : at + 8] for at in range(ENTRY, len(window.entries), ENTRY)}
    births = sorted((born for born, _, _ in gossip.freshest), reverse=True)
    assert len(sent_nodes) == 31
    assert sent_nodes <= {node for born, node, _ in gossip.freshest if born >= births[30]}
    assert len(window.entries) == 32 * ENTRY


def test_age_grows_where_an_entry_rests_and_is_carried_on() -> None:
    now = [100.0]
    first, second, third = (Gossip(name, lambda: now[0], random.Random(1)) for name in ("n1", "n2", "n3"))
    first.update_self(node("n1"))
    second.update_self(node("n2"))
    first.learn("n2", "10.0.0.2", 7226)
    second.learn("n3", "10.0.0.3", 7226)
    now[0] += 2
    for _, data, _ in first.introduce("n2"):
        second.receive(unpack(data))
    now[0] += 3
    for _, data, _ in second.introduce("n3"):
        third.receive(unpack(data))
    third.membership.learn(second.membership.members[first.id].card)
    assert third.known.view().entries["n1"].age == pytest.approx(5.0, abs=0.03)


def test_old_news_does_not_replace_newer() -> None:
    now = [0.0]
    sender = Gossip("n1", lambda: now[0], random.Random(1))
    receiver = Gossip("n2", lambda: now[0], random.Random(1))
    sender.learn("n2", "10.0.0.2", 7226)
    sender.update_self(node("n1", 1.0))
    ((_, old, _),) = sender.introduce("n2")
    sender.update_self(node("n1", 2.0))
    ((_, new, _),) = sender.introduce("n2")
    for data in (new, old):
        receiver.receive(unpack(data))
    assert receiver.known.view().entries["n1"].vector.runnable == 2.0


def test_dead_node_is_forgotten_and_is_not_brought_back_by_others() -> None:
    cluster = Cluster(8)
    cluster.run(20)
    cluster.remove("n5")
    cluster.run(20 + FORGET_AFTER)
    for moment in range(60, 80, 4):
        cluster.run(moment)
        assert not any("n5" in gossip.known.view().entries for gossip in cluster.nodes.values())
    assert "n5" in cluster.nodes["n1"].known.peers()


@pytest.mark.parametrize("incarnation", [1, 7])
def test_restarted_node_is_heard_though_others_remember_its_earlier_life(incarnation: int) -> None:
    cluster = Cluster(4)
    cluster.run(50)
    cluster.start("n2", incarnation)
    cluster.vectors["n2"] = replace(cluster.vectors["n2"], runnable=5.0, address="10.9.9.9")
    cluster.run(60)
    assert cluster.complete()
    for gossip in cluster.nodes.values():
        vector = gossip.known.view().entries["n2"].vector
        assert (vector.runnable, vector.address) == (5.0, "10.9.9.9")
        assert vector.incarnation > 1


def test_new_address_or_size_of_a_running_node_reaches_all() -> None:
    cluster = Cluster(12)
    cluster.run(20)
    cluster.vectors["n3"] = replace(cluster.vectors["n3"], address="10.7.7.7", cores=8.0)
    cluster.run(35)
    for gossip in cluster.nodes.values():
        vector = gossip.known.view().entries["n3"].vector
        assert (vector.address, vector.cores) == ("10.7.7.7", 8.0)
        assert gossip.known.peers().get("n3", ("10.7.7.7", 7226)) == ("10.7.7.7", 7226)


def test_urgent_changes_reach_all_nodes_at_once() -> None:
    cluster = Cluster(64)
    cluster.acquaint()
    for name, vector in cluster.vectors.items():
        cluster.vectors[name] = replace(vector, runnable=3.0)
    cluster.run(10)
    changes: dict[str, dict[str, Any]] = {
        "n9": {"stage": Stage.THROTTLED}, "n10": {"memory_short": True}, "n11": {"lending": False}, "n12": {"runnable": 0.0},
    }  # fmt: skip
    for name, change in changes.items():
        gossip = cluster.nodes[name]
        cluster.vectors[name] = vector = replace(cluster.vectors[name], **change)
        gossip.update_self(vector)
        cluster.send(name, gossip.tick())
        cluster.run(cluster.now + 0.05)
        heard = [g.known.view().entries[name].vector for g in cluster.nodes.values() if g is not gossip]
        assert sum(all(getattr(vector, key) == value for key, value in change.items()) for vector in heard) >= 55, change


def test_an_owner_that_constantly_comes_and_goes_causes_no_flood() -> None:
    cluster = Cluster(10)
    cluster.run(20)
    gossip = cluster.nodes["n1"]
    before = gossip.allowance.spent
    for step in range(100):
        gossip.update_self(replace(cluster.vectors["n1"], stage=Stage.OWNER if step % 2 else Stage.LENDING))
        cluster.run(20 + step / 10)
        cluster.send("n1", gossip.tick())
    assert gossip.allowance.spent - before < 10 * BYTES_PER_SECOND


def test_node_that_leaves_is_gone_at_once_and_can_come_again() -> None:
    cluster = Cluster(16)
    cluster.run(20)
    cluster.send("n4", cluster.nodes["n4"].leave())
    cluster.remove("n4")
    cluster.run(20.5)
    left = [gossip for gossip in cluster.nodes.values() if "n4" not in gossip.known.view().entries]
    assert len(left) >= 14
    assert all("n4" not in gossip.known.peers() for gossip in left)
    cluster.run(25)
    cluster.start("n4", 1)
    cluster.run(40)
    assert cluster.complete()


def test_the_view_has_the_values_from_the_wire_and_our_own_exactly() -> None:
    cluster = Cluster(2)
    vector = node(
        "n2", 3.3, incarnation=4, address="10.0.0.2", port=99, cores=2.5, speed=1.25, memory_free=3 << 30, guests=300, blocked=True,
        load=3.3 / 2.5 / 1.25, version=3, owner=1.1, cpu_pressure=0.25, memory_full=0.5, io_full=1.0, forecast=2.5,
        stage=Stage.FROZEN, owner_idle=400.0, processor=0xFEDCBA98,
    )  # fmt: skip
    cluster.vectors["n2"] = vector
    cluster.run(5)
    own = cluster.nodes["n2"].known.view().own
    assert own is not None
    assert replace(own, incarnation=4, sequence=1) == vector
    seen = cluster.nodes["n1"].known.view().entries["n2"].vector
    assert seen.runnable == pytest.approx(3.3, abs=1 / 32)
    assert seen.owner == pytest.approx(1.1, abs=0.05)
    assert seen.memory_free == pytest.approx(3 << 30, rel=1e-4)
    assert seen.forecast == 2.5
    assert (seen.cpu_pressure, seen.memory_full, seen.io_full) == pytest.approx((0.25, 0.5, 1.0), abs=0.005)
    assert seen.owner_idle == pytest.approx(400, rel=0.05)
    keys = ("name", "address", "port", "cores", "speed", "memory_total", "guests", "lending", "blocked", "version", "stage", "processor")
    for key in keys:
        assert getattr(seen, key) == getattr(vector, key), key


def test_run_is_repeated_from_its_seed() -> None:
    def ages(seed: int) -> list[float]:
        cluster = Cluster(10, seed, loss=0.1)
        cluster.run(15)
        return list(cluster.ages())

    assert ages(4) == ages(4)
    assert ages(4) != ages(5)


def sample_datagram() -> bytes:
    cluster = Cluster(6)
    cluster.run(20)
    gossip = cluster.nodes["n2"]
    gossip.membership.announce(Update(Word.SUSPECT, cluster.nodes["n4"].id, 1, gossip.id, age=0.5))
    ((_, data, _),) = gossip.introduce("n3")
    return data


def test_random_bytes_are_refused_with_a_sentence_and_nothing_of_them_is_taken() -> None:
    rng = random.Random(5)
    good = sample_datagram()
    refused = 0
    for _ in range(3000):
        gossip = Gossip("n1", lambda: 0.0, random.Random(1))
        data = bytearray(good)
        for _ in range(rng.randint(0, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            gossip.receive(unpack(bytes(data[: rng.choice((len(data), rng.randint(0, len(data))))])))
        except ValueError as error:
            refused += 1
            assert str(error).startswith("gossip: ")
            assert len(gossip.freshest) == 0
            assert not gossip.membership.members
        gossip.known.view().rows()
    assert refused > 500


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01" * 60, b"x" * 1400])
def test_an_invalid_datagram_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^gossip: "):
        unpack(data)
