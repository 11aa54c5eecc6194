"""Membership under virtual time: deaths, losses, cuts, restarts, slow nodes, lies."""

from __future__ import annotations

import random
from statistics import median

import pytest

from balancer.decisions.placement import place
from balancer.gossip.datagram import Call, Card, Probe, Update, Word, node_id
from balancer.gossip.gossip import Gossip
from balancer.gossip.membership import AWARENESS_LIMIT, Membership
from balancer.virtual import VirtualNetwork
from tests.balancer.test_decide import process
from tests.balancer.vectors import node


class Cluster(VirtualNetwork):
    """Nodes n1, n2, … that have known one another for ten seconds."""

    def __init__(self, count: int, seed: int = 1, loss: float = 0.0, settled: float = 10.0) -> None:
        self.incarnations: dict[str, int] = {}
        super().__init__(seed, lambda gossip: gossip.update_self(node(gossip.name, 1.0, incarnation=self.incarnations[gossip.name])), loss)
        for number in range(1, count + 1):
            self.start(f"n{number}")
        self.run(settled)

    def start(self, name: str, incarnation: int = 1) -> Gossip:
        self.incarnations[name] = incarnation
        gossip = self.add(name)
        gossip.learn("n1" if name != "n1" else "n2", "10.0.0.1", 7226)
        return gossip

    def word(self, of: str, at: str) -> Word:
        return self.nodes[at].membership.members[node_id(of)].word

    def words(self, of: str) -> list[Word]:
        return [self.word(of, at) for at in self.nodes if at != of]

    def until(self, done: object, limit: float, step: float = 0.1) -> float:
        """Run until done() holds; returns the seconds that it took."""
        begun = self.now
        assert callable(done)
        while not done():
            assert self.now - begun < limit, f"not done in {limit} s"
            self.run(self.now + step)
        return self.now - begun


def wrong(cluster: Cluster, word: Word) -> int:
    return sum(cluster.words(name).count(word) for name in cluster.nodes)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
def test_dead_node_is_noticed_in_eight_seconds(count: int) -> None:
    times, suspected = [], []
    for seed in range(7 if count < 16 else 5):
        cluster = Cluster(count, seed)
        victim = f"n{1 + seed % count}"
        cluster.remove(victim)
        suspected.append(cluster.until(lambda c=cluster, v=victim: Word.ALIVE not in c.words(v), 12))
        left = cluster.until(lambda c=cluster, v=victim: median(c.words(v)) == Word.DEAD, 20)
        times.append(suspected[-1] + left)
        cluster.run(cluster.now + 5)
        assert set(cluster.words(victim)) == {Word.DEAD}
        assert wrong(cluster, Word.DEAD) == 0
    assert median(times) <= 8
    assert median(suspected) <= 5


@pytest.mark.parametrize(("count", "loss"), [(4, 0.2), (16, 0.2), (16, 0.3), (40, 0.1)])
def test_lost_datagrams_kill_no_node(count: int, loss: float) -> None:
    cluster = Cluster(count, loss=loss)
    for _ in range(40 if count < 40 else 15):
        cluster.run(cluster.now + 2)
        assert wrong(cluster, Word.DEAD) == 0


def test_dead_node_is_noticed_though_a_fifth_is_lost() -> None:
    cluster = Cluster(12, loss=0.2)
    cluster.remove("n7")
    assert cluster.until(lambda: set(cluster.words("n7")) == {Word.DEAD}, 30) <= 20


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_halves_of_a_cut_go_on_and_meet_again(seed: int) -> None:
    cluster = Cluster(8, seed)
    halves = {name: number % 2 for number, name in enumerate(cluster.nodes)}
    cluster.side = halves
    cluster.run(70)
    for at, gossip in cluster.nodes.items():
        assert set(gossip.known.view().entries) == {name for name in cluster.nodes if halves[name] == halves[at]}
    cluster.side = {}
    took = cluster.until(lambda: all(len(gossip.known.view().entries) == 8 for gossip in cluster.nodes.values()), 60)
    assert took <= 20
    cluster.run(cluster.now + 30)
    assert wrong(cluster, Word.DEAD) + wrong(cluster, Word.SUSPECT) == 0


def test_a_node_that_was_cut_off_alone_comes_back() -> None:
    cluster = Cluster(6)
    cluster.side = {"n3": 1}
    cluster.run(70)
    assert set(cluster.words("n3")) == {Word.DEAD}
    assert cluster.nodes["n3"].known.view().others() == []
    cluster.side = {}
    cluster.until(lambda: set(cluster.words("n3")) == {Word.ALIVE}, 30)
    assert cluster.nodes["n3"].own.incarnation > 1


@pytest.mark.parametrize("incarnation", [1, 2])
@pytest.mark.parametrize("away", [0.5, 4.0, 30.0])
def test_restarted_node_is_alive_for_all_soon(incarnation: int, away: float) -> None:
    cluster = Cluster(8)
    cluster.remove("n5")
    cluster.run(cluster.now + away)
    reborn = cluster.start("n5", incarnation)
    cluster.until(lambda: set(cluster.words("n5")) == {Word.ALIVE} and len(reborn.known.view().entries) == 8, 15)
    cluster.run(cluster.now + 20)
    assert set(cluster.words("n5")) == {Word.ALIVE}


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_slow_node_is_not_declared_dead_and_declares_none_dead(seed: int) -> None:
    cluster = Cluster(8, seed)
    rng = random.Random(seed)
    for _ in range(30):
        for name in ("n2", "n6"):
            # It runs now and then only, for as long as it takes to hear and say what there is.
            cluster.paused[name] = cluster.now + rng.uniform(0.2, 2.5)
        cluster.run(cluster.now + 2.6)
        assert wrong(cluster, Word.DEAD) == 0
    cluster.paused = {}
    cluster.run(cluster.now + 15)
    assert wrong(cluster, Word.SUSPECT) == 0


def test_node_that_stood_still_for_long_blames_no_other() -> None:
    cluster = Cluster(8)
    cluster.paused["n2"] = cluster.now + 60
    cluster.run(cluster.now + 61)
    assert [cluster.word(name, "n2") for name in cluster.nodes if name != "n2"] == [Word.ALIVE] * 7
    cluster.until(lambda: set(cluster.words("n2")) == {Word.ALIVE}, 15)


def test_suspected_node_is_not_used() -> None:
    cluster = Cluster(4)
    gossip = cluster.nodes["n1"]
    for name in ("n3", "n4"):
        suspicion = Update(Word.SUSPECT, node_id(name), 1, node_id("n2"), age=0.0)
        cluster.remove(name)
        cluster.run(cluster.now + 0.3)
        assert gossip.membership.apply(suspicion)
    view = gossip.known.view()
    assert {name: entry.suspected for name, entry in view.entries.items()} == {"n1": False, "n2": False, "n3": True, "n4": True}
    refused = place(view, process(unfit={"n2": "n2's processor lacks avx2"}), random.Random(1), away=True)
    assert refused.target is None
    assert "does not answer" in refused.reason


def test_lie_about_oneself_is_refuted_by_a_higher_incarnation() -> None:
    cluster = Cluster(5)
    for at in ("n3", "n4"):
        membership = cluster.nodes[at].membership
        membership.apply(Update(Word.DEAD, node_id("n2"), 1, membership.own))
    assert cluster.word("n2", "n3") is Word.DEAD
    cluster.until(lambda: set(cluster.words("n2")) == {Word.ALIVE}, 15)
    assert cluster.nodes["n2"].own.incarnation == 2


def test_death_reported_by_another_is_a_suspicion_at_first() -> None:
    cluster = Cluster(5)
    dead = Update(Word.DEAD, node_id("n2"), 1, node_id("n5"))
    for at in ("n3", "n4"):
        for _ in range(10):
            assert not cluster.nodes[at].membership.apply(dead)
        assert cluster.word("n2", at) is not Word.DEAD
    cluster.until(lambda: set(cluster.words("n2")) == {Word.ALIVE}, 15)


def test_no_node_is_dead_in_an_unknown_incarnation() -> None:
    cluster = Cluster(5)
    for word in (Word.DEAD, Word.LEFT, Word.SUSPECT):
        assert not cluster.nodes["n3"].membership.apply(Update(word, node_id("n2"), (1 << 32) - 1, node_id("n5")))
    assert cluster.word("n2", "n3") is Word.ALIVE


# -- the machine by itself ---------------------------------------------------------------------------------------------


class Alone:
    """A membership whose clock and ears are in the test's hands, with the members a, b, c, …"""

    def __init__(self, others: str) -> None:
        self.now = 0.0
        self.heard: dict[bytes, float] = {}
        self.machine = Membership(node_id("self"), lambda: self.now, random.Random(1), 10, lambda id_: self.heard.get(id_, float("-inf")))
        for name in others:
            self.machine.apply(Update(Word.ALIVE, node_id(name), 3, node_id(name), Card(name, "10.0.0.1", 1, 3)))

    def word(self, name: str) -> Word:
        return self.machine.members[node_id(name)].word

    def suspect(self, name: str, by: str, incarnation: int = 3, age: float = 0.0) -> bool:
        return self.machine.apply(Update(Word.SUSPECT, node_id(name), incarnation, node_id(by), age=age))

    def wait(self, seconds: float) -> list[tuple[bytes, Probe]]:
        sends = []
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + 0.05, 3)
            sends += self.machine.tick()[1]
        return sends


def test_older_updates_change_nothing() -> None:
    alone = Alone("ab")
    assert not alone.suspect("a", "b", incarnation=2)
    assert alone.suspect("a", "b")
    assert not alone.machine.apply(Update(Word.ALIVE, node_id("a"), 3, node_id("a"), Card("a", "10.0.0.1", 1, 3)))
    assert alone.word("a") is Word.SUSPECT
    assert alone.machine.apply(Update(Word.HERE, node_id("a"), 4, node_id("a")))
    assert alone.word("a") is Word.ALIVE
    assert not alone.suspect("a", "b")
    assert alone.suspect("a", "b", incarnation=4)
    alone.now += alone.machine.suspicion / 2
    assert alone.machine.apply(Update(Word.DEAD, node_id("a"), 4, node_id("b")))
    assert not alone.suspect("a", "b", incarnation=4)
    assert not alone.machine.apply(Update(Word.DEAD, node_id("a"), 4, node_id("b")))
    assert alone.machine.apply(Update(Word.HERE, node_id("a"), 5, node_id("a")))
    assert not alone.suspect("nobody", "b")


def test_a_suspicion_older_than_the_nodes_own_word_is_void() -> None:
    alone = Alone("abc")
    alone.wait(10)
    alone.heard[node_id("a")] = 9.0
    assert not alone.suspect("a", "b", age=2.0)
    assert alone.suspect("a", "b", age=0.5)
    alone.machine.seen(node_id("a"), 9.9, 3)
    assert alone.word("a") is Word.SUSPECT
    alone.wait(1)
    alone.machine.seen(node_id("a"), 10.5, 3)
    assert alone.word("a") is Word.ALIVE


def death_after(confirmations: int) -> float:
    alone = Alone("abcdefgh")
    for name in "bcdefg"[: confirmations + 1]:
        alone.suspect("a", name)
    while alone.word("a") is Word.SUSPECT:
        alone.wait(0.05)
    return alone.now


def test_suspicion_is_the_shorter_the_more_have_it() -> None:
    assert [round(death_after(count)) for count in range(5)] == [24, 11, 4, 4, 4]


def test_member_that_does_not_answer_is_asked_again_and_through_others_before_it_is_suspected() -> None:
    alone = Alone("abcde")
    alone.machine.tick()
    ping = alone.machine.ping(node_id("a"))
    sends = [(to, probe) for to, probe in alone.wait(0.9) if probe.number == ping.number]
    pings = [(to, probe.surely) for to, probe in sends if probe.call is Call.PING]
    assert pings == [(node_id("a"), surely) for surely in (False, False, True, False)]
    helpers = [to for to, probe in sends if probe.call is Call.ASK]
    assert len(set(helpers)) == 3
    assert node_id("a") not in helpers
    assert alone.word("a") is Word.ALIVE
    for helper in helpers:
        alone.machine.hear(helper, Probe(Call.NACK, ping.number, node_id("a")))
    awareness = alone.machine.awareness
    alone.wait(0.3)
    assert alone.word("a") is Word.SUSPECT
    assert alone.machine.awareness <= awareness + 1


def test_answer_through_another_counts() -> None:
    alone, helper = Alone("ab"), Alone("ab")
    alone.machine.tick()
    ping = alone.machine.ping(node_id("a"))
    asks = [probe for _, probe in alone.wait(0.6) if probe.call is Call.ASK and probe.number == ping.number]
    ((to, relayed),) = helper.machine.hear(node_id("self"), asks[0])
    assert to == node_id("a")
    ((back, answer),) = helper.machine.hear(node_id("a"), Probe(Call.ACK, relayed.number, node_id("a")))
    assert (back, answer) == (node_id("self"), Probe(Call.ACK, ping.number, node_id("a")))
    alone.machine.hear(node_id("b"), answer)
    assert ping.number not in alone.machine._asked


def test_helper_that_hears_nothing_says_so() -> None:
    helper = Alone("ab")
    helper.machine.tick()
    helper.machine.hear(node_id("b"), Probe(Call.ASK, 7, node_id("a")))
    assert (node_id("b"), Probe(Call.NACK, 7, node_id("a"))) in helper.wait(0.6)


def test_answers_to_questions_that_were_not_asked_are_ignored() -> None:
    alone = Alone("ab")
    ping = alone.machine.ping(node_id("a"))
    assert alone.machine.hear(node_id("b"), Probe(Call.ACK, ping.number + 1, node_id("a"))) == []
    assert alone.machine.hear(node_id("b"), Probe(Call.ACK, ping.number, node_id("b"))) == []
    assert alone.machine.hear(node_id("b"), Probe(Call.PING, 5, node_id("other"))) == []
    assert ping.number in alone.machine._asked


def test_node_without_replies_gets_patient_and_impatient_again() -> None:
    alone = Alone("abcd")
    for _ in range(40):
        target, _ = alone.machine.tick()
        if target is not None:
            alone.machine.ping(target)
        alone.wait(0.5)
    assert 1 <= alone.machine.awareness <= AWARENESS_LIMIT
    for _ in range(AWARENESS_LIMIT):
        ping = alone.machine.ping(node_id("a"))
        alone.machine.hear(node_id("a"), Probe(Call.ACK, ping.number, node_id("a")))
    assert alone.machine.awareness == 0


def test_every_member_is_asked_once_in_a_round() -> None:
    alone = Alone("abcdefgh")
    asked = []
    while len(asked) < 24:
        alone.now += 0.05
        target, _ = alone.machine.tick()
        if target is not None:
            asked.append(target)
            ping = alone.machine.ping(target)
            alone.machine.hear(target, Probe(Call.ACK, ping.number, target))
    all_others = {node_id(name) for name in "abcdefgh"}
    assert [set(asked[at : at + 8]) for at in (0, 8, 16)] == [all_others] * 3


def test_no_more_members_than_there_is_room_for() -> None:
    alone = Alone("abcdefghijklmnop")
    assert len(alone.machine.members) == 10


def test_addresses_of_the_dead_are_kept_for_a_day_and_of_those_who_left_for_a_minute() -> None:
    alone = Alone("abc")
    alone.machine.apply(Update(Word.DEAD, node_id("a"), 3, node_id("b")))
    alone.machine.apply(Update(Word.LEFT, node_id("c"), 3, node_id("c")))
    alone.wait(61)
    assert node_id("c") not in alone.machine.members
    assert node_id("a") in alone.machine.members
    alone.now += 25 * 3600
    alone.machine.tick()
    assert node_id("a") not in alone.machine.members


def test_time_in_which_the_node_itself_did_not_run_counts_against_no_other() -> None:
    alone = Alone("abcdefgh")
    alone.machine.tick()
    ping = alone.machine.ping(node_id("a"))
    alone.suspect("b", "c")
    alone.now += 60
    alone.machine.tick()
    assert alone.word("b") is Word.SUSPECT
    assert alone.machine.awareness == 1
    alone.machine.hear(node_id("a"), Probe(Call.ACK, ping.number, node_id("a")))
    alone.wait(20)
    assert (alone.word("a"), alone.word("b")) == (Word.ALIVE, Word.SUSPECT)
    alone.wait(6)
    assert alone.word("b") is Word.DEAD


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("both_ways", [False, True])
def test_node_that_no_datagram_gets_through_to_is_there_all_the_same(count: int, both_ways: bool) -> None:
    cluster = Cluster(count)
    cluster.run(10)
    others = [name for name in cluster.nodes if name != "n2"]
    ways = {(name, "n2") for name in others} | ({("n2", name) for name in others} if both_ways else set())
    cluster.barred |= ways
    seen: set[Word] = set()
    for moment in range(20, 120):
        cluster.run(moment / 2 + 10)
        seen |= {cluster.nodes[name].membership.members[node_id("n2")].word for name in others}
    assert Word.DEAD not in seen
    for name in others:
        assert cluster.nodes[name].membership.deaf() == ["n2"]
        assert cluster.nodes[name].known.view().entries["n2"].age < 4
    assert all(entry.age < 6 for entry in cluster.nodes["n2"].known.view().entries.values())
    cluster.barred.clear()
    cluster.run(cluster.now + 2 * count + 2)
    assert all(gossip.membership.deaf() == [] for gossip in cluster.nodes.values())


def test_node_that_is_gone_is_not_kept_alive_by_the_surer_way() -> None:
    cluster = Cluster(4)
    cluster.run(10)
    cluster.barred |= {("n1", "n2"), ("n2", "n1")}
    cluster.run(40)
    cluster.remove("n2")
    cluster.run(80)
    assert all(gossip.membership.members[node_id("n2")].word is Word.DEAD for gossip in cluster.nodes.values())
