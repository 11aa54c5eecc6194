"""Placement: where a process goes that asks for the best node, and where next when that one refuses it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from balancer.decisions.admission import recheck
from balancer.decisions.placement import place, placings
from balancer.decisions.process import HOME, Process, Settings
from balancer.decisions.targets import sampled
from balancer.load.load import LoadVector
from balancer.load.view import Entry, View
from tests.balancer.vectors import node

FRESH = Process(pid=1, cpu_seconds=0.0, memory=0)


def view_of(*vectors: LoadVector) -> View:
    return View(vectors[0].name, {v.name: Entry(v, 0.5) for v in vectors})


def test_place_finds_the_best_node_at_once() -> None:
    rng = random.Random(1)
    assert place(view_of(node("n1", 2), node("n2", 1), node("n3")), FRESH, rng).target == "n3"
    assert place(view_of(node("n1"), node("n2", 1)), FRESH, rng).target is None
    assert place(view_of(node("n1", 1), node("n2", 1)), replace(FRESH, where="n2"), rng).target is None
    assert place(view_of(node("n1"), node("n2", 3)), replace(FRESH, where="n2"), rng).target == HOME
    assert place(view_of(node("n1"), node("n2", 1)), FRESH, rng, away=True).target == "n2"
    refused = place(view_of(node("n1"), node("n2", lending=False)), FRESH, rng, away=True)
    assert refused.target is None
    assert "n2" in refused.reason


def test_placed_process_is_refused_where_the_next_best_node_is_better_by_now() -> None:
    decision = place(view_of(node("n1", 4), node("n2", 1), node("n3")), FRESH, random.Random(1))
    assert decision.slowdown is not None
    assert recheck(node("n3"), decision.slowdown, 1.0) is None
    assert recheck(node("n3", 1), decision.slowdown, 1.0) is None
    assert recheck(node("n3", 1.2), decision.slowdown, 1.0) is not None


def test_simultaneous_placements_do_not_all_choose_the_same_node() -> None:
    idle = [node(f"n{number}", number / 1000) for number in range(2, 12)]
    found = {place(view_of(node("n1", 4), *idle), FRESH, random.Random(seed)).target for seed in range(40)}
    assert len(found) >= 8


def test_few_nodes_are_sampled_evenly_and_an_idle_one_always() -> None:
    rng, settings = random.Random(3), Settings(sample=3)
    busy = [node(f"n{number}", 2, speed=4.0 if number < 10 else 1.0) for number in range(2, 40)]
    view = view_of(node("n1"), *busy, node("n99"))
    samples = [sampled(view, FRESH, rng, settings)[0] for _ in range(400)]
    assert {len(vectors) for vectors in samples} <= {3, 4}
    assert all(any(vector.name == "n99" for vector in vectors) for vectors in samples)
    seen = Counter(vector.name for vectors in samples for vector in vectors)
    assert all(10 < seen[vector.name] < 60 for vector in busy)


def test_next_placement_is_without_those_that_have_refused_and_there_is_an_end_to_it() -> None:
    view = view_of(node("n1", 9), *(node(f"n{number}") for number in range(2, 9)))
    asked = [decision.target for decision in placings(lambda: view, FRESH, random.Random(1), Settings(placings=3))]
    assert len(set(asked)) == 3
    assert not {None, HOME} & set(asked)
    alone = list(placings(lambda: view_of(node("n1", 9), node("n2")), FRESH, random.Random(1), Settings(placings=3)))
    assert [decision.target for decision in alone] == ["n2", None]


def test_placement_sees_changes_since_the_refusal() -> None:
    views = [view_of(node("n1", 2), node("n2"), node("n3", 1)), view_of(node("n1", 2), node("n2"), node("n3", 5))]
    decisions = placings(lambda: views.pop(0), FRESH, random.Random(1), Settings())
    assert next(decisions).target == "n2"
    assert next(decisions).target is None


def test_the_view_ahead_subtracts_leaving_processes_and_is_never_negative() -> None:
    view = view_of(node("n1", 3), node("n2", 1))
    assert place(view, FRESH, random.Random(1)).target == "n2"
    assert place(view.with_own(-2.0), FRESH, random.Random(1)).target is None
    own = view.with_own(-5.0).own
    assert own is not None
    assert own.runnable == 0
    assert [entry.vector.runnable for entry in view.with_own(-2.0).others()] == [1]
