"""The screen that a user at a terminal sees, computed from all output."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import pyte

from tests.moves.outcome import Place
from tests.moves.terminal import Terminal

NUMBERS = re.compile(r"^(\[\d+\][-+]? +)\d+$")
"""The line that a shell prints for a background job: its pid differs from run to run."""

STOPPED = re.compile(r"^\^Z$")
"""The echo of a terminal for Ctrl-Z unless the program has turned the echo off by then: the kernel checks after sending the signal."""


@dataclass(frozen=True)
class Picture:
    """The rows as text, without blanks at their ends, and where the cursor is: row and column from 0."""

    rows: tuple[str, ...]
    cursor: tuple[int, int]

    @property
    def text(self) -> str:
        """The text without the empty rows at the end."""
        return "\n".join(self.rows).rstrip("\n")

    def beside(self, other: Picture) -> str:
        """Both, for people: rows that differ are marked."""
        lines = [f"cursor at {self.cursor} and {other.cursor}; rows:"]
        for number in range(max(len(self.rows), len(other.rows))):
            one, two = (rows[number] if number < len(rows) else "" for rows in (self.rows, other.rows))
            lines.append(f"  {one!r}" if one == two else f"- {one!r}\n+ {two!r}")
        return "\n".join(lines)


class Screen(Terminal):
    """A terminal of the kind `linux`, which shows what it is sent."""

    def __init__(self, place: Place, argv: list[str], rows: int = 24, columns: int = 80) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        super().__init__(place, argv, rows=rows, columns=columns)

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        super().resize(rows, columns)

    def read(self, seconds: float) -> bool:
        before = len(self.transcript)
        is_read = super().read(seconds)
        self._stream.feed(self.transcript[before:])
        return is_read

    def picture(self) -> Picture:
        rows = [STOPPED.sub("", NUMBERS.sub(r"\1PID", row.rstrip())) for row in self._screen.display]
        cursor: Any = self._screen.cursor
        return Picture(tuple(rows), (cursor.y, cursor.x))

    def settles(self, pattern: str, before: Picture, quiet: float, seconds: float = 60) -> Picture:
        """Waits until the screen is another than `before`, its text matches the regular expression, and nothing is shown for `quiet`
        seconds; returns it. Errors: TimeoutError with what was shown instead."""
        end = time.monotonic() + seconds
        while True:
            picture = self.picture()
            if picture != before and re.search(pattern, picture.text) and not self.read(quiet):
                return picture
            if time.monotonic() > end:
                raise TimeoutError(f"awaited {pattern!r}, shown was:\n{picture.text}")
            self.read(0.05)

    def becomes(self, wanted: Picture, seconds: float) -> bool:
        """Waits until the screen is `wanted`; returns whether it is within that time."""
        end = time.monotonic() + seconds
        while self.picture() != wanted:
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.read(min(left, 0.5))
        return True
