"""Guests' control groups as the kernel here has them: bounds, standing still, and the time of processors that they tell."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.guests.cgroups import BASE, REMOTES, RESTING, TOP, Bounds, GuestGroups, hierarchies
from tests.node.nodes import wait_for

KEY = "test-4194304"


@pytest.fixture
def groups() -> Iterator[GuestGroups]:
    made = GuestGroups()
    made.prepare()
    made.create(KEY)
    yield made
    made.freeze(KEY, False)
    made.bound(Bounds())
    wait_for(lambda: made.remove(KEY), message="the group is empty")
    made.remove_all()


@pytest.fixture
def burner(groups: GuestGroups) -> Iterator[subprocess.Popen[bytes]]:
    """Something that computes, in the guest's group."""
    process = subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
    for directory in groups.directories(f"{BASE}/{KEY}"):
        (directory / "cgroup.procs").write_text(str(process.pid))
    yield process
    process.kill()
    groups.freeze(KEY, False)
    process.wait(10)


def _state(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(words[11]) + float(words[12])


def test_what_is_frozen_uses_nothing_and_goes_on_afterwards(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: (groups.cpu(KEY) or 0) > 0.01, message="it computes")
    assert groups.freeze(KEY, True)
    wait_for(lambda: groups.stands_still(KEY), message="it stands still")
    before = groups.cpu(KEY)
    assert before is not None and groups.cpu() is not None
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        assert groups.cpu(KEY) == before
    groups.freeze(KEY, False)
    wait_for(lambda: (groups.cpu(KEY) or 0) > before, message="it goes on")
    assert not groups.stands_still(KEY)


@pytest.mark.skipif("unified" not in hierarchies(), reason="what version 1 has frozen cannot be killed")
def test_what_is_frozen_can_be_killed(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    groups.freeze(KEY, True)
    wait_for(lambda: groups.stands_still(KEY), message="it stands still")
    burner.kill()
    assert burner.wait(10) == -9


def test_version_1_freezes_where_there_is_no_other(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    if "freezer" not in hierarchies():
        pytest.skip("no freezer of version 1 here")
    groups = GuestGroups(point for name, point in hierarchies().items() if name != "unified")
    assert groups.freeze(KEY, True)
    wait_for(lambda: groups.stands_still(KEY), message="it stands still")
    groups.freeze(KEY, False)
    wait_for(lambda: not groups.stands_still(KEY), message="it goes on")


def _weight(group: str = TOP) -> str:
    return _read("cpu.shares", group) or _read("cpu.weight", group)


def _groups_of(pid: int) -> set[str]:
    return {line.rpartition(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


def test_who_supervises_guests_is_beside_them_or_has_less_weight_than_the_owner(groups: GuestGroups) -> None:
    if not any((point / RESTING).exists() for point in set(hierarchies().values())):
        pytest.skip("no cpu controller here")
    assert _weight(RESTING) in ("10240", "1000")
    program = subprocess.Popen(["sleep", "60"])
    try:
        for point in set(hierarchies().values()):
            for name in (RESTING, REMOTES):
                if (point / name).exists():
                    (point / name).rmdir()  # as a daemon does that ends
        groups.place_remote(program.pid, True)
        assert f"/{RESTING}" in _groups_of(program.pid)
        assert not any("memory" in line and RESTING in line for line in Path(f"/proc/{program.pid}/cgroup").read_text().splitlines())
        groups.weigh_remotes(True)
        groups.place_remote(program.pid, False)
        assert f"/{REMOTES}" in _groups_of(program.pid) and f"/{RESTING}" not in _groups_of(program.pid)
        assert _weight(REMOTES) in ("205", "20")
        groups.weigh_remotes(False)
        assert _weight(REMOTES) in ("1024", "100")
    finally:
        program.kill()
        program.wait(10)
    wait_for(lambda: groups.remove_all() or not any((point / REMOTES).exists() for point in set(hierarchies().values())))


def test_one_guest_has_more_weight_than_others_while_it_is_put_first(groups: GuestGroups) -> None:
    group = f"{BASE}/{KEY}"
    usual = _weight(group)
    if not usual:
        pytest.skip("no cpu controller here")
    groups.put_first(KEY, True)
    assert _weight(group) in ("10240", "1000")
    groups.put_first(KEY, False)
    assert _weight(group) == usual


def _read(name: str, group: str = TOP) -> str:
    return next((path.read_text().strip() for point in set(hierarchies().values()) if (path := point / group / name).exists()), "")


def test_bounds_are_those_of_all_guests_together(groups: GuestGroups) -> None:
    groups.bound(Bounds(0.5, True, 64 << 20))
    if not _read("cpu.idle"):
        pytest.skip("no cpu controller here")
    assert _read("cpu.idle") == "1" and groups.is_held_back()
    assert (_read("cpu.cfs_quota_us") or _read("cpu.max").split()[0]) == "10000"
    assert (_read("memory.soft_limit_in_bytes", BASE) or _read("memory.high", BASE)) == str(64 << 20)
    groups.bound(Bounds())
    assert _read("cpu.idle") == "0"
    assert (_read("cpu.cfs_quota_us") or _read("cpu.max").split()[0]) in ("-1", "max")
    assert not groups.is_held_back()
    assert _weight() in ("41", "4")
    groups.bound(Bounds(0.05, is_prompt=True))
    assert _weight() in ("1024", "100")
    assert (_read("cpu.cfs_quota_us") or _read("cpu.max").split()[0]) == "1000" and groups.is_held_back()


def test_a_guest_has_a_bound_of_its_own_besides_that_of_all(groups: GuestGroups) -> None:
    file = next((name for name in ("memory.high", "memory.soft_limit_in_bytes") if _read(name, BASE)), "")
    if not file:
        pytest.skip("no memory controller here")
    groups.bound(Bounds(memory=256 << 20))
    groups.bound_memory(KEY, 64 << 20)
    assert (_read(file, BASE), _read(file, f"{BASE}/{KEY}")) == (str(256 << 20), str(64 << 20))
    groups.bound_memory(KEY, None)
    assert _read(file, BASE) == str(256 << 20)
    assert _read(file, f"{BASE}/{KEY}") == "max" or int(_read(file, f"{BASE}/{KEY}")) > 1 << 60


def test_memory_is_throttled_where_version_2_has_it(tmp_path: Path) -> None:
    groups = GuestGroups([tmp_path])
    for name in (BASE, f"{BASE}/{KEY}"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "memory.high").write_text("max\n")
    groups.bound(Bounds(memory=1 << 20))
    groups.bound_memory(KEY, 4096)
    assert (tmp_path / BASE / "memory.high").read_text() == str(1 << 20)
    assert (tmp_path / BASE / KEY / "memory.high").read_text() == "4096"
    groups.bound(Bounds())
    assert (tmp_path / BASE / "memory.high").read_text() == "max"


def test_the_time_of_all_is_told_too(groups: GuestGroups) -> None:
    before = groups.cpu_of_node()
    assert before is not None
    wait_for(lambda: (groups.cpu_of_node() or 0) > before, message="time goes by")
