"""The chart in MOSIX's views and numberings, and the keys that choose them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.drawings import chart
from monitor.drawings.outlook import Outlook
from monitor.drawings.pieces import text_of
from monitor.picture import Node
from tests.monitor.pictures import GIB, node, picture

NODES = picture().nodes


def many(count: int) -> tuple[Node, ...]:
    return picture(nodes=[node(f"n{number}", number % 4) for number in range(1, count + 1)], dead=[]).nodes


def text(nodes: tuple[Node, ...], key: str = "l", numbering: str = "a", chosen: int = 0, blocks: bool = True) -> list[str]:
    return [text_of(line) for line in chart.draw(nodes, key, numbering, chosen, 80, 12, blocks).lines]


def bar_of(lines: list[str], x: int) -> str:
    return "".join(line.ljust(80)[x] for line in lines)


def test_bars_are_as_high_as_the_load_on_the_scale() -> None:
    lines = text(many(4), blocks=False)
    assert lines[0].startswith(" 3.00")
    heights = [bar_of(lines[:-1], chart.AXIS + 9 * number).count("#") for number in range(4)]
    assert heights == [round(load / 3 * 11) for load in (1, 2, 3, 0)]
    assert lines[-1].split() == ["n1", "n2", "n3", "n4"]


def test_a_logarithmic_scale_makes_small_loads_visible() -> None:
    nodes = picture(nodes=[node("n1", 1.0), node("n2", 100.0)], dead=[]).nodes
    plain, logarithmic = (bar_of(text(nodes, key, blocks=False)[:-1], chart.AXIS).count("#") for key in "lL")
    assert plain == 0
    assert logarithmic == 2


def test_memory_is_solid_where_used_and_plus_where_free() -> None:
    nodes = picture(nodes=[node("n1", 0.0, memory_free=4 * GIB), node("n2", 0.0, memory_free=8 * GIB, memory_total=8 * GIB)], dead=[]).nodes
    lines = text(nodes, "m", blocks=False)[:-1]
    assert lines[0].startswith("  16G")
    assert bar_of(lines, chart.AXIS) == "+++########"
    assert bar_of(lines, chart.AXIS + 9) == "     ++++++"


def test_speed_and_utilisability_have_views_that_mark_unknown_values() -> None:
    lines = text(NODES, "u", blocks=False)
    assert lines[0].startswith(" 100%")
    assert bar_of(lines[:-1], chart.AXIS).count("#") == round(0.875 * 11)
    assert "?" in bar_of(lines[:-1], chart.AXIS + chart.draw(NODES, "u", "a", 0, 80, 12).pitch)
    assert bar_of(text(NODES, "s", blocks=False)[:-1], chart.AXIS + chart.draw(NODES, "s", "a", 0, 80, 12).pitch).count("#") in (5, 6)


def test_a_dead_node_is_marked_and_a_silent_one_paler_without_colours_too() -> None:
    drawn = chart.draw(picture(nodes=[node("n1", 1.0), node("n2", 1.0, age=20.0)]).nodes, "l", "a", 0, 80, 12)
    bottom = drawn.lines[-2]
    assert [piece.fade for piece in bottom if "▒" in piece.text] == [2]
    assert "x" in text_of(bottom)


@pytest.mark.parametrize(
    ("count", "numbering", "rows", "pitch"),
    [
        (4, "w", 1, 9), (64, "w", 1, 3), (4, "v", 1, 2), (64, "v", 2, 2), (64, "V", 2, 1), (4, "a", 1, 9), (30, "a", 2, 2),
        (64, "a", 2, 1), (120, "V", 3, 1),
    ],
)  # fmt: skip
def test_numberings(count: int, numbering: str, rows: int, pitch: int) -> None:
    drawn = chart.draw(many(count), "l", numbering, count - 1, 80, 12)
    assert drawn.pitch == pitch
    below = [text_of(line) for line in drawn.lines[-rows:]]
    assert all(line[chart.AXIS :].strip() for line in below)
    assert not text_of(drawn.lines[-rows - 1]).strip() or "█" in text_of(drawn.lines[-rows - 1])


def test_vertical_numbers_are_read_from_above() -> None:
    lines = text(many(64), numbering="V")
    assert [bar_of(lines[-2:], chart.AXIS + number - 1).strip() for number in (1, 9, 10, 64)] == ["1", "9", "10", "64"]


def test_the_chosen_node_is_always_shown() -> None:
    nodes = many(200)
    for chosen in (0, 73, 74, 150, 199):
        drawn = chart.draw(nodes, "l", "V", chosen, 80, 12)
        assert drawn.first <= chosen < drawn.first + drawn.shown
        assert sum(piece.style == "chosen" for line in drawn.lines[-3:] for piece in line) >= 1


def test_a_column_belongs_to_a_node() -> None:
    drawn = chart.draw(many(4), "l", "a", 0, 80, 12)
    found = [drawn.node_at(chart.AXIS + x) for x in (-chart.AXIS, -1, 0, 9, 35, 36)]
    assert found == [None, None, 0, 1, 3, None]


@pytest.mark.parametrize("width", [1, 6, 7, 20, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 30])
@pytest.mark.parametrize("key", sorted(chart.VIEWS))
def test_chart_fits_every_screen(width: int, height: int, key: str) -> None:
    for nodes in (NODES, many(64), ()):
        lines = chart.draw(tuple(nodes), key, "a", 0, width, height).lines
        assert len(lines) <= height
        assert all(len(text_of(line)) <= width for line in lines)


def test_keys_choose_views_numberings_dead_nodes_and_totals() -> None:
    outlook, shown = Outlook(), picture()
    for key in "lLsmu":
        assert outlook.pressed(key, shown).view == key
    for key in "wvVa":
        assert outlook.pressed(key, shown).numbering == key
    assert not outlook.dead
    assert [one.name for one in outlook.pressed("d", shown).nodes(shown)] == [one.name for one in shown.nodes]
    assert outlook.pressed("d", shown).pressed("d", shown) == outlook
    assert outlook.pressed("t", shown).total
    assert outlook.pressed("x", shown) is outlook


def test_arrows_choose_a_node_and_the_choice_stays_with_it() -> None:
    shown = picture()
    outlook = Outlook().pressed("right", shown).pressed("right", shown)
    assert outlook.chosen == "n3"
    assert outlook.pressed("left", shown).chosen == "n2"
    assert outlook.pressed("end", shown).chosen == "n10-with-a-very-long-name"
    assert outlook.pressed("end", shown).pressed("right", shown).chosen == "n10-with-a-very-long-name"
    assert outlook.pressed("home", shown).chosen == "n1"
    without = picture(nodes=[node("n1", 0.0), node("n3", 0.0)], dead=[])
    assert outlook.index(without) == 1
    assert replace(outlook, wanted="N2").index(shown) == 0
    assert [one.name for one in replace(outlook, wanted="N2").nodes(shown)] == ["n2"]
