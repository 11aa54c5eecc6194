"""The limits that docs/limits.md tells are those of the code, and the tests that it names are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "limits.md").read_text().partition("\n## ")[0]
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+) \| `([\w/.]+)` `(\w+)` \| `([\w/.]+)` \|$", TEXT, re.MULTILINE)


def test_every_row_can_be_read() -> None:
    assert len(ROWS) == sum(line.startswith("| ") for line in TEXT.splitlines()) - 2  # the heads, and the line below them


def value_of(path: str, name: str) -> float:
    """What the code has."""
    if path.endswith(".py"):
        return float(getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name))
    found = re.search(rf"^#define {name} (\(?[\w <().]+\)?)", (ROOT / path).read_text(), re.MULTILINE)
    assert found is not None, f"{path} has no {name}"
    value = re.sub(r"(?<=\d)[uUlL]+", "", found[1]).strip()
    assert re.fullmatch(r"[\d <().]+", value), value
    return float(eval(value))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[3]} {row[4]}")
def test_the_value_is_that_of_the_code(row: tuple[str, ...]) -> None:
    _, _, most, path, name, test = row
    assert value_of(path, name) == float(most)
    assert (ROOT / test).exists()
