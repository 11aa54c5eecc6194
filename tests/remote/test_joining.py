"""Joining cgroups without a wait: nobody is moved for it, and nobody is left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.guests.cgroups import GuestGroups
from remote.sandbox import joining
from remote.sandbox.joining import QuickJoining
from remote.sandbox.sandbox import cgroup_directories
from tests.node.nodes import wait_for

GROUPS = Path("/proc/self/cgroup")
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


def is_running() -> bool:
    return any(thread.name == "joining" for thread in threading.enumerate())


@pytest.fixture
def directories() -> Iterator[list[str]]:
    """Those of a guest's group."""
    groups, key = GuestGroups(), f"joining-{os.getpid()}"
    found = cgroup_directories(groups.create(key))
    if not found:
        pytest.skip("no cgroup can be made here")
    yield found
    assert groups.remove(key)
    groups.remove_all()


@pytest.mark.parametrize("most", [3, 1000])
def test_nobody_is_moved(monkeypatch: pytest.MonkeyPatch, directories: list[str], most: int) -> None:
    """Neither to the group that is named nor, if somebody else moves this program meanwhile, back to the one that it was in."""
    written: list[str] = []
    monkeypatch.setattr(joining, "MOST", most)
    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda path, text: written.append(text) or write(path, text))
    before = GROUPS.read_text()
    quick = QuickJoining(directories)
    wait_for(lambda: len(written) >= 3)
    if most > 3:
        quick.close()
    wait_for(lambda: not is_running())
    assert GROUPS.read_text() == before
    assert not any((Path(directory) / "cgroup.procs").read_text() for directory in directories)
    assert str(os.getpid()) not in written
    assert not Path(f"/proc/{written[0]}").exists()  # it has been waited for


def test_where_no_group_may_be_written_to_nothing_is_done(tmp_path: Path) -> None:
    QuickJoining([str(tmp_path / "absent")])
    wait_for(lambda: not is_running())
    assert not (tmp_path / "absent").exists()
    assert not CHILDREN.read_text()


def test_where_the_guest_has_no_group_nothing_is_begun() -> None:
    QuickJoining([])
    assert not is_running()
