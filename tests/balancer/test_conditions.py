"""Conditions of a lending policy: what they come to, also where too little is known; and which texts are refused."""

from __future__ import annotations

import pytest

from balancer.lending.conditions import MOST_DEPTH, QUANTITIES, Condition

KNOWN: dict[str, float | None] = {"owner_load": 0.4, "memory_free": float(3 << 30), "owner_idle": 600.0, "on_battery": 0.0, "hour": 21.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("owner_load < 0.5", True),
        ("0.5 > owner_load", True),
        ("owner_load >= 0.5", False),
        ("memory_free > 2G and owner_idle >= 10m", True),
        ("memory_free > 2G and owner_idle > 10m", False),
        ("hour < 7 or hour > 20", True),
        ("not on_battery", True),
        ("on_battery or owner_load != 0.4", False),
        ("not (on_battery or owner_load == 0.4)", False),
        ("guests < 5", None),
        ("guests < 5 and owner_load > 1", False),  # false for every value of the other
        ("guests < 5 or owner_load < 1", True),
        ("not guests < 5", None),
        ("pressure_memory < 5%", None),
    ],
)
def test_conditions(text: str, value: bool | None) -> None:
    assert Condition.parse(text).holds(KNOWN) is value


def test_and_binds_closer_than_or() -> None:
    assert Condition.parse("owner_load < 1 or owner_load < 1 and on_battery").holds(KNOWN) is True


def test_seen_values_are_shown_in_readable_units() -> None:
    seen = Condition.parse("memory_free > 1G and on_battery and pressure_io < 5% and owner_idle > 1m").seen({**KNOWN, "pressure_io": 0.125})
    assert seen == "memory_free is 3.00G, on_battery is false, owner_idle is 600s, pressure_io is 12.5%"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends where"),
        ("owner_load", "compared with nothing"),
        ("owner_load <", "ends where"),
        ("owner_load < 1 1", "one word too many"),
        ("owner_load < 1)", "one word too many"),
        ("(owner_load < 1", "not closed"),
        ("1 < 2", "two numbers"),
        ("owner_load < 2G", "cannot be compared"),
        ("owner_idle > memory_free", "cannot be compared"),
        ("on_battery < 1", "true or false"),
        ("colour < 1", "no quantity colour"),
        ("__import__('os').system('id')", "cannot be read"),
        ("guests.real < 1", "cannot be read"),
        ("load = 1", "cannot be read"),
        ("load < 1e9", "cannot be read"),
        ("load < 5X", "cannot be read"),
        ("and load < 1", "stands where"),
        ("(" * (MOST_DEPTH + 2) + "load < 1" + ")" * (MOST_DEPTH + 2), "too deeply"),
        ("not " * 100 + "on_battery", "too deeply"),
        ("load < 1 or " * 60 + "load < 1", "more than 500"),
    ],
)
def test_wrong_conditions_are_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Condition.parse(text)


@pytest.mark.parametrize("name", sorted(QUANTITIES))
def test_every_quantity_can_be_named(name: str) -> None:
    text = name if QUANTITIES[name][0] == "truth" else f"{name} > 0"
    assert Condition.parse(text).holds({name: 1.0}) is True
    assert Condition.parse(text).holds({}) is None
