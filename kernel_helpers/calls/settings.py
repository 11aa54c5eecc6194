"""settings.table: what a program can set about itself, and what a move makes of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("settings.table")
FATES = {
    "stays": "it *stays at home*",
    "carried": "goes along",
    "home": "counts at home",
    "advice": "counts at home, changes no result",
    "none": "not on x86-64",
}
"""How docs/calls.md says what the table says."""


@dataclass(frozen=True)
class Setting:
    """One row. default: the value that it has as a rule, of the bits of mask."""

    name: str
    read: str
    default: int
    mask: int
    fate: str
    words: str
    pattern: str
    """of a status that says that it is set"""

    def is_set(self, value: int) -> bool:
        """Return whether that is another than the one as a rule."""
        return value & self.mask != self.default


def parse(text: str) -> list[Setting]:
    """Errors: ValueError, with the line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in f"{line} ".split(" | ")]
        if len(fields) != 5 or fields[3] not in FATES or (fields[3] == "stays" and not fields[4]):
            raise ValueError(f"settings.table, line {number}: {line}")
        name, read, value, fate, words = fields
        mask, default, pattern = (1 << 64) - 1, 0, ""
        if read.startswith("status "):
            pattern = rf"^{read.removeprefix('status ')}:\s*{value}"
        elif value != "-":
            bits, _, rule = value.rpartition("&")
            mask, default = int(bits, 0) if bits else mask, int(rule, 0)
        found.append(Setting(name, read, default, mask, fate, words, pattern))
    return found


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Return all rows."""
    return tuple(parse(TABLE.read_text(encoding="utf-8")))


def documentation() -> list[str]:
    """Lines of docs/calls.md."""
    rows = [f"| {row.name} | {FATES[row.fate]} | {row.words} |" for row in settings()]
    return [
        "", "## What a program can set about itself", "",
        "From `kernel_helpers/calls/settings.table`. Where a process *stays at home*, `moscheck` and `migrate` say so, in the words of the",
        "row, before anything is tried; a call by which a process that is away would come to that takes it home.", "",
        "| set by | what becomes of it | words |", "| --- | --- | --- |", *rows,
    ]  # fmt: skip
