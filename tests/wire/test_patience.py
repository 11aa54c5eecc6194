"""Time for which the ends of a link wait for one another, under virtual time."""

from __future__ import annotations

import pytest

from wire.patience import LEAST, MOST, STEP, Patience, Silence, longer, of_guest


def waits(patience: Patience, now: float, seconds: float, step: float = 0.1) -> tuple[float, bool]:
    """Checks every `step` seconds for so long. Returns the time then, and whether it was over at any check."""
    over = False
    for _ in range(round(seconds / step)):
        now += step
        over = patience.is_over(now) or over
    return now, over


def test_the_wait_is_over_when_the_other_end_was_silent_for_as_long() -> None:
    patience = Patience(300.0, 1000.0)
    now, over = waits(patience, 1000.0, 299.0)
    assert not over
    assert waits(patience, now, 2.0)[1]


@pytest.mark.parametrize("stopped", [60.0, 3600.0, 8 * 3600.0])
def test_time_in_which_the_program_did_not_run_does_not_count(stopped: float) -> None:
    """A laptop that slept, a node that was stopped: the other end gets what is left."""
    patience = Patience(20.0, 0.0)
    now, _ = waits(patience, 0.0, 10.0)
    now += stopped
    assert not patience.is_over(now)
    now, over = waits(patience, now, 20.0 - 10.0 - STEP - 1.0)
    assert not over
    assert waits(patience, now, 2.0)[1]


def test_a_starved_program_that_checks_rarely_gives_longer() -> None:
    patience = Patience(20.0, 0.0)
    assert not waits(patience, 0.0, 10 * 9.0, step=10.0)[1]


def test_the_wait_restarts_when_the_other_end_was_heard() -> None:
    patience = Patience(20.0, 0.0)
    now, _ = waits(patience, 0.0, 19.0)
    patience.begin(now)
    assert patience.waited == 0.0
    assert not waits(patience, now, 19.0)[1]


@pytest.mark.parametrize("received", [300.0, 300])
def test_the_guests_end_waits_longer_than_its_home(received: float) -> None:
    assert of_guest(received, 20.0) == longer(300.0) > 300.0


@pytest.mark.parametrize("received", [None, "long", True, b"1"])
def test_a_useless_value_from_home_gives_the_nodes_own(received: object) -> None:
    assert of_guest(received, 20.0) == longer(20.0)


def test_values_from_home_have_bounds() -> None:
    assert of_guest(1e12, 20.0) == longer(MOST)
    assert of_guest(-5, 20.0) == longer(LEAST)
    assert of_guest(float("nan"), 20.0) == longer(20.0)


def test_a_connection_that_breaks_again_and_again_is_given_more_time() -> None:
    silence = Silence(0.0)
    silence.broke(1.0)
    assert silence.bound == Silence.SHORTEST
    bounds = []
    for number in range(6):
        silence.broke(10.0 * (number + 1))
        bounds.append(silence.bound)
    assert bounds == sorted(bounds) and bounds[0] > Silence.SHORTEST and bounds[-1] == Silence.LONGEST
    silence.broke(60.0 + Silence.FORGETS + 1.0)
    assert silence.bound == Silence.SHORTEST
