"""The journeys of docs/internals/journeys.md go where the code goes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.arrows import ROOT, c_arrows, python_arrows

TEXT = (ROOT / "docs" / "internals" / "journeys.md").read_text()
JOURNEYS = {journey.partition("\n")[0]: journey for journey in TEXT.split("\n## ")[1:]}
CALLBACKS = set(re.findall(r"[\w./]+\.(?:c|py)\b", " ".join(re.findall(r"^Callbacks: (.*?)(?:\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL))))
"""Files that are called by code that does not name them."""


def parts(journey: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the files on the way, process by process, with its name. A file lies below the folder that the journey names, or beside the
    one before it."""
    words, block = JOURNEYS[journey].split("```")[:2]
    below = [ROOT / folder for folder in re.findall(r"[Ff]iles (?:are those )?of `([\w/]+)`", words)]
    bases = [ROOT, *below, *(ROOT / room for room in ("kernel_helpers/link", "remote", "deputy", "engine", "balancer"))]
    process = ""
    part: list[str] = []
    for line in block.splitlines():
        label = line[:13].removeprefix(" =>").strip()
        if label:
            yield process, part
            process, part = label, []
        beside = bases
        for word in re.findall(r"[\w./]+\.(?:c|h|py)\b", line):
            found = next((base / word for base in beside if (base / word).exists()), None)
            assert found is not None, f"{journey}: there is no {word}"
            part.append(str(found.resolve().relative_to(ROOT)))
            beside = [found.parent, *bases]
    yield process, part


def uses(file: str) -> set[str]:
    arrows = c_arrows() if Path(file).suffix == ".c" else python_arrows()
    return set(arrows[file])


def test_these_are_described() -> None:
    assert list(JOURNEYS) == [
        "A forwarded call",
        "A move out",
        "Memory that goes ahead",
        "An exec away",
        "A read on another node",
        "A gossip datagram",
    ]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_each_file_is_used_by_one_before_it_or_a_callback(journey: str) -> None:
    assert sum(len(part) for _, part in parts(journey)) > 8
    passed: dict[str, list[str]] = defaultdict(list)
    for process, part in parts(journey):
        for place, file in enumerate(part):
            used = set[str]().union(*(uses(before) for before in passed[process]))
            passed[process].append(file)
            if not place:
                continue
            known = file in used or file.removesuffix(".c") + ".h" in used
            assert known or any(f"/{file}".endswith(f"/{name}") for name in CALLBACKS), f"{journey}: nothing before it uses {file}"


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_file_to_which_a_process_returns_is_named_at_the_end(journey: str) -> None:
    end = set(re.findall(r"`([\w./]+\.(?:c|py))`", JOURNEYS[journey].split("```")[2]))
    passed: dict[str, list[str]] = defaultdict(list)
    for process, part in parts(journey):
        for file in part:
            again = file in passed[process][:-1]
            passed[process].append(file)
            assert not again or any(f"/{file}".endswith(f"/{name}") for name in end), f"{journey}: {process} returns to {file}"


@pytest.mark.parametrize("journey", JOURNEYS)
def test_functions_and_messages_that_are_named_are_in_its_files(journey: str) -> None:
    files = {file for _, part in parts(journey) for file in part}
    for name in re.findall(r"[\w/]+\.(?:c|py)\b", JOURNEYS[journey].split("```")[2]):
        files |= {file for file in (*c_arrows(), *python_arrows()) if f"/{file}".endswith(f"/{name}")}
    words = {word for file in files for word in re.findall(r"\w+", (ROOT / file).read_text())}
    named = re.findall(r"`(?:\w+\.)?(\w+)`", re.sub(r"`[\w./]+\.(?:c|py)`", "", JOURNEYS[journey]))
    assert not set(named) - words
