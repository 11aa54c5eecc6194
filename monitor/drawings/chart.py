"""MOSIX's bar chart of the nodes: one bar for each, numbers or names below, in the views that its keys choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monitor.drawings.pieces import Line, Piece, clip, column, compact, joined, level, shorten
from monitor.picture import Node

AXIS = 6
"""Columns at the left for the scale."""
WIDEST = 9
LONGEST_NAME, SHORTEST_NAME = 8, 4
UNKNOWN, DEAD = "?", "x"
"""What stands in the place of a bar."""


class View(NamedTuple):
    """One way to look at nodes: what a bar is as high as (None: not known), the least top of the scale, how a value is written."""

    title: str
    value: Callable[[Node], float | None]
    least: float
    written: Callable[[float], str]
    logarithmic: bool = False


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 99.995 else f"{value:.0f}"


VIEWS = {
    "l": View("load", lambda node: node.load, 1.0, _figure),
    "L": View("load, logarithmic", lambda node: node.load, 1.0, _figure, True),
    "s": View("speed", lambda node: node.speed, 1.0, _figure),
    "m": View("memory, used and free (+)", lambda node: float(node.memory_used), 1.0, lambda value: compact(int(value))),
    "u": View("utilisability", lambda node: node.utilisability, 1.0, lambda value: f"{value:.0%}"),
}
"""By MOSIX's keys."""
NUMBERINGS = "wvVa"
"""Wide; vertical; vertical and tight; automatic: the widest one that shows all nodes."""


@dataclass(frozen=True)
class Chart:
    """The lines of a chart, and the nodes that its columns are of."""

    lines: list[Line]
    first: int
    pitch: int
    shown: int

    def node_at(self, x: int) -> int | None:
        """Return which node a column of the screen belongs to."""
        index = (x - AXIS) // self.pitch
        return self.first + index if x >= AXIS and index < self.shown else None


def draw(nodes: Sequence[Node], key: str, numbering: str, chosen: int, width: int, height: int, blocks: bool = True) -> Chart:
    """Return the chart of a view, as many lines as `height`; the chosen node is always among those that are shown."""
    view = VIEWS[key]
    labels, pitch = _labels(nodes, numbering, width - AXIS)
    rows = max([1, *(len(label) for label in labels)]) if _is_vertical(labels, pitch) else 1
    room = max(1, (width - AXIS) // pitch)
    first = min(max(0, chosen - room + 1), max(0, len(nodes) - room)) if chosen >= room else 0
    shown = nodes[first : first + room]
    tall = max(1, height - rows)
    top = max([view.least, *(value for node in nodes if (value := _highest(node, key)) is not None)])
    bars = [_bar(node, key, view, top, tall, blocks) for node in shown]
    thick = max(1, pitch - 1)
    lines: list[Line] = []
    for row in range(tall):
        line = [Piece(_scale(view, top, row, tall), "faded")]
        for one in bars:
            cell = one.cells[row]
            text = cell.ljust(pitch) if cell in (UNKNOWN, DEAD) else (cell * thick).ljust(pitch)
            line.append(Piece(text, one.style, one.fade))
        lines.append(clip(joined(line), width))
    lines += _numbered(labels[first : first + room], shown, pitch, rows, chosen - first, width)
    return Chart(lines[:height], first, pitch, len(shown))


class _Bar(NamedTuple):
    cells: str
    style: str
    fade: int


def _highest(node: Node, key: str) -> float | None:
    return float(node.memory_total) if key == "m" else VIEWS[key].value(node)


def share(view: View, value: float, top: float) -> float:
    """Return how much of the height a value takes."""
    return math.log1p(value) / math.log1p(top) if view.logarithmic else value / top


def _bar(node: Node, key: str, view: View, top: float, tall: int, blocks: bool) -> _Bar:
    value = view.value(node)
    if node.dead or value is None:
        return _Bar((DEAD if node.dead else UNKNOWN).rjust(tall), "faded", node.fade)
    cells = column(share(view, value, top), tall, blocks)
    if key == "m":
        free = round(node.memory_total / top * tall)
        cells = "".join(cell if cell != " " else "+" if tall - row <= free else " " for row, cell in enumerate(cells))
    if node.fade > 1 and blocks:
        cells = "".join("▒" if cell == "█" else cell for cell in cells)
    style = "memory" if key == "m" else level(node.load) if key in "lL" else "low"
    return _Bar(cells, style, node.fade)


def _scale(view: View, top: float, row: int, tall: int) -> str:
    """What stands at the left of a line: the value that its upper edge is."""
    step = max(1, (tall + 1) // 4)
    if row % step or (tall - row < step and row):
        return " " * AXIS
    part = (tall - row) / tall
    value = math.expm1(part * math.log1p(top)) if view.logarithmic else part * top
    return f"{view.written(value)[: AXIS - 1]:>{AXIS - 1}} "


def _labels(nodes: Sequence[Node], numbering: str, width: int) -> tuple[list[str], int]:
    """What stands below each bar, and columns from one bar to the next."""
    numbers = [str(number) for number in range(1, len(nodes) + 1)]
    room = width // max(1, len(nodes)) - 1
    if numbering == "w" or (numbering == "a" and (not numbers or room >= len(numbers[-1]))):
        labels = _short_names(nodes, min(LONGEST_NAME, room)) or numbers
        least = max([1, *(len(label) for label in labels)]) + 1
        return labels, max(least, min(WIDEST, room + 1))
    if numbering == "v" or (numbering == "a" and len(nodes) * 2 <= width):
        return numbers, 2
    return numbers, 1


def _short_names(nodes: Sequence[Node], width: int) -> list[str]:
    """The names in so many columns; none if too little is left of them to know the nodes by."""
    names = [shorten(node.name, width) for node in nodes]
    known = width >= SHORTEST_NAME or all(len(node.name) <= width for node in nodes)
    return names if known and len(set(names)) == len(names) else []


def _is_vertical(labels: Sequence[str], pitch: int) -> bool:
    return any(len(label) > max(1, pitch - 1) for label in labels)


def _numbered(labels: Sequence[str], shown: Sequence[Node], pitch: int, rows: int, chosen: int, width: int) -> list[Line]:
    lines = []
    for row in range(rows):
        line = [Piece(" " * AXIS)]
        for index, (label, node) in enumerate(zip(labels, shown, strict=True)):
            text = label if rows == 1 else label.rjust(rows)[row]
            style = "chosen" if index == chosen else "title" if node.self else "plain"
            pad = max(0, pitch - 1 - len(text))
            line.append(Piece(text + " " * pad, style, node.fade if style == "plain" else 0))
            line.append(Piece(" " * (pitch - len(text) - pad)))
        lines.append(clip(joined(line), width))
    return lines
