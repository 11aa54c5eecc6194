"""What imports what: arrows between folders run one way, as the pages say; imports for types alone count as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE = (ROOT / "node" / "README.md").read_text()


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


def test_files_of_node_import_each_other_in_no_circle() -> None:
    arrows = {
        str(path.relative_to(ROOT).with_suffix("")): {module for module in imported(path) if module.startswith("node/")}
        for path in (ROOT / "node").rglob("*.py")
    }
    while free := [path for path, used in arrows.items() if not used & set(arrows)]:
        for path in free:
            del arrows[path]
    assert not arrows
