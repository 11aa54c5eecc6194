"""The lending policy: what it admits, for which users and when; and refused tables, with the key named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.lending.explain import explain
from balancer.lending.formats import format_size
from balancer.lending.lending import OTHERS, Borrower, Present, class_of, make_room
from balancer.lending.mistakes import Mistake
from balancer.lending.owner import OwnerRules
from balancer.lending.policy import LendingPolicy, LendingState
from balancer.lending.values import Table

IDLE = LendingState(guests=0, guest_memory=0, memory_free=8 << 30, minute=12 * 60)
ANNA = Borrower("anna", "n1", frozenset({"staff", "students"}), "lab")


def test_empty_table_lends_to_everybody() -> None:
    assert LendingPolicy.from_table({}).admits(ANNA, 1 << 20, IDLE) is None


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
        ({"hours": "9-17", "days": "tue-sun"}, {}, "anna", 0, "tue-sun"),
        ({}, {"withheld": "the owner used the node 5 s ago"}, "anna", 0, "5 s ago"),
        ({"on_battery": False}, {"is_on_battery": True}, "anna", 0, "battery"),
        ({"max_disk": "1G"}, {"guest_disk": 1 << 30}, "anna", 0, "disk"),
        ({"when": "owner_load < 0.5"}, {"values": {"owner_load": 0.75}}, "anna", 0, "owner_load is 0.75"),
        ({"when": "owner_load < 0.5"}, {}, "anna", 0, "not known"),
        ({"users": ["anna@n2", "bert"]}, {}, "anna", 0, "anna of n1"),
        ({"groups": ["wheel"]}, {}, "anna", 0, "anna"),
        ({"nodes": ["n2", "n3"]}, {}, "anna", 0, "n1"),
        ({"clusters": ["other"]}, {}, "anna", 0, "anna"),
        ({"users": ["anna"], "deny": {"groups": ["students"]}}, {}, "anna", 0, "denies group students"),
        ({"deny": {"nodes": ["n*"]}}, {}, "anna", 0, "denies node n1"),
        ({"class": [{"name": "ours", "users": ["anna"], "when": "hour > 20"}]}, {"values": {"hour": 12.0}}, "anna", 0, "class ours"),
        ({"class": [{"name": "ours", "max_memory": "1M"}]}, {}, "anna", 1 << 21, "class ours"),
    ],
)
def test_refusal_says_why(table: dict[str, object], changes: dict[str, object], user: str, memory: int, word: str) -> None:
    refusal = LendingPolicy.from_table(table).admits(replace(ANNA, user=user), memory, replace(IDLE, **changes))  # type: ignore[arg-type]
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
        ({"on_battery": False}, {"is_on_battery": None}, "anna", 0),
        ({"days": "mon"}, {}, "anna", 0),
        ({"when": "owner_load < 0.5"}, {"values": {"owner_load": 0.25}}, "anna", 0),
        ({"users": ["an*@n1"]}, {}, "anna", 0),
        ({"users": ["bert"], "groups": ["staff"]}, {}, "anna", 0),
        ({"nodes": ["n1"], "clusters": ["lab"]}, {}, "anna", 0),
        ({"deny": {"users": ["bert"]}}, {}, "anna", 0),
    ],
)
def test_admitted(table: dict[str, object], changes: dict[str, object], user: str, memory: int) -> None:
    borrower = replace(ANNA, user=user)
    assert LendingPolicy.from_table(table).admits(borrower, memory, replace(IDLE, **changes)) is None  # type: ignore[arg-type]


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
        ("users", "anna"), ("users", [1]), ("users", [""]), ("users", None), ("idle_after", -1), ("idle_after", "5 weeks"),
        ("idle_after", True), ("color", 1), ("days", "someday"), ("days", []), ("days", "mon-"), ("cores", 0), ("cores", "all"),
        ("max_disk", "much"), ("weight", "high"), ("on_battery", "no"), ("when", 5), ("when", "load <"), ("owner", 5),
        ("deny", {"users": "*"}), ("class", {"name": "x"}), ("class", [{"priority": 1}]), ("owner", {"then": "wait"}),
    ],
)  # fmt: skip
def test_wrong_table_is_refused_in_a_sentence_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        LendingPolicy.from_table({key: value})


def test_lend_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not a table"):
        LendingPolicy.from_table("yes")


@pytest.mark.parametrize(
    ("days", "open_on", "closed_on"),
    [("mon-fri", [0, 4], [5, 6]), ("sat-mon", [5, 6, 0], [1, 4]), (["tue", "Thu"], [1, 3], [0, 2, 6])],
)
def test_days(days: object, open_on: list[int], closed_on: list[int]) -> None:
    policy = LendingPolicy.from_table({"days": days})
    assert all(policy.is_open_at(0, day) for day in open_on)
    assert not any(policy.is_open_at(0, day) for day in closed_on)


def test_a_night_belongs_to_the_day_that_it_begins_on() -> None:
    policy = LendingPolicy.from_table({"days": "fri", "hours": "22-6"})
    assert policy.is_open_at(23 * 60, 4) and policy.is_open_at(5 * 60, 5)
    assert not policy.is_open_at(5 * 60, 4) and not policy.is_open_at(23 * 60, 5)


CLASSES = LendingPolicy.from_table(
    {
        "max_guests": 2,
        "class": [
            {"name": "low", "priority": 1, "users": ["bert"]},
            {"name": "high", "priority": 10, "groups": ["staff"]},
            {"name": "also-anna", "priority": 5, "users": ["anna"]},
        ],
    }
)
BERT = Borrower("bert", "n2")


def test_the_highest_class_that_fits_counts() -> None:
    assert [one.name for one in CLASSES.classes] == ["high", "also-anna", "low"]
    assert class_of(CLASSES.classes, ANNA).name == "high"
    assert class_of(CLASSES.classes, Borrower("carl", "n1")) is OTHERS


def _present(*who: tuple[str, Borrower, int, float]) -> tuple[Present, ...]:
    return tuple(Present(key, class_of(CLASSES.classes, borrower), memory, since) for key, borrower, memory, since in who)


def test_the_latest_of_the_lowest_class_makes_room_for_a_higher_one() -> None:
    present = _present(("old", BERT, 10, 1.0), ("new", BERT, 10, 2.0))
    full = replace(IDLE, guests=2, guest_memory=20, present=present)
    assert "at most 2" in str(CLASSES.admits(ANNA, 5, full))
    assert CLASSES.makes_room(ANNA, 5, full) == ["new"]
    assert CLASSES.makes_room(BERT, 5, full) == []  # none is lower than itself
    assert CLASSES.makes_room(ANNA, 5, replace(full, blocked=True)) == []
    assert CLASSES.makes_room(ANNA, 5, replace(full, guests=1, present=present[:1])) == []  # there is room


def test_only_guests_whose_departure_makes_room_go() -> None:
    present = _present(("small", BERT, 10, 3.0), ("great", BERT, 100, 1.0), ("ours", ANNA, 100, 2.0))

    def is_room(staying: object) -> bool:
        return "great" not in [one.key for one in staying]  # type: ignore[attr-defined]

    assert make_room(present, 10, is_room) == ["great"]
    assert make_room(present, 1, is_room) is None


@pytest.mark.parametrize(
    ("table", "expected"),
    [({}, None), ({"cores": 1}, 1.0), ({"cpu_share": 0.25}, 1.0), ({"cores": 3, "cpu_share": 0.5}, 2.0), ({"cores": 9}, None)],
)
def test_processors_that_are_lent(table: dict[str, object], expected: float | None) -> None:
    assert LendingPolicy.from_table(table).processors(4.0) == expected


def test_owner_rules_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(Mistake, match="idle_load") as caught:
        OwnerRules.from_table(Table({"busy_load": 0.5, "idle_load": 1}, ("lend", "owner")))
    assert caught.value.where == ("lend", "owner", "idle_load")


def test_a_policy_is_explained_rule_by_rule_in_general_and_for_one_user() -> None:
    policy = LendingPolicy.from_table(
        {"max_guests": 1, "users": ["anna"], "hours": "20-7", "when": "owner_load < 1", "class": [{"name": "ours", "users": ["anna"]}],
         "owner": {"busy_load": 1, "then": "kill"}, "deny": {"nodes": ["n9"]}}
    )  # fmt: skip
    state = replace(IDLE, values={"owner_load": 0.5})
    general = {line.rule: line for line in explain(policy, state).lines}
    assert (general["hours"].holds, general["when"].holds, general["guests"].holds) == (False, True, True)
    assert general["lent to"].holds is None
    assert any("killed" in line.text for line in explain(policy, state).lines)
    refused = explain(policy, replace(state, minute=22 * 60), Borrower("bert", "n9"))
    assert {line.rule: line.holds for line in refused.lines if line.rule in ("lent to", "denied")} == {"lent to": False, "denied": False}
    assert refused.refusal == "the node denies node n9"
    admitted = explain(policy, replace(state, minute=22 * 60), ANNA)
    assert admitted.refusal is None
    assert {line.rule: line.holds for line in admitted.lines}["class ours"] is True


def test_facts_unknown_here_are_explained_as_unknown() -> None:
    policy = LendingPolicy.from_table(
        {"users": ["anna"], "days": "mon-wed,fri", "class": [{"name": "ours", "groups": ["g"], "when": "owner_load < 1"}]}
    )
    state = replace(IDLE, values={"owner_load": 2.0})
    explained = {line.rule: line for line in explain(policy, state, Borrower("bert", "n9")).lines}
    assert explained["lent to"].text == "users anna (in which groups bert is, only n9 knows)"
    assert explained["hours"].text == "at any hour on mon-wed, fri"
    assert (explained["class ours"].holds, explained["class others"].holds) == (None, True)
    assert explained["class ours"].text.endswith("only when owner_load < 1 (owner_load is 2)")
    member = {line.rule: line for line in explain(policy, state, Borrower("anna", "n9", frozenset({"g"}))).lines}
    assert (member["lent to"].text, member["class ours"].holds) == ("users anna", False)


def test_the_guest_that_would_make_room_is_explained() -> None:
    full = replace(IDLE, guests=2, present=_present(("old", BERT, 0, 1.0), ("new", BERT, 0, 2.0)))
    explained = explain(CLASSES, full, ANNA)
    assert explained.refusal is None
    assert "new would make room" in {line.rule: line.text for line in explained.lines}["priority"]
