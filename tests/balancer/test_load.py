"""The load vector and its estimator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from balancer.load import LoadEstimator, LoadVector, effective_cores, slowdown, speed_of, yardstick_round


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_vector(name: str = "n1", **changes: object) -> LoadVector:
    vector = LoadVector(name, 1, 1, "10.0.0.1", 7226, 1.0, 1.0, 1.0, 1.0, 8 << 30, 16 << 30, 0, True, False, 1)
    return replace(vector, **changes)  # type: ignore[arg-type]


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
    estimator.inflate(hold=1.0)
    assert estimator.runnable == pytest.approx(2.0, abs=0.01)
    feed(estimator, clock, 1, 1.0)  # on its way
    for _ in range(100):
        feed(estimator, clock, 2, 0.1)  # here
        assert 1.9 < estimator.runnable < 2.1


def test_departure_counts_at_once_and_load_does_not_sink_below_the_rest() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 3, 40)
    estimator.relieve()
    for _ in range(200):
        feed(estimator, clock, 2, 0.1)
        assert 1.9 < estimator.runnable < 2.1


def test_guest_that_did_not_come_is_taken_back() -> None:
    clock = Clock()
    estimator = LoadEstimator(1, 1.0, clock)
    feed(estimator, clock, 0, 1)
    estimator.inflate(hold=0)
    estimator.relieve()
    assert estimator.runnable == pytest.approx(0.0, abs=0.01)


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


def test_vectors_have_growing_sequence_numbers() -> None:
    estimator = LoadEstimator(1, 1.0, Clock())

    def take() -> int:
        return estimator.vector(name="n1", incarnation=1, address="10.0.0.1", port=7226, guests=0, lending=True, blocked=False).sequence

    assert take() < take() < take()


def test_vector_survives_the_wire() -> None:
    vector = make_vector()
    assert LoadVector.from_fields(vector.to_fields()) == vector


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, ""), (0, "x" * 65), (0, "a\nb"), (0, 7), (1, -1), (1, True), (2, 1.5), (3, b"x"), (4, 0), (4, 65536),
        (5, float("nan")), (5, float("inf")), (6, -1.0), (7, 0.0), (8, 0), (8, "1"), (9, -1), (10, 1 << 63),
        (12, 1), (13, None),
    ],
)  # fmt: skip
def test_vector_with_an_impossible_field_is_refused(position: int, value: object) -> None:
    values = make_vector().to_fields()
    values[position] = value
    with pytest.raises(ValueError, match="load vector: "):
        LoadVector.from_fields(values)


@pytest.mark.parametrize("values", [[], [1], None, {"name": "n1"}, [*make_vector().to_fields(), 1]])
def test_vector_of_the_wrong_shape_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="exactly"):
        LoadVector.from_fields(values)  # type: ignore[arg-type]
