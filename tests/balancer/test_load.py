"""The load vector and its estimator."""

from __future__ import annotations

import math

import pytest

from balancer.load.load import LoadEstimator, LoadVector, Pressure, effective_cores, slowdown, speed_of, yardstick_round


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def feed(estimator: LoadEstimator, clock: Clock, runnable: float, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        estimator.sample(runnable, 1 << 30, 2 << 30)


def test_load_rises_in_two_seconds_and_falls_in_five() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    estimator.sample(0, 1 << 30, 2 << 30)
    feed(estimator, clock, 4, 2.0)
    assert estimator.load == pytest.approx(4 * (1 - math.exp(-1)), rel=0.02)
    feed(estimator, clock, 4, 30)
    feed(estimator, clock, 0, 5.0)
    assert estimator.load == pytest.approx(4 * math.exp(-1), rel=0.02)


def test_load_is_per_core_and_speed() -> None:
    clock = Clock()
    estimator = LoadEstimator(2, 0.5, clock)
    estimator.sample(3, 1 << 30, 2 << 30)
    assert estimator.load == pytest.approx(3.0)


def test_accepted_guest_counts_at_once_and_is_never_counted_twice() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 1, 30)
    estimator.inflate("a", hold=1.0)
    assert estimator.runnable == pytest.approx(2.0, abs=0.01)
    feed(estimator, clock, 1, 1.0)  # on its way
    for _ in range(100):
        feed(estimator, clock, 2, 0.1)  # here
        assert 1.9 < estimator.runnable < 2.1


def test_departure_counts_at_once_and_load_does_not_sink_below_the_rest() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 3, 40)
    estimator.relieve("a")
    for _ in range(200):
        feed(estimator, clock, 2, 0.1)
        assert 1.9 < estimator.runnable < 2.1


def test_guest_that_did_not_come_is_taken_back() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 0, 1)
    estimator.inflate("a", hold=0)
    estimator.relieve("a")
    assert estimator.runnable == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("stayed", [0.2, 1.0, 3.0, 10.0])
def test_a_short_stay_leaves_no_load_behind(stayed: float) -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 1, 30)
    estimator.inflate("b", hold=0.0)
    estimator.inflate("a", hold=0.0)
    feed(estimator, clock, 3, stayed)
    assert estimator.runnable == pytest.approx(3.0, abs=0.05)
    estimator.relieve("a")
    for _ in range(100):
        feed(estimator, clock, 2, 0.1)
        assert 1.8 < estimator.runnable < 2.2


def test_process_that_has_just_begun_and_ends_is_forgotten() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 0, 30)
    estimator.inflate("a", hold=0.0)
    feed(estimator, clock, 1, 0.5)
    estimator.end("a")
    assert estimator.runnable < 0.3
    estimator.end("b")
    assert estimator.runnable < 0.3


@pytest.mark.parametrize("lived", [0.5, 3.0, 60.0])
def test_process_that_has_ended_is_gone_as_soon_as_the_samples_show_it(lived: float) -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 0, 30)
    estimator.inflate("a", hold=0.0)
    feed(estimator, clock, 1, lived)
    estimator.end("a")
    feed(estimator, clock, 0, 0.5)
    for _ in range(100):
        assert estimator.runnable < 0.1
        feed(estimator, clock, 0, 0.1)


def test_the_end_of_a_waiting_process_does_not_lower_the_load() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 3, 40)
    for who in ("shell", "another"):
        estimator.end(who)
    for _ in range(100):
        assert estimator.runnable == pytest.approx(3.0, abs=0.05)
        feed(estimator, clock, 3, 0.1)


@pytest.mark.parametrize("lives", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("threads", [1, 8])
def test_processes_that_follow_one_another_count_as_the_running_one(lives: float, threads: int) -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, threads, 40)
    for number in range(8):
        for thread in range(threads):
            estimator.inflate((number, thread), hold=0.0)
            estimator.end((number - 1, thread))
        for _ in range(round(lives * 10)):
            feed(estimator, clock, threads, 0.1)
            assert estimator.runnable > 0.95 * threads


def test_guest_that_comes_as_another_goes_does_not_count_less() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 1, 40)
    estimator.relieve("a")
    estimator.inflate("b", hold=0.0)
    for _ in range(150):
        feed(estimator, clock, 1, 0.1)
        assert clock.now < 40.7 or estimator.runnable > 0.95


def test_slowdown_of_an_idle_node_is_that_of_its_speed() -> None:
    assert slowdown(0.1, 2, 0.5) == 2.0
    assert slowdown(4, 2, 1.0) == 2.0
    assert slowdown(1, 0.5, 1.0) == 2.0


def test_cores_under_a_quota() -> None:
    assert effective_cores(4, -1, 100000) == 4
    assert effective_cores(4, 50000, 100000) == 0.5
    assert effective_cores(2, 400000, 100000) == 2


def test_yardstick_is_the_same_work_each_time() -> None:
    assert yardstick_round() == yardstick_round()
    assert speed_of(400, 0.2) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="cpu time"):
        speed_of(10, 0.0)


def test_load_that_is_not_of_guests_is_the_owners() -> None:
    clock = Clock()
    estimator = LoadEstimator(4, 1.0, clock)
    for _ in range(300):
        clock.now += 0.1
        estimator.sample(5, 1 << 30, 2 << 30, guests=3)
    vector = make(estimator)
    assert vector.owner == pytest.approx(2.0, abs=0.05)
    assert vector.runnable == pytest.approx(5.0, abs=0.05)


@pytest.mark.parametrize(("free", "pressure", "short"), [(50, 0.0, False), (4, 0.0, True), (50, 0.2, True)])
def test_memory_is_short_when_little_is_free_or_something_waits_for_it(free: int, pressure: float, short: bool) -> None:
    estimator = LoadEstimator(1, 1.0, Clock())
    estimator.sample(0, free << 20, 100 << 20)
    estimator.feel(Pressure(cpu=0.5, memory=pressure, memory_full=0.05, io_full=0.1))
    vector = make(estimator)
    assert (vector.memory_short, vector.cpu_pressure, vector.memory_full, vector.io_full) == (short, 0.5, 0.05, 0.1)


def make(estimator: LoadEstimator) -> LoadVector:
    return estimator.vector(name="n1", incarnation=1, address="10.0.0.1", port=7226, guests=0, lending=True, blocked=False)
