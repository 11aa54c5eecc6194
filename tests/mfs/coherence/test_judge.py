"""The judge counts what the contract lets come later apart, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mfs.coherence.controller import PATIENCE, WORD, Coherence, Place
from tests.mfs.coherence.model import Change

GONE = ["stat", "gone"]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Coherence]:
    """Home and another actor, each in a directory of its own: the test decides when the other one gets home's changes."""
    for name in ("home", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other/gone").touch()
    with Coherence([Place(name, str(tmp_path / name)) for name in ("home", "other")]) as coherence:
        coherence.by_home.clear()
        yield coherence


def judged(coherence: Coherence, tmp_path: Path, after: float, *changes: Change) -> tuple[int, int]:
    """Makes changes at home that reach the other actor after `after` seconds. Returns the number of stale checks and of those in time."""
    for change in changes:
        coherence._changed_by_home(change)
    by_home = coherence._under_way()
    assert by_home is not None
    other = coherence.actors[1]
    hears = threading.Timer(after, (tmp_path / "other/gone").unlink)
    hears.start()
    (seen,) = other.check([GONE])
    coherence._judge(coherence.tree, other, GONE, seen, "rounds later", coherence.home, by_home)
    hears.join()
    return len(coherence.report.stale), len(coherence.report.in_time)


@pytest.mark.parametrize("changes", [[["unlink", "gone"]], [["unlink", "gone"], ["ftruncate", 1, 5]]], ids=["the last", "one before"])
def test_word_of_a_name_may_come_later(apart: Coherence, tmp_path: Path, changes: list[Change]) -> None:
    assert judged(apart, tmp_path, 0.2, *changes) == (0, 1)


def test_word_that_comes_too_late_is_stale(apart: Coherence, tmp_path: Path) -> None:
    assert judged(apart, tmp_path, (WORD / 1e3 + PATIENCE) / 2, ["unlink", "gone"]) == (1, 0)


def test_old_changes_do_not_count_as_under_way(apart: Coherence) -> None:
    apart._changed_by_home(["unlink", "gone"])
    assert apart._under_way() == ["unlink", "gone"]
    apart.by_home = [(time.monotonic() - WORD / 1e3, change) for _, change in apart.by_home]
    assert apart._under_way() is None
