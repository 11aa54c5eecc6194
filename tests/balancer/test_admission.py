"""A target's answer to a guest that a balancer sends, and the time of the next attempt."""

from __future__ import annotations

import random

from balancer.decisions.admission import recheck, retry_after
from balancer.decisions.process import Settings
from tests.balancer.vectors import node

MIB = 1 << 20


def test_target_checks_again_with_its_own_figures() -> None:
    assert recheck(node("n2"), 2.0, 1.0) is None
    refusal = recheck(node("n2", 2), 2.0, 1.0)
    assert refusal is not None
    assert "n2 is busier" in refusal


def test_guests_come_one_at_a_time_but_for_small_ones() -> None:
    assert recheck(node("n2"), 2.0, 1.0, memory=500 * MIB) is None
    assert recheck(node("n2"), 2.0, 1.0, memory=8 * MIB, coming=32 * MIB) is None
    refusal = recheck(node("n2"), 2.0, 1.0, memory=8 * MIB, coming=100 * MIB)
    assert refusal is not None
    assert "on their way" in refusal
    assert recheck(node("n2"), 2.0, 1.0, memory=100 * MIB, coming=8 * MIB) is not None


def test_a_temporarily_refused_process_is_retried_sooner_and_at_a_random_time() -> None:
    rng, settings = random.Random(1), Settings()
    soon = [retry_after(True, rng) for _ in range(200)]
    late = [retry_after(False, rng) for _ in range(200)]
    assert 0.5 * settings.retry_busy <= min(soon) < 0.6 * settings.retry_busy
    assert 1.4 * settings.retry_busy < max(soon) <= 1.5 * settings.retry_busy
    assert 4 < sum(late) / sum(soon) < 6
