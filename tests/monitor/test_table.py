"""The table of `mon --once`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monitor.drawings.pieces import bar, column, format_age, text_of
from monitor.drawings.table import render, totals
from monitor.picture import Node
from tests.monitor.pictures import GIB, node, picture

NODES = picture().living()


def text(nodes: Sequence[Node], width: int = 80, height: int = 24, blocks: bool = True) -> list[str]:
    return [text_of(line) for line in render(nodes, width, height, blocks)]


def test_table_shows_load_speed_memory_guests_state_and_age() -> None:
    lines = text(NODES)
    assert lines[0].startswith("farhome as n1 sees it: 4 nodes")
    assert lines[1].split() == ["NODE", "LOAD", "SPEED", "CORES", "MEMORY", "USED", "GUESTS", "STATE", "AGE"]
    assert "3.20" in lines[2]
    assert "12G/16G" in lines[2]
    assert lines[3].split()[-3:] == ["2", "lends", "1.4s"]
    assert lines[4].split()[-2:] == ["blocked", "0.9s"]
    assert lines[5].split()[-2:] == ["silent", "25s"]
    assert lines[5].startswith("n10-with-a-~")


@pytest.mark.parametrize("width", [1, 20, 79, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 24])
@pytest.mark.parametrize("blocks", [True, False])
def test_table_fits_every_screen(width: int, height: int, blocks: bool) -> None:
    lines = text(NODES, width, height, blocks)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_table_uses_the_whole_width_of_a_small_terminal() -> None:
    assert {len(line) for line in text(NODES)[1:]} == {80}


@pytest.mark.parametrize(
    ("free", "total", "shown"),
    [(int(23.05 * GIB), int(23.5 * GIB), "461M/24G"), (0, 1023 << 20, "1023M/1023M"), (GIB, GIB, "0/1G"), (0, 0, "0/0")],
)
def test_memory_fits_its_column(free: int, total: int, shown: str) -> None:
    line = text(picture(nodes=[node("n1", 1.0, memory_free=free, memory_total=total)]).living())[2]
    assert any(f"{before}{shown} " in line for before in " ·█")
    assert len(line) == 80


def test_more_nodes_than_lines_are_counted() -> None:
    lines = text(picture(nodes=[node(f"n{number}", 1.0) for number in range(64)]).living())
    assert len(lines) == 24
    assert lines[-1] == "and 43 more"


def test_node_that_has_not_been_heard_of_fades() -> None:
    assert {piece.style for piece in render(NODES)[5]} == {"faded"}
    assert "faded" not in {piece.style for piece in render(NODES)[3]}


def test_totals_are_of_those_that_are_heard_of() -> None:
    shown = totals(picture().nodes)
    assert shown == "total: 3 of 5 nodes heard of, 3 cores, power 2.5, memory 36G/48G, 2 lend"


def test_bars() -> None:
    assert bar(0.5, 4, True) == "██··"
    assert bar(0.3125, 2, True) == "▋·"
    assert bar(9.0, 3, True) == "███"
    assert bar(-1.0, 3, True) == "···"
    assert bar(0.5, 4, False) == "##.."


def test_columns_stand_on_the_ground() -> None:
    assert column(0.5, 4, True) == "  ██"
    assert column(0.3125, 2, True) == " ▅"
    assert column(9.0, 2, True) == "██"
    assert column(0.5, 4, False) == "  ##"


@pytest.mark.parametrize(("age", "shown"), [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (999.0, "999s"), (7200.0, "2h")])
def test_ages(age: float, shown: str) -> None:
    assert format_age(age) == shown
