"""The loop on which a process's life hangs."""

from __future__ import annotations

import logging
import selectors

import pytest

from wire.waking import MISHAPS, Turns

log = logging.getLogger("test")


def fail() -> None:
    raise ValueError("an unexpected error")


def test_a_failed_turn_is_logged_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    with selectors.DefaultSelector() as selector:
        turns = Turns(selector, log)
        turned = []
        turns.turn(0, fail)
        turns.turn(0, lambda: turned.append(1))
        assert turned == [1]
        assert "an unexpected error" in caplog.text


def test_a_loop_that_fails_time_after_time_ends() -> None:
    with selectors.DefaultSelector() as selector:
        turns = Turns(selector, log)
        for _ in range(MISHAPS - 1):
            turns.turn(0, fail)
        turns.turn(0, lambda: None)  # a good one in between: they are counted anew
        for _ in range(MISHAPS - 1):
            turns.turn(0, fail)
        with pytest.raises(ValueError, match="an unexpected error"):
            turns.turn(0, fail)
