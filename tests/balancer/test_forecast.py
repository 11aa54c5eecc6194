"""Forecasts: the predictor that fits the load is found by its errors."""

from __future__ import annotations

import random

import pytest

from balancer.load.forecast import Forecaster


def fed(values: list[float]) -> Forecaster:
    forecaster = Forecaster()
    for value in values:
        forecaster.sample(value)
    return forecaster


def test_nothing_is_foretold_before_the_first_sample() -> None:
    assert (Forecaster().next, Forecaster().best) == (0.0, None)
    assert fed([3.0]).next == 3.0


def test_load_that_wanders_slowly_is_foretold_by_its_last_value() -> None:
    rng = random.Random(1)
    value, values = 10.0, []
    for _ in range(60):
        value += rng.uniform(0, 1)
        values.append(value)
    forecaster = fed(values)
    assert forecaster.best == "the last"
    assert forecaster.next == value


def test_load_that_only_flickers_is_foretold_by_a_long_mean() -> None:
    rng = random.Random(1)
    forecaster = fed([4 + rng.uniform(-2, 2) for _ in range(100)])
    assert forecaster.best in ("the mean of 30", "the median of 30", "smoothed by 0.1")
    assert forecaster.next == pytest.approx(4, abs=0.6)


def test_rare_spikes_are_not_foretold() -> None:
    forecaster = fed([8.0 if second % 10 == 9 else 1.0 for second in range(60)])
    assert forecaster.next == 1.0


def test_new_level_is_believed_within_seconds() -> None:
    forecaster = fed([0.0] * 60 + [4.0] * 6)
    assert forecaster.next == pytest.approx(4.0, abs=0.5)


def test_best_predictor_is_about_as_good_as_the_best_of_them_alone() -> None:
    rng = random.Random(3)
    errors, last = 0.0, 0.0
    forecaster, before = Forecaster(), 0.0
    for second in range(400):
        value = 2.0 + rng.uniform(-1, 1) if second < 200 else 2.0 + second % 2
        if second > 50:
            errors += abs(forecaster.next - value)
            last += abs(before - value)
        forecaster.sample(value)
        before = value
    assert errors < 0.85 * last
