"""The system-call table: `calls.table` read into rows, and the C table that is generated from them.

Run as a program it writes the C table for the Makefile (`--c FILE`). It imports nothing of the project, so that it runs before anything is
installed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path


class Class(IntEnum):
    """What becomes of a call of a process that is away. The numbers are those of link/link.h."""

    GO_HOME = 0
    LOCAL = 1
    FORWARD = 2
    BOTH = 3
    END = 4
    REFUSE = 5
    SUM = 6
    EXECUTE = 7
    BIND = 8
    RIGHTS = 9
    IDS = 10
    WATCH = 11
    KEYS = 12


class Shape(IntEnum):
    """What an argument is; the numbers are those of link/link.h."""

    NUMBER = 0
    STRING = 1
    IN = 2
    OUT = 3
    INOUT = 4
    IOV_IN = 5
    IOV_OUT = 6
    MSG_IN = 7
    MSG_OUT = 8
    MMSG_IN = 9
    MMSG_OUT = 10
    MASK = 11
    MASK6 = 12
    ZERO = 13
    INPLACE = 14
    TEXT = 15
    XATTR_IN = 16
    XATTR_OUT = 17
    PROGRAM = 18
    EVENT = 19
    TIMEX = 20
    STRINGS = 21
    TERMINAL = 22
    PART = 23
    MSG_PART = 24
    MMSG_PART = 25
    SIGNALS = 26


class SizeKind(IntEnum):
    """How long a buffer is: `scale * x + add` where x is 0, an argument, a u32 behind one; BITS: the words (8 bytes) that
    hold an argument + add bits, add being 0 or less."""

    FIXED = 0
    ARGUMENT = 1
    BEHIND = 2
    BITS = 3


class Rule(IntEnum):
    """When and how much of an out buffer comes back."""

    FULL = 0
    ALWAYS = 1
    RETURNED = 2
    MESSAGE = 3
    """of a message: what its msg_len says"""


class Writes(IntEnum):
    """When the kernel writes: after an effect that it does not take back; only when there was none; or saying nothing if it cannot."""

    AFTER = 0
    LATE = 1
    QUIET = 2


class Records(IntEnum):
    """Whether an out buffer is one of directory entries, between which the kernel writes nothing."""

    NONE = 0
    DIRENT = 1
    DIRENT64 = 2


@dataclass(frozen=True)
class Argument:
    word: str
    shape: Shape = Shape.NUMBER
    size_kind: SizeKind = SizeKind.FIXED
    size_argument: int = 0
    size_scale: int = 1
    size_add: int = 0
    rule: Rule = Rule.FULL
    rule_scale: int = 1
    rule_add: int = 0
    size_least: int = 0
    size_most: int = 0
    writes: Writes = Writes.AFTER
    records: Records = Records.NONE


@dataclass(frozen=True)
class Variant:
    """A row's replacement when `arguments[argument] & mask == value`, and `also` the same is so of another."""

    argument: int
    mask: int
    value: int
    class_: Class
    arguments: tuple[Argument, ...]
    note: str
    also: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Row:
    number: int
    name: str
    class_: Class
    arguments: tuple[Argument, ...]
    note: str
    group: str
    variants: tuple[Variant, ...] = field(default=())

    def select(self, arguments: tuple[int, ...]) -> Row | Variant:
        """Return the variant that these argument values choose, or the row itself."""
        for variant in self.variants:
            argument, mask, value = variant.also
            if arguments[variant.argument] & variant.mask == variant.value and arguments[argument] & mask == value:
                return variant
        return self


_CLASSES = {name.lower().replace("_", "-"): member for name, member in Class.__members__.items()}
_VECTORS = {"iovin": Shape.IOV_IN, "iovout": Shape.IOV_OUT, "mmsgin": Shape.MMSG_IN, "mmsgout": Shape.MMSG_OUT, "mmsgpart": Shape.MMSG_PART}
_SIMPLE = {
    "str": Shape.STRING,
    "msgin": Shape.MSG_IN,
    "msgout": Shape.MSG_OUT,
    "msgpart": Shape.MSG_PART,
    "sigmask": Shape.MASK,
    "sigmask6": Shape.MASK6,
    "zero": Shape.ZERO,
    "text": Shape.TEXT,
    "event": Shape.EVENT,
    "strings": Shape.STRINGS,
    "terminal": Shape.TERMINAL,
    "signals": Shape.SIGNALS,
}
_TIMEX = "inout(208)"
_STRUCTURES = {"xattrin": Shape.XATTR_IN, "xattrout": Shape.XATTR_OUT, "program": Shape.PROGRAM}
_SIZE = re.compile(
    r"(?P<fixed>\d+)$|(?P<how>\*?@|bits@)(?P<argument>[0-5])(?:\*(?P<scale>\d+))?(?P<add>[+-]\d+)?"
    r"(?:(?P<bound>[<>])(?P<limit>\d+))?$"
)
_RULE = re.compile(r"ret(?:\*(?P<scale>\d+))?(?:\+(?P<add>\d+))?$")
_RECORDS = {"names": Records.DIRENT, "names64": Records.DIRENT64}
_HOW = {"@": SizeKind.ARGUMENT, "*@": SizeKind.BEHIND, "bits@": SizeKind.BITS}


def _parse_argument(word: str) -> Argument:
    if word in _SIMPLE:
        return Argument(word, _SIMPLE[word])
    if word == "str16":
        return Argument(word, Shape.STRING, size_add=16)
    if word == "timex":
        return replace(_parse_argument(_TIMEX), word=word, shape=Shape.TIMEX)
    call = re.match(r"(\w+)\(([^,)]+)(?:,(?!late|quiet)([^,)]+))?(?:,(late|quiet))?\)$", word)
    if call is not None and call[1] not in ("in", "out", "part", "inout", "inplace", *_VECTORS, *_STRUCTURES):
        call = None
    if call is None:
        if not word.isidentifier():
            raise ValueError(f"cannot read the argument {word!r}")
        return Argument(word)
    size = _SIZE.match(call[2])
    if size is None:
        raise ValueError(f"cannot read the size in {word!r}")
    if size["fixed"] is not None:
        kind, argument, scale, add = SizeKind.FIXED, 0, 0, int(size["fixed"])
    else:
        kind, argument = _HOW[size["how"]], int(size["argument"])
        scale, add = int(size["scale"] or 1), int(size["add"] or 0)
        if add < 0 and kind is not SizeKind.BITS:
            raise ValueError(f"cannot read the size in {word!r}")
    bounds = {"size_least" if size["bound"] == ">" else "size_most": int(size["limit"] or 0)}
    rule, rule_scale, rule_add, records = Rule.FULL, 1, 0, Records.NONE
    if call[3] in _RECORDS:
        rule, records = Rule.RETURNED, _RECORDS[call[3]]
    elif call[3] is None and call[1] in ("part", "inout", "inplace"):
        rule = Rule.ALWAYS  # it is known what the kernel has changed
    elif call[3] is not None and call[3] != "full":
        returned = _RULE.match(call[3])
        if returned is None:
            raise ValueError(f"cannot read the rule in {word!r}")
        rule, rule_scale, rule_add = Rule.RETURNED, int(returned["scale"] or 1), int(returned["add"] or 0)
    shape = _VECTORS.get(call[1]) or _STRUCTURES.get(call[1]) or Shape[call[1].upper()]
    writes = Writes[(call[4] or "after").upper()]
    return Argument(word, shape, kind, argument, scale, add, rule, rule_scale, rule_add, writes=writes, records=records, **bounds)


def _parse_arguments(words: list[str]) -> tuple[Argument, ...]:
    if len(words) > 6:
        raise ValueError("more than six arguments")
    return tuple(_parse_argument(word) for word in words)


def parse(text: str) -> list[Row]:
    """Rows in the table's order. Errors: ValueError naming the line."""
    rows: list[Row] = []
    variants: list[Variant] = []
    group = ""
    seen: set[int] = set()
    for line_number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            group = line[3:]
            continue
        body, _, note = line.partition("#")
        words = body.split()
        if not words:
            continue
        try:
            if words[0] == "when":
                first, *also = (_parse_condition(word) for word in words[1].split(","))
                variants.append(Variant(*first, _CLASSES[words[2]], _parse_arguments(words[3:]), note.strip(), *also))
                row = rows[-1]
                rows[-1] = Row(row.number, row.name, row.class_, row.arguments, row.note, row.group, tuple(variants))
            else:
                variants = []
                number = int(words[0])
                if number in seen:
                    raise ValueError(f"number {number} twice")
                seen.add(number)
                rows.append(Row(number, words[1], _CLASSES[words[2]], _parse_arguments(words[3:]), note.strip(), group))
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"calls.table line {line_number}: {error}") from error
    return rows


def _parse_condition(word: str) -> tuple[int, int, int]:
    """Argument, mask, value. Errors: ValueError."""
    condition = re.match(r"([0-5])(?:&(\w+))?=(\w+)$", word)
    if condition is None:
        raise ValueError(f"cannot read the condition {word!r}")
    return int(condition[1]), int(condition[2] or "0xffffffff", 0), int(condition[3], 0)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the table that this tree carries."""
    return tuple(parse(Path(__file__).with_name("calls.table").read_text()))


@functools.cache
def by_number() -> dict[int, Row]:
    return {row.number: row for row in rows()}


def row_of(number: int) -> Row:
    """Return the row of a call; for one that the table does not know a row that takes the process home."""
    known = by_number().get(number)
    return known or Row(number, f"call_{number}", Class.GO_HOME, (), "newer than the table", "")


def _c_argument(a: Argument) -> str:
    fields = (
        a.shape,
        a.size_kind,
        a.size_argument,
        a.rule,
        a.rule_scale,
        a.rule_add,
        a.size_scale,
        a.size_add,
        a.size_least,
        a.size_most,
        a.writes,
        a.records,
    )
    return "{" + ",".join(str(int(field)) for field in fields) + "}"


def _c_entry(class_: Class, arguments: tuple[Argument, ...]) -> str:
    shapes = ",".join(_c_argument(argument) for argument in arguments) or "{0}"
    return f"{{{int(class_)}, {len(arguments)}, {{{shapes}}}}}"


def c_table() -> str:
    """Return the text of calls.inc: `call_variants[]` and `call_rows[]`, indexed by number; what is absent goes home."""
    variants: list[str] = []
    entries: list[str] = []
    for row in sorted(rows(), key=lambda r: r.number):
        entry = _c_entry(row.class_, row.arguments)
        entries.append(f'    [{row.number}] = {{"{row.name}", {len(variants)}, {len(row.variants)}, {entry}}},')
        for v in row.variants:
            entry = _c_entry(v.class_, v.arguments)
            argument, mask, value = v.also
            conditions = f"{v.argument}, {argument}, {v.mask:#x}ULL, {v.value:#x}ULL, {mask:#x}ULL, {value:#x}ULL"
            variants.append(f"    {{{conditions}, {entry}}},")
    lines = [
        "/* Generated from calls.table. */",
        "static const struct call_variant call_variants[] = {",
        *variants,
        "};",
        "static const struct call_row call_rows[] = {",
        *entries,
        "};",
        "",
    ]
    return "\n".join(lines)


BEARING = frozenset({"fork", "vfork", "clone", "clone3"})
"""Calls that the filter catches as if home made them, and that bear a thread or a child where the process is
(remote/requests/births.py); only what would share what home and node cannot share takes it home."""


def taken_home() -> tuple[list[Row], list[Row]]:
    """Calls that bring the process home whatever their arguments are, and those that do with some values of them."""
    always: list[Row] = []
    sometimes: list[Row] = []
    for row in rows():
        classes = {row.class_, *(variant.class_ for variant in row.variants)}
        if classes == {Class.GO_HOME} and row.name not in BEARING:
            always.append(row)
        elif Class.GO_HOME in classes:
            sometimes.append(row)
    return always, sometimes


def _write(path: Path, text: str) -> None:
    """Replaces the file only when its text changes, in one step: make and parallel builds rely on both."""
    if path.exists() and path.read_text() == text:
        path.touch()
        return
    fresh = path.with_name(f"{path.name}.new.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes what is generated from the system-call table.")
    parser.add_argument("--c", type=Path, metavar="FILE", required=True, help="the C table")
    _write(parser.parse_args().c, c_table())


if __name__ == "__main__":
    main()
