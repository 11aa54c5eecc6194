"""`mon`: the nodes of the cluster, live: load, speed, memory, guests, state, and how old the information is."""

from __future__ import annotations

import argparse
import contextlib
import curses
import locale
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from balancer.policy import format_size
from cli import exit_codes
from cli.client import Client, CommandError
from cli.command import Parser, print_json, run

STALE_SECONDS = 10.0
NAME_WIDTH = 12
ANSWER_SECONDS = 5.0

EXAMPLES = (
    "  mon                 a live table; q quits, space looks at once\n"
    "  mon -n 0.5          the same, twice a second\n"
    "  mon --once          the table once, as plain text\n"
    "  mon --json          a list of the nodes, for scripts\n"
)


def _nonsense(what: str) -> CommandError:
    return CommandError(f"the mosd of this node does not speak as it should: {what}", exit_codes.UNAVAILABLE)


@dataclass(frozen=True)
class NodeRow:
    """One node as the daemon knows it: memory in bytes, load in load units, age of the information in seconds."""

    name: str
    load: float
    runnable: float
    cores: float
    speed: float
    memory_free: int
    memory_total: int
    guests: int
    lending: bool
    blocked: bool
    age: float
    self: bool

    @classmethod
    def from_message(cls, row: object) -> NodeRow:
        """Return the row of a daemon's answer. Errors: CommandError if it is not one."""
        if not isinstance(row, Mapping):
            raise _nonsense("it told of something that is not a node")
        values: dict[str, Any] = {}
        for key, kinds in _KINDS.items():
            value = row.get(key)
            if not isinstance(value, kinds) or (isinstance(value, float) and not math.isfinite(value)):
                raise _nonsense(f"it told of a node without a usable {key!r}")
            values[key] = value
        return cls(**values)

    @property
    def state(self) -> str:
        """What the node lends now, in one word."""
        if self.age > STALE_SECONDS:
            return "silent"
        if self.blocked:
            return "blocked"
        return "lends" if self.lending else "closed"


_NUMBER = (int, float)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "load": _NUMBER, "runnable": _NUMBER, "cores": _NUMBER, "speed": _NUMBER, "memory_free": int,
    "memory_total": int, "guests": int, "lending": bool, "blocked": bool, "age": _NUMBER, "self": bool,
}  # fmt: skip


class Piece(NamedTuple):
    """Some text of one style: "plain", "title", "low", "middle", "high", "memory" or "faded"."""

    text: str
    style: str = "plain"


def bar(share: float, width: int, blocks: bool) -> str:
    """Return a bar of `width` columns filled to a share of 0 to 1, in eighths of a column if `blocks` may be used."""
    share = min(1.0, max(0.0, share))
    if not blocks:
        return ("#" * round(share * width)).ljust(width, ".")
    eighths = round(share * width * 8)
    text = "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")
    return text.ljust(width, "·")


def format_age(age: float) -> str:
    """Return an age as one writes it in four columns."""
    if age < 9.95:
        return f"{age:.1f}s"
    return f"{age:.0f}s" if age < 999.5 else f"{min(age / 3600, 999):.0f}h"


def render(rows: Sequence[NodeRow], width: int = 80, height: int = 24, blocks: bool = True) -> list[list[Piece]]:
    """Return the lines of the table, none longer than `width` columns and no more than `height` of them."""
    free = max(0, width - (NAME_WIDTH + 1 + 7 + 6 + 6 + 1 + 11 + 7 + 9 + 5))
    load_width, memory_width = max(4, free * 2 // 3), max(3, free - free * 2 // 3)
    top = max([1.0, *(row.load for row in rows)])
    header = (
        f"{'NODE':{NAME_WIDTH}} {'LOAD':{load_width}}{'':>7}{'SPEED':>6}{'CORES':>6}"
        f" {'MEMORY USED':<{memory_width + 11}}{'GUESTS':>7} {'STATE':<8}{'AGE':>5}"
    )
    lines = [[Piece(_summary(rows)[:width], "title")], [Piece(header[:width], "title")]]
    shown = rows if len(rows) <= height - 2 else rows[: max(0, height - 3)]
    for row in shown:
        lines.append(_clip(_row_pieces(row, load_width, memory_width, top, blocks), width))
    if len(shown) < len(rows):
        lines.append([Piece(f"and {len(rows) - len(shown)} more"[:width], "faded")])
    return lines[:height]


def _summary(rows: Sequence[NodeRow]) -> str:
    own = next((row.name for row in rows if row.self), "?")
    fresh = [row for row in rows if row.age <= STALE_SECONDS]
    power = sum(row.cores * row.speed for row in fresh)
    load = sum(row.runnable for row in fresh) / power if power else 0.0
    guests = sum(row.guests for row in fresh)
    nodes = f"{len(rows)} node{'s' if len(rows) != 1 else ''}"
    return f"farhome as {own} sees it: {nodes}, load {load:.2f}, {guests} guest{'s' if guests != 1 else ''}"


def _compact(size: int) -> str:
    """Bytes in at most five columns."""
    number = format_size(size)
    return number if len(number) <= 4 else f"{float(number[:-1]):.0f}{number[-1]}"


def _row_pieces(row: NodeRow, load_width: int, memory_width: int, top: float, blocks: bool) -> list[Piece]:
    used = max(0, row.memory_total - row.memory_free)
    memory = f"{_compact(used)}/{_compact(row.memory_total)}"
    level = "low" if row.load < 1.05 else "middle" if row.load < 2.05 else "high"
    name = row.name if len(row.name) <= NAME_WIDTH else row.name[: NAME_WIDTH - 1] + "~"
    faded = row.age > STALE_SECONDS
    pieces = [
        Piece(f"{name:{NAME_WIDTH}} ", "title" if row.self else "plain"),
        Piece(bar(row.load / top, load_width, blocks), level),
        Piece(f"{row.load:7.2f}{row.speed:6.2f}{row.cores:6g} "),
        Piece(bar(used / row.memory_total if row.memory_total else 0.0, memory_width, blocks), "memory"),
        Piece(f"{memory:>11}{row.guests:7d} {row.state:<8}{format_age(row.age):>5}"),
    ]
    return [Piece(piece.text, "faded") for piece in pieces] if faded else pieces


def _clip(pieces: Sequence[Piece], width: int) -> list[Piece]:
    clipped = []
    for piece in pieces:
        clipped.append(Piece(piece.text[:width], piece.style))
        width -= len(clipped[-1].text)
    return clipped


def fetch() -> list[NodeRow]:
    """Return the nodes that the daemon of this node knows. Errors: CommandError."""
    client = Client(ANSWER_SECONDS)
    try:
        rows = client.call("nodes").get("nodes")
    finally:
        client.close()
    if not isinstance(rows, list):
        raise _nonsense("it gave no list of nodes")
    return [NodeRow.from_message(row) for row in rows]


class Screen:
    """The live table on a terminal."""

    def __init__(self, window: curses.window, interval: float, blocks: bool) -> None:
        self._window = window
        self._interval = interval
        self._blocks = blocks
        self._styles = self._make_styles()
        self._rows: list[NodeRow] = []
        self._trouble = ""

    @staticmethod
    def _make_styles() -> dict[str, int]:
        styles = {"title": curses.A_BOLD, "faded": curses.A_DIM}
        if os.environ.get("NO_COLOR") or not curses.has_colors():
            return styles
        curses.use_default_colors()
        # Blue, yellow and magenta are told apart by those who cannot tell green from red.
        colors = {"low": curses.COLOR_BLUE, "middle": curses.COLOR_YELLOW, "high": curses.COLOR_MAGENTA}
        for number, (style, color) in enumerate((colors | {"memory": curses.COLOR_CYAN}).items(), start=1):
            curses.init_pair(number, color, -1)
            styles[style] = curses.color_pair(number)
        return styles

    def run(self) -> None:
        """Show the table until q or Ctrl-C. Errors: CommandError if there is no daemon at the start."""
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        self._rows = fetch()
        due = time.monotonic() + self._interval
        while True:
            self._draw()
            self._window.timeout(max(0, round((due - time.monotonic()) * 1000)))
            key = self._window.getch()
            if key in (ord("q"), ord("Q"), 3):
                return
            if key == -1 or key == ord(" "):
                due = time.monotonic() + self._interval
                self._refresh()

    def _refresh(self) -> None:
        try:
            self._rows, self._trouble = fetch(), ""
        except CommandError as error:  # a daemon that restarts comes back; what was known stays on show
            self._trouble = str(error)

    def _draw(self) -> None:
        height, width = self._window.getmaxyx()
        self._window.erase()
        for number, pieces in enumerate(render(self._rows, width - 1, height - 1, self._blocks)):
            column = 0
            for piece in pieces:
                with contextlib.suppress(curses.error):
                    self._window.addstr(number, column, piece.text, self._styles.get(piece.style, 0))
                column += len(piece.text)
        foot = self._trouble or "q quit   space now"
        with contextlib.suppress(curses.error):
            self._window.addstr(height - 1, 0, foot[: width - 1], self._styles["faded"])
        self._window.refresh()


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def parser() -> Parser:
    """The command line."""
    made = Parser("mon", "Shows the nodes of the cluster: load, speed, memory, guests, state, age of what is known.", EXAMPLES)
    made.add_argument("--once", action="store_true", help="print the table once and end")
    made.add_argument("--json", action="store_true", help="print the nodes once as JSON and end")
    made.add_argument("-n", type=_interval, default=1.0, metavar="SECONDS", help="time between two looks (default 1)")
    return made


def body(arguments: Sequence[str] | None) -> int:
    """Errors: CommandError."""
    options = parser().parse_args(arguments)
    with contextlib.suppress(locale.Error):  # a locale that is not installed
        locale.setlocale(locale.LC_ALL, "")
    blocks = "utf" in (locale.nl_langinfo(locale.CODESET) or "").lower()
    if options.json:
        print_json([asdict(row) | {"state": row.state} for row in fetch()])
    elif options.once or not sys.stdout.isatty() or not sys.stdin.isatty():
        width = shutil.get_terminal_size((80, 24)).columns
        for line in render(fetch(), width, 1 << 20, blocks):
            print("".join(piece.text for piece in line).rstrip())
    else:
        fetch()  # a daemon that is not there is told of before the screen is taken
        try:
            curses.wrapper(lambda window: Screen(window, options.n, blocks).run())
        except KeyboardInterrupt:
            pass
        except curses.error as error:
            reason = f"the terminal cannot show the table ({error}); try --once"
            raise CommandError(reason, exit_codes.UNAVAILABLE) from None
    return exit_codes.OK


def main() -> int:
    """The installed program."""
    return run("mon", body)


if __name__ == "__main__":
    sys.exit(main())
