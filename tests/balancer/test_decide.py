"""Decisions: when a process leaves, hops, comes home or stays, and that each has its reason."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from balancer.decisions.admission import recheck
from balancer.decisions.cost import MoveCost
from balancer.decisions.decide import decide, next_interval
from balancer.decisions.opportunity import memory_price
from balancer.decisions.placement import place
from balancer.decisions.process import HOME, Decision, Process, Settings, residency
from balancer.load.load import LoadVector
from balancer.load.view import Entry, View
from tests.balancer.vectors import GIB, node

NOW = 1000.0


def view_of(*vectors: LoadVector, ages: dict[str, float] | None = None) -> View:
    return View(vectors[0].name, {v.name: Entry(v, (ages or {}).get(v.name, 0.5)) for v in vectors})


def process(pid: int = 1, **changes: Any) -> Process:
    return replace(Process(pid=pid, cpu_seconds=10.0, memory=50 << 20), **changes)


def one(view: View, subject: Process, seed: int = 1) -> Decision:
    (decision,) = decide(view, [subject], NOW, random.Random(seed))
    return decision


def test_process_leaves_a_loaded_home_for_an_idle_node() -> None:
    decision = one(view_of(node("n1", 3), node("n2")), process())
    assert decision.target == "n2"
    assert decision.gain == pytest.approx(2.0)
    assert decision.saved > 15
    assert "on n2" in decision.reason


@pytest.mark.parametrize(
    ("view", "changes", "word"),
    [
        (view_of(node("n1", 1), node("n2")), {}, "too little to gain"),
        (view_of(node("n1", 3), node("n2", 2.9)), {}, "too little to gain"),
        (view_of(node("n1", 3), node("n2")), {"cpu_seconds": 0.1}, "too little to pay"),
        (view_of(node("n1", 3), node("n2", memory_free=16 * GIB)), {"memory": 7 * GIB, "cpu_seconds": 3}, "too little to pay"),
        (view_of(node("n1", 3), node("n2", lending=False)), {}, "no guests"),
        (view_of(node("n1", 3), node("n2", blocked=True)), {}, "no guests"),
        (view_of(node("n1", 3), node("n2"), ages={"n2": 11}), {}, "nothing has been heard"),
        (view_of(node("n1", 3), node("n2", memory_free=200 << 20)), {}, "memory"),
        (view_of(node("n1", 3), node("n2", memory_full=0.12)), {}, "all on n2 waits for memory 12% of the time"),
        (view_of(node("n1", 3), node("n2", io_full=0.6)), {"wanted": "n2"}, "waits for a disk 60%"),
        (view_of(node("n1", 3, cpu_pressure=0.01), node("n2")), {}, "too little to gain"),
        (view_of(node("n1", 3), node("n2")), {"locked": True}, "locked"),
        (view_of(node("n1", 3), node("n2")), {"unfit": {"n2": "n2's processor lacks avx2"}}, "lacks avx2"),
        (view_of(node("n1", 3), node("n2")), {"unfit": {"n2": "n2's processor lacks avx2"}, "wanted": "n2"}, "lacks avx2"),
        (view_of(node("n1", 3), node("n2")), {"home_only": True}, "stay at home"),
        (view_of(node("n1", 3), node("n2")), {"trusted": frozenset({"n3"})}, "n2 is none of the nodes"),
        (view_of(node("n1", 3), node("n2")), {"trusted": frozenset({"n3"}), "wanted": "n2"}, "n2 is none of the nodes"),
        (view_of(node("n1", 3), node("n2")), {"moving": True}, "under way"),
        (view_of(node("n1", 3), node("n2")), {"immovable": "it has an io_uring"}, "io_uring"),
        (view_of(node("n1", 3), node("n2")), {"not_before": NOW + 5}, "5 s"),
        (view_of(node("n1", 3), node("n2")), {"moved": (NOW - 1,), "arrived": NOW - 1}, "stays 7 s"),
        (view_of(node("n1", 3), node("n2", 1)), {"moved": (NOW - 6,), "arrived": NOW - 6}, "stays 11 s"),
        (view_of(node("n1", 3)), {}, "no other node"),
        (View("n1", {"n2": Entry(node("n2"), 0.0)}), {}, "not known yet"),
        (view_of(node("n1"), node("n2", 3), ages={"n2": 20}), {"where": "n2"}, "cannot be compared"),
        (view_of(node("n1"), node("n3")), {"where": "n2"}, "cannot be compared"),
    ],
)
def test_process_stays_and_the_reason_says_why(view: View, changes: dict[str, Any], word: str) -> None:
    decision = one(view, process(**changes))
    assert decision.target is None
    assert word in decision.reason


@pytest.mark.parametrize("there", [{"cpu_pressure": 0.5, "memory_full": 0.05, "io_full": 0.3}, {"memory_full": 0.0}])
def test_waiting_for_processors_confirms_a_load_and_some_waiting_prevents_no_move(there: dict[str, float]) -> None:
    assert one(view_of(node("n1", 3, cpu_pressure=0.9), node("n2", **there)), process()).target == "n2"


def test_slow_node_is_worth_it_only_when_home_is_as_slow_for_each() -> None:
    slow = node("n2", speed=0.5)
    assert one(view_of(node("n1", 1.5), slow), process()).target is None
    assert one(view_of(node("n1", 2), node("n2", speed=0.4)), process()).target is None
    assert one(view_of(node("n1", 4), slow), process()).target == "n2"


def test_a_process_without_gain_or_loss_leaves_a_processor_to_those_that_stay() -> None:
    """Else half as fast a node has nothing to do, while two have half of this one each."""
    decision = one(view_of(node("n1", 2), node("n2", speed=0.5)), process())
    assert decision.target == "n2"
    assert decision.gain == pytest.approx(0.0)
    assert "1.00 less for those that stay" in decision.reason
    there = node("n2", speed=0.5)
    assert decision.slowdown is not None
    assert recheck(there, decision.slowdown, 1.0) is None
    assert recheck(replace(there, runnable=1.0), decision.slowdown, 1.0) is not None
    # It stays there, and processes that do not stay, or that have a core to themselves, make no room.
    assert one(view_of(node("n1", 1), node("n2", 1, speed=0.5)), process(where="n2")).target is None
    assert one(view_of(node("n1", 1), node("n2", speed=1.0)), process()).target is None
    assert one(view_of(node("n1", 4), node("n2", 1, speed=0.5)), process()).target is None
    # Daemons that run now and then do not count as staying.
    quiet = node("n2", 1.15, cores=0.45), node("n3", 0.1, cores=0.45)
    assert one(view_of(node("n1", 4), *quiet), process(where="n2")).target is None


def test_of_two_nodes_the_process_takes_the_one_where_it_is_in_nobodys_way() -> None:
    """Else one that is a little better for it has two, and another none."""
    shared, empty = node("n3", 0.8, speed=2.0), node("n4", 0.2)
    decision = one(view_of(node("n1", 3), node("n2", 1, speed=0.25), shared, empty), process(where="n2"))
    assert decision.target == "n4"
    # It goes to the other if no other is there, or if it gains more than they lose.
    assert one(view_of(node("n1", 3), node("n2", 1, speed=0.25), replace(shared, runnable=0.4), empty), process(where="n2")).target == "n3"
    assert one(view_of(node("n1", 3), node("n2", 1, speed=0.25), shared, node("n4", 2.2)), process(where="n2")).target == "n3"


def test_decisions_are_the_same_on_machines_that_are_all_faster() -> None:
    for speed in (0.25, 1.0, 4.0):
        quiet, busy = node("n2", speed=speed), node("n2", 1.9, speed=speed)
        assert one(view_of(node("n1", 2, speed=speed), quiet), process()).target == "n2"
        assert one(view_of(node("n1", 3, speed=speed), busy), process()).target is None


def test_fast_node_draws_a_process_from_an_idle_home() -> None:
    assert one(view_of(node("n1", 1), node("n2", speed=2.0)), process()).target == "n2"


def test_idle_node_is_found_among_many() -> None:
    busy = [node(f"n{i}", 2) for i in range(3, 60)]
    for seed in range(30):
        assert one(view_of(node("n1", 6), node("n2"), *busy), process(), seed).target == "n2"


def test_process_comes_home_when_home_is_idle_and_the_node_is_worse() -> None:
    decision = one(view_of(node("n1"), node("n2", 2)), process(where="n2"))
    assert decision.target == HOME
    assert one(view_of(node("n1"), node("n2", 1)), process(where="n2")).target is None


def test_home_is_preferred_to_a_node_that_is_as_good() -> None:
    for seed in range(20):
        assert one(view_of(node("n1"), node("n2", 3), node("n3")), process(where="n2"), seed).target == HOME


def test_process_hops_from_a_loaded_node_when_home_is_loaded_too() -> None:
    assert one(view_of(node("n1", 3), node("n2", 3), node("n3")), process(where="n2")).target == "n3"


def test_one_move_at_a_time_and_the_one_that_saves_most() -> None:
    mine = [process(1, cpu_seconds=5.0), process(2, cpu_seconds=50.0), process(3, cpu_seconds=20.0)]
    decisions = decide(view_of(node("n1", 4), node("n2"), node("n3")), mine, NOW, random.Random(1))
    assert [d.pid for d in decisions if d.target] == [2]
    assert all("process 2" in d.reason for d in decisions if d.pid != 2)
    mine[0] = process(1, moving=True)
    decisions = decide(view_of(node("n1", 4), node("n2"), node("n3")), mine, NOW, random.Random(1))
    assert not [d for d in decisions if d.target]


def test_wanted_node_goes_first_and_needs_no_gain() -> None:
    mine = [process(1, cpu_seconds=500.0), process(2, cpu_seconds=0.0, wanted="n3", locked=True)]
    decisions = decide(view_of(node("n1", 4), node("n2"), node("n3", 9)), mine, NOW, random.Random(1))
    assert [(d.pid, d.target) for d in decisions if d.target] == [(2, "n3")]


@pytest.mark.parametrize(
    ("changes", "target", "word"),
    [
        ({"wanted": "n2", "where": "n2"}, None, "where it is wanted"),
        ({"wanted": "n1", "where": "n2"}, HOME, "its home"),
        ({"wanted": "n1"}, None, "where it is wanted"),
        ({"wanted": "n7"}, None, "n7"),
        ({"wanted": "n3"}, None, "takes no guests"),
    ],
)
def test_wanted_node(changes: dict[str, Any], target: str | None, word: str) -> None:
    decision = one(view_of(node("n1", 3), node("n2"), node("n3", lending=False)), process(**changes))
    assert decision.target == target
    assert word in decision.reason


def test_residency_doubles_with_each_quick_move_and_has_a_limit() -> None:
    settings = Settings()
    times = [NOW - 50, NOW - 40, NOW - 30, NOW - 20, NOW - 10, NOW - 5, NOW - 1]
    stays = [residency(process(moved=tuple(times[:count])), NOW, settings) for count in range(8)]
    assert stays == [11, 11, 22, 44, 88, 120, 120, 120]
    assert residency(process(moved=(NOW - 400, NOW - 390, NOW - 380)), NOW, settings) == 11
    big = process(memory=8 * GIB, moved=(NOW,))
    assert residency(big, NOW, settings) == pytest.approx(3 * settings.cost.of(8 * GIB))


def test_a_move_that_would_halve_the_slowdown_waits_for_less_after_the_last_one() -> None:
    lately = process(moved=(NOW - 200, NOW - 100, NOW - 8), arrived=NOW - 8)
    assert one(view_of(node("n1", 2), node("n2")), lately).target == "n2"
    assert one(view_of(node("n1", 3), node("n2", 1)), lately).target is None


def test_many_quick_moves_are_too_many_for_any_gain() -> None:
    settings = Settings()
    moves = [NOW - 200 + number for number in range(9)]
    stays = [residency(process(moved=tuple(moves[:count])), NOW, settings, share=0.5) for count in range(10)]
    assert stays == [7, 7, 7, 7, 7, 7, 14, 28, 56, 112]


def test_reasons_are_never_empty_and_every_process_has_one_decision() -> None:
    rng = random.Random(11)
    for _ in range(400):
        vectors = [
            node(f"n{i}", rng.choice([0, 0.4, 1, 3, 9]), lending=rng.random() < 0.8, speed=rng.choice([0.5, 1, 2]),
                 cores=rng.choice([0.5, 1, 4]), memory_free=rng.choice([0, GIB, 8 * GIB]))
            for i in range(1, rng.randint(2, 9))
        ]  # fmt: skip
        names = [v.name for v in vectors] + ["n99"]
        mine = [
            process(
                pid, cpu_seconds=rng.choice([0, 1, 30]), where=rng.choice([HOME, *names[1:]]),
                locked=rng.random() < 0.1, moving=rng.random() < 0.05, wanted=rng.choice([None, None, *names]),
                memory=rng.choice([0, GIB]), moved=tuple(NOW - rng.uniform(0, 80) for _ in range(rng.randint(0, 3))),
                runnable=rng.choice([0, 1, 4]),
            )
            for pid in range(rng.randint(0, 6))
        ]  # fmt: skip
        view = view_of(*vectors, ages={name: rng.uniform(0, 15) for name in names[1:]})
        state = random.Random(4)
        decisions = decide(view, mine, NOW, state)
        assert decisions == decide(view, mine, NOW, random.Random(4))
        assert [d.pid for d in decisions] == [p.pid for p in mine]
        assert all(d.reason for d in decisions)
        moves = [(p, d) for p, d in zip(mine, decisions, strict=True) if d.target]
        assert len(moves) <= 1
        for subject, decision in moves:
            assert decision.target != subject.where
            assert decision.target == HOME or view.entries[decision.target or ""].vector.accepts_guests
            assert not any(p.moving for p in mine)


def test_young_process_leaves_a_place_where_memory_is_short_for_where_it_fits_best() -> None:
    short = node("n1", 1, memory_free=GIB // 2, memory_short=True)
    others = (node("n2"), node("n3", 9, memory_free=6 * GIB), node("n4", memory_free=GIB))
    young = {"cpu_seconds": 0.0, "arrived": NOW - 1, "moved": (NOW - 1,)}
    mine = [process(1, memory=GIB // 2, **young), process(2, memory=2 * GIB, **young), process(3, memory=5 * GIB, **young)]
    decisions = decide(view_of(short, *others), mine, NOW, random.Random(1))
    assert [(d.pid, d.target) for d in decisions if d.target] == [(2, "n3")]
    assert "memory is short at home" in decisions[1].reason
    mine[1] = process(2, memory=2 * GIB, locked=True)
    decisions = decide(view_of(short, *others), mine, NOW, random.Random(1))
    assert [(d.pid, d.target) for d in decisions if d.target] == [(3, "n3")]
    assert not [d for d in decide(view_of(node("n1", 1), *others), mine, NOW, random.Random(1)) if d.target]


def test_guest_goes_home_from_a_node_whose_memory_is_short_unless_home_is_short_too() -> None:
    pressed = node("n2", memory_free=GIB // 2, memory_short=True)
    mine = [process(1, where="n2", memory=GIB)]
    (decision,) = decide(view_of(node("n1", 5), pressed, node("n3")), mine, NOW, random.Random(1))
    assert decision.target == HOME
    (decision,) = decide(view_of(node("n1", 5, memory_short=True), pressed, node("n3")), mine, NOW, random.Random(1))
    assert decision.target == "n3"


def test_no_process_is_sent_where_memory_is_short() -> None:
    decision = one(view_of(node("n1", 5), node("n2", memory_short=True)), process())
    assert decision.target is None
    assert "memory is short on n2" in decision.reason


def test_scarce_memory_makes_a_node_dearer_long_before_it_is_full() -> None:
    prices = [memory_price(node("n1", memory_free=free * GIB), GIB, 16) for free in (16, 10, 6, 4, 2)]
    assert prices[:2] == [0, 0]
    assert 0 < prices[2] < prices[3] < prices[4] < 4
    scarce = node("n2", memory_free=2 * GIB)
    for seed in range(10):
        assert place(view_of(node("n1", 4), scarce, node("n3", 0.2)), process(memory=GIB), random.Random(seed)).target == "n3"
    assert memory_price(node("n1", memory_total=0), GIB, 16) == 0


def test_node_that_will_be_busy_again_is_not_taken_for_an_idle_one() -> None:
    assert one(view_of(node("n1", 2), node("n2", 0.0, forecast=2.0)), process()).target is None


def test_interval_has_a_jitter_of_a_fifth() -> None:
    rng = random.Random(1)
    intervals = [next_interval(1.0, rng) for _ in range(500)]
    assert 0.8 <= min(intervals) < 0.85
    assert 1.15 < max(intervals) <= 1.2


def test_cost_is_learned_from_moves() -> None:
    cost = MoveCost()
    for _ in range(200):
        cost = cost.learn(0.1 + 1e-9 * 10e6, 1 + 1e-8 * 10e6, 10_000_000)
        cost = cost.learn(0.1 + 1e-9 * 1e9, 1 + 1e-8 * 1e9, 1_000_000_000)
    assert cost.of(10_000_000) == pytest.approx(0.11, rel=0.1)
    assert cost.of(1_000_000_000) == pytest.approx(1.1, rel=0.1)
    assert cost.takes(10_000_000) == pytest.approx(1.1, rel=0.1)
    assert cost.takes(1_000_000_000) == pytest.approx(11, rel=0.1)
    with pytest.raises(ValueError, match="negative"):
        cost.learn(-1, 0, 0)
