"""Joining cgroups without a wait: where this process is, and that it stays there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from remote.sandbox import joining
from remote.sandbox.joining import QuickJoining, own_groups
from tests.node.nodes import wait_for

GROUPS = Path("/proc/self/cgroup")


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "joining"]


@pytest.mark.parametrize(
    ("mounts", "groups", "found"),
    [
        ("cgroup2 /{} cgroup2 rw 0 0", "0::/a", ["a"]),
        ("cgroup2 /{} cgroup2 rw 0 0", "0::/absent", []),
        ("cgroup /{} cgroup rw,cpu,cpuacct 0 0", "3:cpu,cpuacct:/a/b\n0::/a", ["a/b"]),
        ("cgroup /{} cgroup rw,name=systemd 0 0", "1:name=systemd:/a", ["a"]),
        ("cgroup /{} cgroup rw,memory 0 0", "3:cpu:/a", []),
        ("tmpfs /{} tmpfs rw 0 0", "0::/a", []),
    ],
)
def test_the_own_group_is_found_in_each_hierarchy(tmp_path: Path, mounts: str, groups: str, found: list[str]) -> None:
    for name in ("a", "a/b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "mounts").write_text(mounts.format(str(tmp_path)[1:]) + "\n")
    (tmp_path / "groups").write_text(groups + "\n")
    listed = list(own_groups(str(tmp_path / "mounts"), str(tmp_path / "groups")))
    assert listed == [tmp_path / name / "cgroup.procs" for name in found]


def test_this_process_stays_where_it_is_until_all_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    before = GROUPS.read_text()
    quick = QuickJoining()
    quick.close()
    wait_for(lambda: not running())
    monkeypatch.setattr(joining, "MOST", 3)
    QuickJoining()
    wait_for(lambda: not running())
    assert GROUPS.read_text() == before


def test_where_no_group_may_be_written_to_nothing_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(joining, "own_groups", lambda: iter([tmp_path / "absent" / "cgroup.procs"]))
    QuickJoining()
    wait_for(lambda: not running())
    assert not (tmp_path / "absent").exists()
