"""A daemon's reply is checked before it is believed."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.picture import Nonsense, natural, picture_of
from tests.monitor.pictures import answer, event, node, picture, process


def test_nodes_are_in_the_order_that_people_count_in_and_the_dead_among_them() -> None:
    assert [one.name for one in picture().nodes] == ["n1", "n2", "n3", "n9", "n10-with-a-very-long-name"]
    assert [one.name for one in picture().living()] == ["n1", "n2", "n3", "n10-with-a-very-long-name"]
    assert sorted(["n10", "n2", "a", "n1b"], key=natural) == ["a", "n1b", "n2", "n10"]


def test_states_show_whether_a_node_lends_and_whether_it_is_heard_of() -> None:
    assert [one.state for one in picture().nodes] == ["lends", "lends", "blocked", "dead", "silent"]
    assert picture(nodes=[node("n1", 0.0, lending=False)]).nodes[0].state == "closed"


@pytest.mark.parametrize(("age", "fade"), [(0.0, 0), (4.9, 0), (5.1, 1), (10.1, 2), (29.0, 2)])
def test_a_node_fades_with_the_age_of_its_data(age: float, fade: int) -> None:
    assert picture(nodes=[node("n1", 0.0, age=age)]).nodes[0].fade == fade


def test_events_are_in_their_order_in_time() -> None:
    made = picture(events=[event(1, 2, "home", "n2"), event(9, 1, "home", "n2")])
    assert [one.pid for one in made.events] == [1, 2]


def test_a_picture_holds_no_control_characters() -> None:
    assert picture(processes=[process(1, command="x\x1b[2Jy\n")]).processes[0].command == "x [2Jy "


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nodes": 7}, "nodes"), ({"nodes": [1]}, "not a node"), ({"nodes": [{}]}, "'name'"), ({"node": None}, "who it is"),
        ({"nodes": [node("n1", 0.0, load="high")]}, "'load'"), ({"nodes": [node("n1", 0.0, load=float("nan"))]}, "'load'"),
        ({"nodes": [node("n1", 0.0, memory_free=1.5)]}, "'memory_free'"), ({"nodes": [node("n1", 0.0, age=float("inf"))]}, "'age'"),
        ({"nodes": [node("n1", 0.0, guests=True)]}, "'guests'"), ({"nodes": [node("n1", 0.0, utilisability="good")]}, "'utilisability'"),
        ({"processes": [process(1) | {"pid": "1"}]}, "'pid'"), ({"events": [{}]}, "'at'"), ({"counters": {"out": "many"}}, "'out'"),
        ({"at": float("nan")}, "who it is"), ({"guests": {}}, "guests"),
        ({"dead": [{"name": 5}]}, "dead node"), ({"dead": [{"name": "n9", "since": "noon"}]}, "dead node"), ({"dead": [7]}, "dead node"),
    ],
)  # fmt: skip
def test_invalid_values_are_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Nonsense, match=word):
        picture_of(answer(**change))


def test_an_answer_without_nodes_is_no_picture() -> None:
    with pytest.raises(Nonsense, match="no list of nodes"):
        picture_of({"ok": True})
