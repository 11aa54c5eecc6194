"""Processes that a node has sent to others count there until the others report them, and not twice."""

from __future__ import annotations

import random

import pytest

from balancer.gossip.gossip import Gossip
from balancer.gossip.notes import LASTS
from balancer.gossip.opening import unpack
from tests.balancer.vectors import node


class Pair:
    """n1, which sends processes to n2, and the reports that it gets from n2."""

    def __init__(self) -> None:
        self.now = 100.0
        self.home, self.other = (Gossip(name, lambda: self.now, random.Random(1)) for name in ("n1", "n2"))
        self.home.update_self(node("n1"))
        self.other.learn("n1", "10.0.0.1", 7226)
        self.report(0.0)

    def report(self, runnable: float, guests: int = 0) -> None:
        """n2 reports this load of its own, and n1 receives the report."""
        self.now += 0.05
        self.other.update_self(node("n2", runnable, guests=guests))
        for _, data, _ in self.other.introduce("n1"):
            self.home.receive(unpack(data))

    @property
    def known(self) -> float:
        """Runnable threads of n2 as n1 sees them."""
        return self.home.known.view().entries["n2"].vector.runnable


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_sent_processes_count_at_once(pair: Pair) -> None:
    for count in (1, 2, 3):
        pair.home.known.sent("n2", 1.0)
        assert pair.known == pytest.approx(count)


def test_news_from_before_it_came_do_not_take_it_away(pair: Pair) -> None:
    for _ in range(4):
        pair.home.known.sent("n2", 1.0)
    pair.report(0.0)
    assert pair.known == pytest.approx(4.0)
    pair.report(2.0, guests=2)
    assert pair.known == pytest.approx(4.0, rel=0.02)
    pair.home.known.sent("n2", 1.0)
    assert pair.known == pytest.approx(5.0, rel=0.02)
    pair.report(5.0, guests=5)
    assert pair.known == pytest.approx(5.0, rel=0.02)


def test_guests_of_other_homes_do_not_count_as_sent(pair: Pair) -> None:
    pair.report(3.0, guests=3)
    pair.home.known.sent("n2", 1.0)
    pair.report(3.0, guests=3)
    assert pair.known == pytest.approx(4.0, rel=0.02)
    pair.report(4.0, guests=4)
    assert pair.known == pytest.approx(4.0, rel=0.02)


def test_processes_not_taken_count_no_more(pair: Pair) -> None:
    pair.home.known.sent("n2", 1.0)
    pair.home.known.sent("n2", 1.0)
    pair.home.known.not_taken("n2", 1.0)
    assert pair.known == pytest.approx(1.0)
    pair.home.known.not_taken("n2", 1.0)
    assert pair.known == 0.0
    pair.home.known.not_taken("n2", 1.0)
    assert pair.known == 0.0


def test_processes_that_did_not_arrive_are_forgotten(pair: Pair) -> None:
    pair.home.known.sent("n2", 1.0)
    pair.now += LASTS
    pair.report(0.0)
    assert pair.known == 0.0
    pair.home.known.sent("n2", 1.0)
    assert pair.known == pytest.approx(1.0)


def test_of_a_node_that_is_not_known_nothing_is_noted(pair: Pair) -> None:
    pair.home.known.sent("n9", 1.0)
    pair.home.known.not_taken("n9", 1.0)
    assert set(pair.home.known.view().entries) == {"n1", "n2"}
