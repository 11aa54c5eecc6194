"""Limits of sizes: a file 400 lines, a function 60, a folder 14 entries. Functions that are larger still are listed; the list
never grows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.arrows import ROOMS, ROOT

LINES, FUNCTION, ENTRIES = 400, 60, 14
FUNCTIONS_SO_FAR = {
    "kernel_helpers/link/ends/native.py: native": "one line for each function of the library",
    "kernel_helpers/mfs/client/main.c: main": "one line for each option",
    "kernel_helpers/mfs/server/serving/main.c: main": "one line for each option",
}


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".c", ".h"):
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The name of each function of a file, and its lines."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
    elif path.suffix == ".c":
        lines = path.read_text().splitlines()
        head = 0
        for number, line in enumerate(lines):
            if line == "{":
                head = next(at for at in range(number - 1, -1, -1) if lines[at][:1] not in (" ", "\t", ""))
            elif line == "}":
                yield lines[head].partition("(")[0].split()[-1].lstrip("*"), number - head + 1


def test_no_file_is_long() -> None:
    assert not [path for path in sources() if len(path.read_text().splitlines()) > LINES]


def test_no_function_is_long() -> None:
    found = {f"{path.relative_to(ROOT)}: {name}" for path in sources() for name, lines in functions(path) if lines > FUNCTION}
    assert found == set(FUNCTIONS_SO_FAR)


def test_no_folder_is_large() -> None:
    entries = {folder: [path for path in folder.iterdir() if path.name not in ("__pycache__", "__init__.py")] for folder in
               {path.parent for path in sources()}}  # fmt: skip
    assert not [str(folder.relative_to(ROOT)) for folder, found in entries.items() if len(found) > ENTRIES]


def test_functions_of_c_are_found() -> None:
    found = dict(functions(ROOT / "kernel_helpers/pages/written.c"))
    assert found["farhome_pages_written"] > 10 and "count_bytes" in found
