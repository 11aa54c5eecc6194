"""Programs that people run, and the files that they work on: at home, in memory, each with a tree of its own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.common.result import BenchFailed
from bench.common.sources import c_file

HEADERS = Path("/usr/include/linux")
HEADERS_MOST = 600
FILES = 200
"""Small files, and names."""
SMALL = 3000
"""Bytes."""
FUNCTIONS = 32
"""Of the C file, which `gcc -O2` compiles in about half a second."""
NEEDLE = "needle_of_the_bench"
REPOSITORY = """
cd git && git init -q && git add . && exec git -c user.name=bench -c user.email=bench@localhost commit -q -m headers
"""
"""What makes one of a tree of its own, run in the node: git does not work in a directory that it cannot name."""
LOOP = 'i=0; while [ "$i" -lt 50 ]; do i=$(expr "$i" + 1); done'


@dataclass(frozen=True)
class Program:
    """One of them: its words, and what of them is installed."""

    name: str
    words: tuple[str, ...]


PROGRAMS = (
    Program("grep -r", ("grep", "-r", NEEDLE, "grep")),
    Program("tar c", ("tar", "cf", "tree.tar", "tar")),
    Program("git status", ("git", "-C", "git", "status", "--short")),
    Program("gcc -O2 -c", ("gcc", "-O2", "-c", "-o", "file.o", "file.c")),
    Program("python", ("python3", "-c", "import json, ssl, asyncio")),
    Program("sqlite3", ("sh", "-c", "rm -f base; exec sqlite3 base < transactions")),
    Program("shell loop", ("sh", "-c", LOOP)),
)


def prepare(place: Path) -> None:
    """Make all files but those of REPOSITORY, in a directory of a node as the machine sees it. Errors: BenchFailed."""
    for program in PROGRAMS:
        if shutil.which(program.words[0]) is None:
            raise BenchFailed(f"{program.words[0]} is not installed")
    place.mkdir(mode=0o755)
    headers = sorted(path for path in HEADERS.rglob("*.h") if path.is_file())[:HEADERS_MOST]
    if not headers:
        raise BenchFailed(f"there are no headers in {HEADERS}")
    for tree in ("grep", "tar", "git"):
        for header in headers:
            copy = place / tree / header.relative_to(HEADERS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, copy)
    (place / "grep" / "needle.h").write_text(f"#define {NEEDLE}\n")
    for tree in ("read", "stat"):
        (place / tree).mkdir()
        for number in range(FILES):
            (place / tree / str(number)).write_bytes(b"x" * SMALL)
    (place / "absent").mkdir()
    (place / "file.c").write_text(c_file("file", FUNCTIONS))
    inserts = "".join(f"insert into t values ({number}, 'row {number}');\n" for number in range(300))
    (place / "transactions").write_text(f"create table t(a, b);\n{inserts}")
