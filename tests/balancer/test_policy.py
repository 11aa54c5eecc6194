"""The lending policy: what it admits, and which tables are refused with which key named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.policy import LendingPolicy, LendingState, format_size

IDLE = LendingState(guests=0, guest_memory=0, memory_free=8 << 30, minute=12 * 60, owner_idle=1e6)


def test_empty_table_lends_to_everybody() -> None:
    assert LendingPolicy.from_table({}).admits("anna", 1 << 20, IDLE) is None


@pytest.mark.parametrize(
    ("table", "changes", "user", "memory", "word"),
    [
        ({"enabled": False}, {}, "anna", 0, "does not lend"),
        ({}, {"blocked": True}, "anna", 0, "blocked"),
        ({"max_guests": 2}, {"guests": 2}, "anna", 0, "at most 2"),
        ({"max_memory": "1G"}, {"guest_memory": 1 << 29}, "anna", 1 << 30, "512M"),
        ({"max_memory": "1G"}, {"guest_memory": 1 << 30}, "anna", 0, "1G"),
        ({}, {"memory_free": 1 << 20}, "anna", 1 << 30, "free"),
        ({"users": ["bert"]}, {}, "anna", 0, "anna"),
        ({"users": []}, {}, "anna", 0, "anna"),
        ({"hours": "22-6"}, {}, "anna", 0, "12:00"),
        ({"idle_after": 60}, {"owner_idle": 5.0}, "anna", 0, "5 s ago"),
        ({"idle_after": 60}, {"owner_idle": None}, "anna", 0, "cannot tell"),
    ],
)
def test_refusal_says_why(table: dict[str, object], changes: dict[str, object], user: str, memory: int, word: str) -> None:
    refusal = LendingPolicy.from_table(table).admits(user, memory, replace(IDLE, **changes))  # type: ignore[arg-type]
    assert refusal is not None
    assert word in refusal
    assert not refusal.endswith(".")


@pytest.mark.parametrize(
    ("table", "changes", "user", "memory"),
    [
        ({"max_guests": 2}, {"guests": 1}, "anna", 0),
        ({"max_memory": "1G"}, {}, "anna", 1 << 30),
        ({"users": ["anna"]}, {}, "anna", 0),
        ({"users": "*"}, {}, "anna", 0),
        ({"users": ["bert", "*"]}, {}, "anna", 0),
        ({"hours": "22-6,12-13"}, {}, "anna", 0),
        ({"idle_after": 60}, {"owner_idle": 60.0}, "anna", 0),
    ],
)
def test_admitted(table: dict[str, object], changes: dict[str, object], user: str, memory: int) -> None:
    assert LendingPolicy.from_table(table).admits(user, memory, replace(IDLE, **changes)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hours", "open_at", "closed_at"),
    [
        ("22-6", [22 * 60, 0, 5 * 60 + 59], [6 * 60, 12 * 60, 21 * 60 + 59]),
        ("22-6,12-13", [12 * 60, 12 * 60 + 59, 23 * 60], [13 * 60, 11 * 60 + 59]),
        (["9:30-10:15"], [9 * 60 + 30, 10 * 60 + 14], [9 * 60 + 29, 10 * 60 + 15]),
        ("0-24", [0, 12 * 60, 24 * 60 - 1], []),
        ("20-24", [20 * 60, 24 * 60 - 1], [0, 19 * 60]),
        ("20-0", [20 * 60, 24 * 60 - 1], [0, 19 * 60]),
    ],
)
def test_hours(hours: object, open_at: list[int], closed_at: list[int]) -> None:
    policy = LendingPolicy.from_table({"hours": hours})
    assert all(policy.is_open_at(minute) for minute in open_at)
    assert not any(policy.is_open_at(minute) for minute in closed_at)


@pytest.mark.parametrize(
    ("text", "size"),
    [(5, 5), ("5", 5), ("2G", 2 << 30), ("1.5M", 3 << 19), ("2GiB", 2 << 30), ("512 k", 512 << 10), (0, 0)],
)
def test_sizes(text: object, size: int) -> None:
    assert LendingPolicy.from_table({"max_memory": text}).max_memory == size


def test_size_is_written_as_people_do() -> None:
    assert [format_size(size) for size in (0, 1023, 1 << 20, 3 << 29, -4)] == ["0", "1023", "1M", "1.5G", "0"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enabled", 1), ("enabled", "yes"), ("max_guests", -1), ("max_guests", 1.5),
        ("max_guests", True), ("max_guests", "3"),
        ("max_memory", "lots"), ("max_memory", -1), ("max_memory", "2X"),
        ("max_memory", True), ("max_memory", "9" * 40),
        ("cpu_share", 0), ("cpu_share", 1.1), ("cpu_share", True), ("cpu_share", "half"), ("cpu_share", float("nan")),
        ("hours", ""), ("hours", "5"), ("hours", "5-5"), ("hours", "25-3"), ("hours", "3-25"), ("hours", "1:60-2"),
        ("hours", [5]), ("hours", []), ("hours", 5), ("hours", "-"), ("hours", "24-3"), ("hours", "1-2-3"),
        ("users", "anna"), ("users", [1]), ("users", [""]), ("users", None), ("idle_after", -1), ("idle_after", "5m"),
        ("idle_after", True), ("color", 1),
    ],
)  # fmt: skip
def test_wrong_table_is_refused_in_a_sentence_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        LendingPolicy.from_table({key: value})


def test_lend_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not a table"):
        LendingPolicy.from_table("yes")
