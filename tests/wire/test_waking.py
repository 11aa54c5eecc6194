"""The loop on which a process's life hangs."""

from __future__ import annotations

import logging
import selectors

import pytest

from wire.waking import MISHAPS, Turns

log = logging.getLogger("test")


def fail() -> None:
    raise ValueError("nobody expected this")


def test_a_mishap_is_told_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    with selectors.DefaultSelector() as selector:
        turns = Turns(selector, log)
        turned = []
        turns.turn(0, fail)
        turns.turn(0, lambda: turned.append(1))
        assert turned == [1]
        assert "nobody expected this" in caplog.text


def test_a_loop_that_fails_time_after_time_ends() -> None:
    with selectors.DefaultSelector() as selector:
        turns = Turns(selector, log)
        for _ in range(MISHAPS - 1):
            turns.turn(0, fail)
        turns.turn(0, lambda: None)  # a good one in between: they are counted anew
        for _ in range(MISHAPS - 1):
            turns.turn(0, fail)
        with pytest.raises(ValueError, match="nobody expected"):
            turns.turn(0, fail)
