"""The journeys of docs/internals/journeys.md go where the code goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.arrows import ROOT, c_arrows, python_arrows

TEXT = (ROOT / "docs" / "internals" / "journeys.md").read_text()
JOURNEYS = {journey.partition("\n")[0]: journey for journey in TEXT.split("\n## ")[1:]}
CALLBACKS = set(re.findall(r"[\w./]+\.(?:c|py)\b", " ".join(re.findall(r"^Callbacks: (.*?)(?:\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL))))
"""Files that are called, or asked, by what does not name them."""


def parts(journey: str) -> Iterator[list[str]]:
    """Yield the files on the way, process by process. A file lies below the folder that the journey names, or beside the one before it."""
    words, block = JOURNEYS[journey].split("```")[:2]
    below = [ROOT / folder for folder in re.findall(r"[Ff]iles (?:are those )?of `([\w/]+)`", words)]
    bases = [ROOT, *below, *(ROOT / room for room in ("kernel_helpers/link", "remote", "deputy", "engine", "balancer"))]
    part: list[str] = []
    for line in block.splitlines():
        if line.startswith(" =>"):
            yield part
            part = []
        beside = bases
        for word in re.findall(r"[\w./]+\.(?:c|h|py)\b", line):
            found = next((base / word for base in beside if (base / word).exists()), None)
            assert found is not None, f"{journey}: there is no {word}"
            part.append(str(found.resolve().relative_to(ROOT)))
            beside = [found.parent, *bases]
    yield part


def uses(file: str) -> set[str]:
    arrows = c_arrows() if Path(file).suffix == ".c" else python_arrows()
    return set(arrows[file])


def test_there_are_five_of_them() -> None:
    assert list(JOURNEYS) == ["A forwarded call", "A move out", "An exec away", "A read on another node", "A gossip datagram"]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_each_file_is_used_by_one_before_it_or_a_callback(journey: str) -> None:
    assert sum(len(part) for part in parts(journey)) > 8
    for part in parts(journey):
        for place, file in enumerate(part[1:], start=1):
            used = set[str]().union(*(uses(before) for before in part[:place]))
            known = file in used or file.removesuffix(".c") + ".h" in used
            assert known or any(f"/{file}".endswith(f"/{name}") for name in CALLBACKS), f"{journey}: nothing before it uses {file}"
