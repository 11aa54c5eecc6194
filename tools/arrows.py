"""Prints what uses what: `python -m tools.arrows [FOLDER]`, the folders that each folder uses, and every circle of files.

Python by its imports, those for types alone included; C by its includes and by the symbols of the objects that tools/setup builds. The
exit status is 1 if there is a circle. FOLDER: of its files alone.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "balancer", "bench", "checkpoint", "cli", "deputy", "engine", "kernel_helpers", "lab", "mfs", "monitor", "node", "remote", "tools",
    "wire",
)  # fmt: skip
_OBJECTS = ROOT / ".build" / "objects"
_FLAT = {"kernel_helpers/link/home/resident.c"}
"""Is no object: it becomes a flat piece of code, and can call nothing."""

Arrows = Mapping[str, set[str]]
"""Files, by their paths below the root, and those that each uses."""


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, as paths of the tree without a suffix."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            folder = statement.module.replace(".", "/")
            for name in statement.names:
                yield f"{folder}/{name.name}" if (ROOT / folder / f"{name.name}.py").exists() else folder
        elif isinstance(statement, ast.Import):
            for name in statement.names:
                yield name.name.replace(".", "/")


@functools.cache
def python_arrows() -> Arrows:
    """Return which files of Python import which."""
    files = {str(path.relative_to(ROOT)): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {file: {f"{module}.py" for module in imported(path)} & set(files) - {file} for file, path in files.items()}


@functools.cache
def c_arrows() -> Arrows:
    """Return which files of C each of them includes, and which it calls or takes variables of. Errors: RuntimeError: what they are built to
    is not there."""
    arrows: dict[str, set[str]] = {}
    for room in ("kernel_helpers", "cli"):
        for path in (ROOT / room).rglob("*.[ch]"):
            names = re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)
            paths = (base / name for name in names for base in (ROOT / "kernel_helpers", path.parent))
            arrows[str(path.relative_to(ROOT))] = {str(path.relative_to(ROOT)) for path in paths if path.exists()}
    objects = {str(_OBJECTS / file.removesuffix(".c")) + ".o": file for file in arrows if file.endswith(".c") and file not in _FLAT}
    found = subprocess.run(["nm", "--print-file-name", "--extern-only", *objects], check=False, capture_output=True, text=True)
    if found.returncode or found.stderr:
        raise RuntimeError(f"the objects are not those of these files: run tools/setup first ({found.stderr.strip()[:300]})")
    symbols = [(objects[name], words) for name, _, words in (line.partition(":") for line in found.stdout.splitlines())]
    defined: dict[str, set[str]] = defaultdict(set)
    for file, words in symbols:
        *_, kind, symbol = words.split()
        if kind != "U":
            defined[symbol].add(file)
    for file, words in symbols:
        *_, kind, symbol = words.split()
        if kind == "U":
            arrows[file] |= defined[symbol]
    return arrows


def between_folders(arrows: Arrows) -> Arrows:
    """Return which folders use which."""
    folders: dict[str, set[str]] = defaultdict(set)
    for file, used in arrows.items():
        folder = file.rpartition("/")[0]
        folders[folder] |= {other.rpartition("/")[0] for other in used} - {folder}
    return dict(folders)


def circles(arrows: Arrows) -> list[set[str]]:
    """Return the sets of files that each reach one another (their strongly connected components of more than one)."""
    reached = {file: _reached(arrows, file) for file in arrows}
    found = {frozenset({file, *(other for other in far if file in reached.get(other, ()))}) for file, far in reached.items()}
    return sorted((set(circle) for circle in found if len(circle) > 1), key=min)


def _reached(arrows: Arrows, file: str) -> set[str]:
    reached: set[str] = set()
    ahead = [file]
    while ahead:
        new = arrows.get(ahead.pop(), set()) - reached
        reached |= new
        ahead += new
    return reached


def main(words: list[str]) -> int:
    """Print; return the exit status."""
    within = words[0].strip("/") if words else ""
    arrows = {file: used for some in (python_arrows(), c_arrows()) for file, used in some.items() if file.startswith(within)}
    if not arrows:
        print(f"arrows: there is no file below {within}", file=sys.stderr)
        return 2
    for folder, used in sorted(between_folders(arrows).items()):
        print(f"{folder} -> {', '.join(sorted(used)) or 'nothing'}")
    found = circles(arrows)
    for circle in found:
        print(f"circle of {len(circle)}: {', '.join(sorted(circle))}")
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RuntimeError as error:
        print(f"arrows: {error}", file=sys.stderr)
        sys.exit(2)
