"""The table of nodes that `mon --once` prints."""

from __future__ import annotations

import time
from collections.abc import Sequence

from monitor.drawings.pieces import Line, Piece, bar, clip, compact, format_age, level, shorten
from monitor.picture import STALE_SECONDS, Node

NAME_WIDTH = 12


def render(nodes: Sequence[Node], width: int = 80, height: int = 24, blocks: bool = True) -> list[Line]:
    """Return the lines of the table, none longer than `width` columns and no more than `height` of them."""
    free = max(0, width - (NAME_WIDTH + 1 + 7 + 6 + 6 + 1 + 11 + 7 + 9 + 5))
    load_width, memory_width = max(4, free * 2 // 3), max(3, free - free * 2 // 3)
    top = max([1.0, *(node.load for node in nodes)])
    header = (
        f"{'NODE':{NAME_WIDTH}} {'LOAD':{load_width}}{'':>7}{'SPEED':>6}{'CORES':>6}"
        f" {'MEMORY USED':<{memory_width + 11}}{'GUESTS':>7} {'STATE':<8}{'AGE':>5}"
    )
    lines = [[Piece(summary(nodes)[:width], "title")], [Piece(header[:width], "title")]]
    shown = nodes if len(nodes) <= height - 2 else nodes[: max(0, height - 3)]
    for node in shown:
        lines.append(clip(_row(node, load_width, memory_width, top, blocks), width))
    if len(shown) < len(nodes):
        lines.append([Piece(f"and {len(nodes) - len(shown)} more"[:width], "faded")])
    return lines[:height]


def summary(nodes: Sequence[Node]) -> str:
    """Return the whole cluster in one line."""
    own = next((node.name for node in nodes if node.self), "?")
    fresh = [node for node in nodes if node.age <= STALE_SECONDS and not node.dead]
    power = sum(node.cores * node.speed for node in fresh)
    load = sum(node.runnable for node in fresh) / power if power else 0.0
    guests = sum(node.guests for node in fresh)
    count = sum(not node.dead for node in nodes)
    many = f"{count} node{'s' if count != 1 else ''}"
    return f"farhome as {own} sees it: {many}, load {load:.2f}, {guests} guest{'s' if guests != 1 else ''}"


def totals(nodes: Sequence[Node]) -> str:
    """Return what all nodes that are heard of have together."""
    fresh = [node for node in nodes if node.age <= STALE_SECONDS and not node.dead]
    used, total = sum(node.memory_used for node in fresh), sum(node.memory_total for node in fresh)
    return (
        f"total: {len(fresh)} of {len(nodes)} nodes heard of, {sum(node.cores for node in fresh):g} cores, "
        f"power {sum(node.cores * node.speed for node in fresh):.1f}, memory {compact(used)}/{compact(total)}, "
        f"{sum(node.state == 'lends' for node in fresh)} lend"
    )


def dead_since(node: Node) -> str:
    """That a node is dead, and since when, as far as that is known."""
    if node.since is None:
        return "dead"
    moment = time.localtime(node.since)
    today = moment[:3] == time.localtime()[:3]
    return f"dead since {time.strftime('%H:%M:%S' if today else '%Y-%m-%d %H:%M', moment)}"


def _row(node: Node, load_width: int, memory_width: int, top: float, blocks: bool) -> Line:
    if node.dead:
        return [Piece(f"{shorten(node.name, NAME_WIDTH):{NAME_WIDTH}} ", "high"), Piece(dead_since(node), "high")]
    memory = f"{compact(node.memory_used)}/{compact(node.memory_total)}"
    name = shorten(node.name, NAME_WIDTH)
    pieces = [
        Piece(f"{name:{NAME_WIDTH}} ", "title" if node.self else "plain"),
        Piece(bar(node.load / top, load_width, blocks), level(node.load)),
        Piece(f"{node.load:7.2f}{node.speed:6.2f}{node.cores:6g} "),
        Piece(bar(node.memory_used / node.memory_total if node.memory_total else 0.0, memory_width, blocks), "memory"),
        Piece(f"{memory:>11}{node.guests:7d} {node.state:<8}{format_age(node.age):>5}"),
    ]
    return [Piece(piece.text, "faded") for piece in pieces] if node.age > STALE_SECONDS else pieces
