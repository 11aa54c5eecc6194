"""In which line of a TOML file a key is. The parser does not report it; but it can be asked how much of the file it takes to have the
key."""

from __future__ import annotations

import tomllib
from bisect import bisect_left
from typing import Any

from balancer.lending.mistakes import Where


def line_of(text: str, where: Where) -> int | None:
    """Return the line (from 1) in which the statement begins that gives a key, or the last part of the way to it that is given at all; None
    if nothing is. The text is valid TOML."""
    lines = text.splitlines()
    wanted = _depth(tomllib.loads(text), where)
    if not wanted:
        return None

    def has(begin: int) -> bool:
        """Return whether the way is there with the first statement that ends in line `begin` or after."""
        return _depth(_document(lines, begin)[0], where) >= wanted

    first = bisect_left(range(1, len(lines) + 1), True, key=has) + 1
    return _first_written(lines, first - 1, _document(lines, first)[1])


def _document(lines: list[str], least: int) -> tuple[dict[str, Any], int]:
    """What the first lines hold, as few as can be read but at least so many; and how many they are. Less may be a part of a value."""
    for count in range(least, len(lines)):
        try:
            return tomllib.loads("\n".join(lines[:count])), count
        except tomllib.TOMLDecodeError:
            continue
    return tomllib.loads("\n".join(lines)), len(lines)


def _first_written(lines: list[str], begin: int, end: int) -> int:
    """The number of the first line that is neither empty nor a comment."""
    for index in range(begin, end):
        if lines[index].strip() and not lines[index].lstrip().startswith("#"):
            return index + 1
    return end


def _depth(document: Any, where: Where) -> int:
    """How many parts of the way are there."""
    for depth, part in enumerate(where):
        within_list = isinstance(part, int) and isinstance(document, list) and part < len(document)
        if not within_list and not (isinstance(document, dict) and part in document):
            return depth
        document = document[part]
    return len(where)
