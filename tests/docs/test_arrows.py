"""What imports, includes and calls what: arrows run one way, as the pages say; imports for types alone count as well."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE = (ROOT / "node" / "README.md").read_text()
HELPERS = (ROOT / "kernel_helpers" / "README.md").read_text()
OBJECTS = ROOT / ".build" / "objects"
ALONE = {"kernel_helpers/link/home/resident.c"}
"""Is no object: it becomes a flat piece of code, and can call nothing."""


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, as paths of the tree."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            folder = statement.module.replace(".", "/")
            for name in statement.names:
                yield f"{folder}/{name.name}" if (ROOT / folder / f"{name.name}.py").exists() else folder
        elif isinstance(statement, ast.Import):
            for name in statement.names:
                yield name.name.replace(".", "/")


def may_use() -> dict[str, set[str]]:
    """By the table of node/README.md: which folders of node/ each may use, itself too."""
    table: dict[str, set[str]] = {}
    for folder, words in re.findall(r"^\| `(\w+)/` \| .* \| (.*?) ?\|$", NODE, re.MULTILINE):
        table[folder] = {folder, *(table if words == "all above" else words.split(", ") if words else ())}
    return table


def test_the_table_of_node_has_its_folders() -> None:
    folders = {path.parent.name for path in (ROOT / "node").glob("*/*.py")} | {
        path.parents[1].name for path in (ROOT / "node").glob("*/*/*.py")
    }
    assert set(may_use()) == folders
    above: set[str] = set()
    for folder, used in may_use().items():
        assert used <= above | {folder}, "a folder uses none that stands below it in the table"
        above.add(folder)


@pytest.mark.parametrize("folder", sorted(may_use()))
def test_folders_of_node_use_what_the_table_says(folder: str) -> None:
    allowed, used = may_use()[folder], set()
    for path in (ROOT / "node" / folder).rglob("*.py"):
        for module in imported(path):
            parts = module.split("/")
            if parts[0] == "node":
                assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {module}"
                used.add(parts[1])
    assert used >= allowed - {folder} or "all above" in NODE.partition(f"| `{folder}/`")[2].partition("\n")[0]


@pytest.mark.parametrize(("folder", "others"), [("keys", ["cluster/keys"]), ("front", ["cluster/keys", "cluster/front"])])
def test_folders_of_the_cluster_stand_on_one_another(folder: str, others: list[str]) -> None:
    for path in (ROOT / "node" / "cluster" / folder).glob("*.py"):
        for module in imported(path):
            if module.startswith("node/cluster"):
                assert module.removeprefix("node/").rpartition("/")[0] in others, f"{path.name} imports {module}"


def circle(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave those arrows that are part of a circle, or lead from one circle to another."""
    arrows = dict(arrows)
    while ends := {file for file, used in arrows.items() if not used & set(arrows)} | (set(arrows) - set().union(*arrows.values())):
        for file in ends:
            del arrows[file]
    return {file: used & set(arrows) for file, used in arrows.items()}


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a"}}) == {"b": {"c"}, "c": {"b"}}
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_files_of_node_import_each_other_in_no_circle() -> None:
    assert not circle(
        {
            str(path.relative_to(ROOT).with_suffix("")): {module for module in imported(path) if module.startswith("node/")}
            for path in (ROOT / "node").rglob("*.py")
        }
    )


@functools.cache
def c_arrows() -> dict[str, set[str]]:
    """Which files of C each of them includes, and which it calls or takes variables of, by what the linker is told."""
    arrows: dict[str, set[str]] = {}
    for room in ("kernel_helpers", "cli"):
        for path in (ROOT / room).rglob("*.[ch]"):
            names = re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)
            paths = (base / name for name in names for base in (ROOT / "kernel_helpers", path.parent))
            arrows[str(path.relative_to(ROOT))] = {str(path.relative_to(ROOT)) for path in paths if path.exists()}
    objects = {str(OBJECTS / file.removesuffix(".c")) + ".o": file for file in arrows if file.endswith(".c") and file not in ALONE}
    found = subprocess.run(["nm", "--print-file-name", "--extern-only", *objects], check=False, capture_output=True, text=True)
    assert not found.returncode and not found.stderr, found.stderr
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


def test_files_of_c_call_each_other_in_no_circle() -> None:
    calls = c_arrows()["kernel_helpers/link/home/calls.c"]
    assert calls >= {"kernel_helpers/link/home/launch.c", "kernel_helpers/link/home/parts.h"}
    assert not circle(c_arrows())


def test_folders_of_c_call_each_other_in_no_circle() -> None:
    arrows: dict[str, set[str]] = defaultdict(set)
    for file, used in c_arrows().items():
        folder = file.rpartition("/")[0]
        arrows[folder] |= {other.rpartition("/")[0] for other in used} - {folder}
    assert not circle(dict(arrows))


def test_folders_of_c_call_what_the_table_says() -> None:
    table = {
        folder: {folder, *re.split(r"[, ]+", words)} for folder, words in re.findall(r"^\| \[(\w+)/\].*\|(.*?)\|$", HELPERS, re.MULTILINE)
    }
    for file, used in c_arrows().items():
        room, folder, *_ = file.split("/")
        others = {other.split("/")[1] for other in used if other.startswith("kernel_helpers/")}
        if room == "kernel_helpers":
            assert others <= table[folder], f"{file} uses {others - table[folder]}"
