"""tools/setup and what it leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.access import needs_ordinary_users_here

ROOT = Path(__file__).resolve().parent.parent.parent


def test_with_nothing_to_do_it_is_quick_and_needs_no_network() -> None:
    subprocess.run([ROOT / "tools" / "setup"], check=True, timeout=600)
    started = time.monotonic()
    result = subprocess.run(["unshare", "--net", ROOT / "tools" / "setup"], check=True, timeout=60, capture_output=True, text=True)
    assert time.monotonic() - started < 2
    assert (result.stdout, result.stderr) == ("", "")


def test_criu_works_on_this_kernel() -> None:
    result = subprocess.run([ROOT / ".build" / "criu", "check"], timeout=60, capture_output=True, text=True, check=False)
    assert "Looks good" in result.stdout + result.stderr


def test_the_python_of_the_environment_is_the_systems() -> None:
    assert sys.version_info >= (3, 11)
    assert Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()


def fingerprint(clone: Path) -> str:
    """Returns the value that tools/setup of that clone would compare with its stamp."""
    program = "set --; source <(sed -n '/^root=/p; /^fingerprint() {/,/^}/p' tools/setup); root=$PWD; fingerprint"
    done = subprocess.run(["bash", "-euc", program], cwd=clone, check=True, timeout=30, capture_output=True, text=True)
    assert len(done.stdout.strip()) == 64
    return done.stdout


def rules(database: str) -> dict[str, set[str]]:
    """Returns the sources of each target in the output of `make -p`, in normal paths."""
    found: dict[str, set[str]] = {}
    for line in database.splitlines():
        target, colon, sources = line.partition(":")
        if colon and not line.startswith(("#", "\t", " ")) and "=" not in line:
            made = found.setdefault(os.path.normpath(ROOT / "kernel_helpers" / target), set())
            made |= {os.path.normpath(ROOT / "kernel_helpers" / word) for word in sources.replace("|", " ").split()}
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", ["one of each kind", pytest.param("all", marks=pytest.mark.soak)])
def test_a_change_of_any_source_causes_a_new_build(tmp_path: Path, which: str) -> None:
    """Each file that make reads or runs, by what make itself says, is in the fingerprint, and what make builds depends on it. Of a kind are
    sources of one folder whose names end alike."""
    would_build = ["make", "-q", "-C", ROOT / "kernel_helpers"]
    assert subprocess.run(would_build, timeout=60, check=False).returncode == 0
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "kernel_helpers", clone / "kernel_helpers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "cli", clone / "cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tools", clone / "tools")
    shutil.copy(ROOT / "pyproject.toml", clone)
    list_all = ["make", "-pnq", "-C", ROOT / "kernel_helpers"]
    database = subprocess.run(list_all, timeout=60, capture_output=True, text=True, check=False).stdout
    words = {Path(os.path.normpath(word)) for word in database.replace(":", " ").split() if word.startswith(f"{ROOT}/")}
    there = {clone / path.relative_to(ROOT) for path in words if ROOT / ".build" not in path.parents}
    sources = {path for path in there if path.is_file()} | {clone / "pyproject.toml", clone / "tools/setup", clone / "tools/criu"}
    names = {path.name for path in sources}
    assert {"calls.table", "table.py", "resident.lds", "Makefile", "home.c", "slot.h", "mosrun.c"} <= names
    assert len(names) > 100
    made_from, needed, reached = rules(database), ["all"], set[str]()
    while needed:
        target = os.path.normpath(ROOT / "kernel_helpers" / needed.pop())
        if target not in reached:
            reached.add(target)
            needed += made_from.get(target, ())
    before = fingerprint(clone)
    assert fingerprint(clone) == before
    built = {path for path in sources if path.relative_to(clone).parts[0] in ("kernel_helpers", "cli")}
    kinds = {(path.parent, path.suffix if path in built else path.name): path for path in sorted(sources)}
    for path in sorted(sources if which == "all" else kinds.values()):
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        assert fingerprint(clone) != before, f"a change of {path.relative_to(clone)} is not noticed"
        path.write_bytes(text)
    for path in built:
        assert str(ROOT / path.relative_to(clone)) in reached, f"make does not build from {path.relative_to(clone)}"
    assert fingerprint(clone) == before


@pytest.mark.parametrize("user", ["root", "farhome-a"])
def test_pycriu_reads_images_from_any_directory(user: str) -> None:
    if user != "root":
        needs_ordinary_users_here()
    program = (
        "from pycriu import images\n"
        "image = {'magic': 'PSTREE', 'entries': [{'pid': 7, 'ppid': 0, 'pgid': 7, 'sid': 7, 'threads': [7, 8]}]}\n"
        "assert images.loads(images.dumps(image)) == image\n"
    )
    become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
    subprocess.run([*become, ROOT / ".venv/bin/python", "-I", "-c", program], check=True, timeout=30, cwd="/")


@pytest.mark.soak
def test_criu_can_be_had_anew(tmp_path: Path) -> None:
    environment = {**os.environ, "FARHOME_CRIU_CACHE": str(tmp_path / "cache")}
    (tmp_path / "build").mkdir()
    subprocess.run([ROOT / "tools" / "criu", tmp_path / "build"], check=True, timeout=600, env=environment)
    result = subprocess.run([tmp_path / "build" / "criu", "check"], timeout=60, capture_output=True, text=True, check=False)
    assert "Looks good" in result.stdout + result.stderr
    assert (tmp_path / "build" / "pycriu" / "pycriu" / "images").is_dir()
