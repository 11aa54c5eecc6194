"""docs/calls.md, made of the tables of calls and settings: `python -m kernel_helpers.calls.documentation docs/calls.md`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from kernel_helpers.calls import settings
from kernel_helpers.calls.table import BEARING, Class, rows, taken_home


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_long_words=False), ""]


def documentation() -> str:
    """docs/calls.md: every call, by group."""
    words = {
        Class.LOCAL: "natively on the node",
        Class.KEYS: "natively on the node, which notes that memory has protection keys",
        Class.FORWARD: "by the stub at home",
        Class.BOTH: "at home, then natively",
        Class.GO_HOME: "brings the process home",
        Class.END: "ends the thread or process",
        Class.REFUSE: "ENOSYS",
        Class.SUM: "by the stub at home, and what was used away is added",
        Class.EXECUTE: "by the stub at home, and the new program comes here",
        Class.BIND: "by the stub at home, and the guest is bound by it",
        Class.RIGHTS: "by the stub at home, where rights count",
        Class.WATCH: "by the stub at home, where such signals wait from then on",
        Class.IDS: "natively on the node, if the process cannot have other ids; else by the stub at home",
    }
    always, sometimes = taken_home()
    lines = [
        "# System calls of a process that is away",
        "",
        "Generated from `kernel_helpers/calls/calls.table` by `python -m kernel_helpers.calls.documentation docs/calls.md`.",
        "A line that begins with ↳ is the same call with the argument values named.",
        "",
        *_paragraph(
            f"Of {len(rows())} calls {len(always)} bring the process home whatever their arguments are: "
            f"{', '.join(row.name for row in always)}."
        ),
        *_paragraph(f"{len(sometimes)} more do with some values of their arguments: {', '.join(row.name for row in sometimes)}."),
        *_paragraph(
            "So does any call with more than 64 MiB of buffers, or with a buffer that only begins in readable "
            "memory, one whose results do not all fit where they are wanted, or overlap, and one that the table does "
            "not know. Each is made at home, natively, and gives what it gives there."
        ),
    ]
    lines.pop()
    group = ""
    for row in rows():
        if row.group != group:
            group = row.group
            lines += ["", f"## {group}", "", "| call | where | arguments | note |", "| --- | --- | --- | --- |"]
        where = "where the process is" if row.name in BEARING else words[row.class_]
        lines.append(f"| {row.name} | {where} | {' '.join(a.word for a in row.arguments)} | {row.note} |")
        for variant in row.variants:
            lines.append(f"| ↳ {variant.note} | {words[variant.class_]} | {' '.join(a.word for a in variant.arguments)} | |")
    lines += settings.documentation()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(documentation())
