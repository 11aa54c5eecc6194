"""All programs and packages that run are installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_all_programs_and_rooms_are_installed() -> None:
    install = (ROOT / "tools" / "install").read_text()
    braces = re.search(r"\.build/\{([^}]*)\}", install)
    assert braces is not None
    targets = re.findall(r"^TARGETS \+?:?=.*$", (ROOT / "kernel_helpers" / "Makefile").read_text(), re.MULTILINE)
    built = re.findall(r"\$\(BUILD\)/([\w.-]+)", " ".join(targets))
    assert len(built) >= 7
    assert set(built) <= set(braces[1].split(","))
    rooms = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["packages"]) - {"bench"}
    assert rooms <= set(re.findall(r"\w+", install))
