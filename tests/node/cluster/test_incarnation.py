"""Incarnation numbers grow, even if the clock goes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.cluster import incarnation


def test_every_life_has_a_greater_number_though_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state" / "life"
    lives = []
    for now in (1000.0, 2000.9, 2000.9, 500.0, 5000.0):
        monkeypatch.setattr(incarnation.time, "time", lambda now=now: now)
        lives.append(incarnation.begin(path))
    assert lives == [1000, 2000, 2001, 2002, 5000]


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "life"
    path.write_text("nonsense")
    assert incarnation.begin(path) > 1_600_000_000
    assert path.read_text().strip().isdigit()
