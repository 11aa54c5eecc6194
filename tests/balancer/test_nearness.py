"""Reads and writes of a process: how they are measured, and how they draw it to its files."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from balancer.decisions.decide import decide
from balancer.decisions.nearness import Meter, Rates, stretch
from balancer.decisions.placement import place
from balancer.decisions.process import HOME, Decision, Process, Settings
from balancer.load.load import LoadVector
from balancer.load.view import Entry, View
from tests.balancer.vectors import node

NOW = 1000.0
WORKER = Process(pid=1, cpu_seconds=10.0, memory=50 << 20)


def view_of(*vectors: LoadVector) -> View:
    return View(vectors[0].name, {v.name: Entry(v, 0.5) for v in vectors})


def one(view: View, process: Process) -> Decision:
    return decide(view, [process], NOW, random.Random(1))[0]


def test_process_stays_near_its_files_if_it_reads_much() -> None:
    busy = view_of(node("n1", 2), node("n2"))
    assert one(busy, replace(WORKER, files={HOME: 1e6})).target == "n2"
    assert one(busy, replace(WORKER, files={HOME: 80e6})).target is None
    assert one(view_of(node("n1", 1), node("n2", 1)), replace(WORKER, where="n2", files={HOME: 80e6})).target == HOME
    assert one(view_of(node("n1", 1), node("n2", 0)), replace(WORKER, files={"n2": 80e6})).target == "n2"


def test_process_that_calls_home_all_the_time_is_taken_home_and_the_reason_says_so() -> None:
    view = view_of(node("n1", 1), node("n2", 1))
    assert one(view, replace(WORKER, where="n2")).target is None
    decision = one(view, replace(WORKER, where="n2", calls=40_000))
    assert decision.target == HOME
    assert "near what it reads and writes" in decision.reason
    stays = one(view_of(node("n1", 2), node("n2")), replace(WORKER, calls=40_000))
    assert stays.target is None
    assert "far from what it reads and writes" in stays.reason
    assert place(view_of(node("n1", 2), node("n2")), replace(WORKER, calls=40_000), random.Random(1)).target is None


def test_stretch_is_how_many_times_as_long_the_work_takes() -> None:
    settings = Settings(seconds_per_byte=1e-8, seconds_per_call=1e-4)
    subject = replace(WORKER, files={HOME: 1e8, "n3": 5e7}, calls=10_000)
    assert [stretch(subject, place, settings) for place in (HOME, "n2", "n3")] == pytest.approx([1.5, 3.5, 3.0])


def test_a_habit_is_per_second_of_processor_time_and_follows_changes() -> None:
    rates = Rates().read(Meter(100.0, 5.0, 700, 7000))
    assert (rates.calls, rates.moved) == (0, 0)
    rates = rates.read(Meter(102.0, 5.5, 1700, 57_000))
    assert (rates.calls, rates.moved) == pytest.approx((2000, 100_000))
    for second in range(1, 200):
        rates = rates.read(Meter(102.0 + second, 5.5 + second, 1700, 57_000))
    assert rates.calls < 10
    assert rates.moved < 500


def test_habit_is_kept_when_a_counter_begins_anew() -> None:
    rates = Rates().read(Meter(0.0, 0.0, 0, 0)).read(Meter(2.0, 2.0, 2000, 2000))
    after = rates.read(Meter(4.0, 4.0, 10, 10))
    assert (after.calls, after.moved) == (rates.calls, rates.moved)
    assert after.read(Meter(6.0, 6.0, 2010, 2010)).calls == pytest.approx(1000, rel=0.01)


def test_a_process_that_hardly_runs_is_not_taken_as_bound_to_its_files() -> None:
    rates = Rates().read(Meter(0.0, 0.0, 0, 0)).read(Meter(2.0, 0.001, 20, 2000))
    assert stretch(replace(WORKER, calls=rates.calls, files={HOME: rates.moved}), "n2", Settings()) < 1.05


def test_a_process_goes_to_the_node_whose_files_it_reads_however_many_there_are() -> None:
    nodes = [node(f"n{number}") for number in range(2, 30)]
    reader = replace(WORKER, files={HOME: 0.0, "n17": 1e8})
    decision = one(view_of(node("n1"), *nodes), reader)
    assert decision.target == "n17"
    assert "near what it reads and writes" in decision.reason
    assert one(view_of(node("n1"), *nodes), replace(reader, where="n17")).target is None
    # It may be as much busier there as the way of the bytes is worth (3 s for each second of processor time).
    assert decision.slowdown == pytest.approx(3 * one(view_of(node("n1", 2), node("n2")), WORKER).slowdown / 2, rel=0.01)


def test_habit_knows_whose_files_are_read() -> None:
    rates = Rates().read(Meter(0.0, 0.0, 0, 0)).read(Meter(2.0, 2.0, 0, 2000, {"n2": 4000}))
    assert rates.files == pytest.approx({HOME: 1000, "n2": 2000})
    later = rates.read(Meter(4.0, 4.0, 0, 2000, {"n2": 4000, "n3": 8000}))
    assert later.files["n3"] > later.files["n2"] > 0
