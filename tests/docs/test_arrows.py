"""Imports, includes and calls between packages: arrows run one way, as the pages say; imports for types alone count as well."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools.arrows import ROOT, between_folders, c_arrows, circles, imported, python_arrows

ROOMS = {
    room: (ROOT / room / "README.md").read_text() for room in ("node", "engine", "remote", "deputy", "monitor", "balancer", "cli", "bench")
}
"""Rooms whose folders may use what the tables of their pages say."""
HELPERS = (ROOT / "kernel_helpers" / "README.md").read_text()


def may_use(room: str) -> dict[str, set[str]]:
    """By the table of a room's page: which of its folders each may use, itself too."""
    table: dict[str, set[str]] = {}
    for folder, words in re.findall(r"^\| `(\w+)/` \| .* \| (.*?) ?\|$", ROOMS[room], re.MULTILINE):
        table[folder] = {folder, *(table if words == "all above" else words.split(", ") if words else ())}
    return table


@pytest.mark.parametrize("room", ROOMS)
def test_the_table_of_a_room_has_its_folders(room: str) -> None:
    files = [path.relative_to(ROOT / room).parts for path in (ROOT / room).rglob("*.py")]
    assert set(may_use(room)) == {parts[0] for parts in files if len(parts) > 1}
    above: set[str] = set()
    for folder, used in may_use(room).items():
        assert used <= above | {folder}, "a folder uses none that stands below it in the table"
        above.add(folder)


@pytest.mark.parametrize(("room", "folder"), [(room, folder) for room in ROOMS for folder in sorted(may_use(room))])
def test_folders_of_a_room_use_only_folders_listed_in_its_table(room: str, folder: str) -> None:
    allowed, used = may_use(room)[folder], set()
    for path in (ROOT / room / folder).rglob("*.py"):
        for module in imported(path):
            parts = module.split("/")
            if parts[0] == room and len(parts) > 2:
                assert parts[1] in allowed, f"{path.relative_to(ROOT)} imports {module}"
                used.add(parts[1])
    assert used >= allowed - {folder} or "all above" in ROOMS[room].partition(f"| `{folder}/`")[2].partition("\n")[0]


@pytest.mark.parametrize(("folder", "others"), [("keys", ["cluster/keys"]), ("front", ["cluster/keys", "cluster/front"])])
def test_folders_of_the_cluster_stand_on_one_another(folder: str, others: list[str]) -> None:
    for path in (ROOT / "node" / "cluster" / folder).glob("*.py"):
        for module in imported(path):
            if module.startswith("node/cluster"):
                assert module.removeprefix("node/").rpartition("/")[0] in others, f"{path.name} imports {module}"


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set(), "e": {"a", "f"}, "f": {"e"}}) == [{"b", "c"}, {"e", "f"}]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_files_of_python_import_each_other_in_no_circle() -> None:
    assert not circles(python_arrows())


def test_files_of_c_call_each_other_in_no_circle() -> None:
    calls = c_arrows()["kernel_helpers/link/home/calls.c"]
    assert calls >= {"kernel_helpers/link/home/launch.c", "kernel_helpers/link/home/threads/parts.h"}
    assert not circles(c_arrows())


def test_folders_of_c_call_each_other_in_no_circle() -> None:
    assert not circles(between_folders(c_arrows()))


def test_uses_between_packages_are_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.arrows", "wire/"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert not done.returncode and done.stdout.startswith("wire -> "), done.stderr
    nowhere = subprocess.run(
        [sys.executable, "-m", "tools.arrows", "nowhere"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert nowhere.returncode == 2 and len(nowhere.stderr.splitlines()) == 1


def test_folders_of_c_call_only_folders_listed_in_the_table() -> None:
    table = {
        folder: {folder, *re.split(r"[, ]+", words)} for folder, words in re.findall(r"^\| \[(\w+)/\].*\|(.*?)\|$", HELPERS, re.MULTILINE)
    }
    for file, used in c_arrows().items():
        room, folder, *_ = file.split("/")
        others = {other.split("/")[1] for other in used if other.startswith("kernel_helpers/")}
        if room == "kernel_helpers":
            assert others <= table[folder], f"{file} uses {others - table[folder]}"
