"""Members of a program's loop: when one that has finished is ended."""

from __future__ import annotations

import logging
import os
import selectors
from collections.abc import Callable
from pathlib import Path

import pytest

from wire.local import LocalServer
from wire.tree import LATE_MOST, Tree

pytestmark = pytest.mark.timeout(60)


class Member:
    """It finishes when `work` says so, which is called in each turn."""

    def __init__(self, tree: Tree[Member], log: list[str], name: str, path: Path, work: Callable[[], bool]) -> None:
        self.server = LocalServer(path / name, tree.selector, lambda message: None, waits=True)
        self.finished = self.lives_on = self.is_at_rest = False
        self._log, self._name, self._work = log, name, work
        tree.members.append(self)

    def tick(self) -> None:
        assert not self.finished
        self.finished = self._work()

    def end(self) -> None:
        self._log.append(f"{self._name} ends")


@pytest.fixture
def tree() -> Tree[Member]:
    return Tree(logging.getLogger("deputy"))


def test_what_its_end_brings_about_for_others_comes_before_it_is_ended(tree: Tree[Member], tmp_path: Path) -> None:
    log: list[str] = []
    reader, writer = os.pipe()

    def heard() -> None:
        log.append(f"b hears {os.read(reader, 1).decode()}")

    tree.selector.register(reader, selectors.EVENT_READ, heard)
    Member(tree, log, "a", tmp_path, lambda: os.write(writer, b"x") == 1)
    Member(tree, log, "b", tmp_path, lambda: "a ends" in log)
    tree.live()
    assert log == ["b hears x", "a ends", "b ends"]
    tree.close()
    os.close(reader)
    os.close(writer)


def test_where_all_have_finished_nothing_is_waited_for(tree: Tree[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.tree.LATER", 3600.0)
    log: list[str] = []
    for name in "abc":
        Member(tree, log, name, tmp_path, lambda: True)
    tree.live()
    assert log == ["a ends", "b ends", "c ends"]
    tree.close()


def test_of_many_the_first_are_ended_at_once(tree: Tree[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.tree.LATER", 3600.0)
    log: list[str] = []
    for number in range(LATE_MOST + 5):
        Member(tree, log, str(number), tmp_path, lambda: True)
    Member(tree, log, "last", tmp_path, lambda: len(log) > 0)
    tree.live()
    assert log[:5] == [f"{number} ends" for number in range(5)]
    assert len(log) == LATE_MOST + 6
    tree.close()
