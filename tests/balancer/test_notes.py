"""What a node has sent to others counts there until they tell of it themselves, and not twice."""

from __future__ import annotations

import random

import pytest

from balancer.gossip import Gossip
from balancer.notes import LASTS
from balancer.opening import unpack
from tests.balancer.vectors import node


class Pair:
    """n1, which sends processes to n2, and what n2 tells it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.home, self.other = (Gossip(name, lambda: self.now, random.Random(1)) for name in ("n1", "n2"))
        self.home.update_self(node("n1"))
        self.other.learn("n1", "10.0.0.1", 7226)
        self.told(0.0)

    def told(self, runnable: float, guests: int = 0) -> None:
        """n2 tells this of itself, and n1 hears it."""
        self.now += 0.05
        self.other.update_self(node("n2", runnable, guests=guests))
        for _, data, _ in self.other.introduce("n1"):
            self.home.receive(unpack(data))

    @property
    def known(self) -> float:
        """Runnable threads of n2 as n1 sees them."""
        return self.home.view().entries["n2"].vector.runnable


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_what_was_sent_counts_at_once(pair: Pair) -> None:
    for count in (1, 2, 3):
        pair.home.sent("n2", 1.0)
        assert pair.known == pytest.approx(count)


def test_news_from_before_it_came_do_not_take_it_away(pair: Pair) -> None:
    for _ in range(4):
        pair.home.sent("n2", 1.0)
    pair.told(0.0)
    assert pair.known == pytest.approx(4.0)
    pair.told(2.0, guests=2)
    assert pair.known == pytest.approx(4.0, rel=0.02)
    pair.home.sent("n2", 1.0)
    assert pair.known == pytest.approx(5.0, rel=0.02)
    pair.told(5.0, guests=5)
    assert pair.known == pytest.approx(5.0, rel=0.02)


def test_who_has_guests_of_others_already_is_no_other(pair: Pair) -> None:
    pair.told(3.0, guests=3)
    pair.home.sent("n2", 1.0)
    pair.told(3.0, guests=3)
    assert pair.known == pytest.approx(4.0, rel=0.02)
    pair.told(4.0, guests=4)
    assert pair.known == pytest.approx(4.0, rel=0.02)


def test_what_was_not_taken_counts_no_more(pair: Pair) -> None:
    pair.home.sent("n2", 1.0)
    pair.home.sent("n2", 1.0)
    pair.home.not_taken("n2", 1.0)
    assert pair.known == pytest.approx(1.0)
    pair.home.not_taken("n2", 1.0)
    assert pair.known == 0.0
    pair.home.not_taken("n2", 1.0)
    assert pair.known == 0.0


def test_what_did_not_come_is_forgotten(pair: Pair) -> None:
    pair.home.sent("n2", 1.0)
    pair.now += LASTS
    pair.told(0.0)
    assert pair.known == 0.0
    pair.home.sent("n2", 1.0)
    assert pair.known == pytest.approx(1.0)


def test_of_a_node_that_is_not_known_nothing_is_noted(pair: Pair) -> None:
    pair.home.sent("n9", 1.0)
    pair.home.not_taken("n9", 1.0)
    assert set(pair.home.view().entries) == {"n1", "n2"}
