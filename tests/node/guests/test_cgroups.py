"""Guests' control groups on this kernel: bounds, freezing, and the processor time that they report."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.guests import cgroups
from node.guests.cgroups import BASE, REMOTES, RESTING, TOP, Bounds, GuestGroups, hierarchies
from node.guests.guest import Guest
from node.guests.guest_freezing import GuestFreezing
from tests.node.nodes import wait_for

KEY = "test-4194304"


@pytest.fixture
def groups(own_groups: dict[str, Path]) -> Iterator[GuestGroups]:
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


@pytest.mark.parametrize("comes", [True, False])
def test_a_guest_that_arrives_beside_a_frozen_child_thaws_the_group(
    groups: GuestGroups, burner: subprocess.Popen[bytes], comes: bool
) -> None:
    freezing = GuestFreezing(groups)
    parent, child = (Guest("test", pid, 0, "root", 0, time.time(), "computes", 1.0, KEY) for pid in (4194304, 1))
    freezing.runs(child.key)
    freezing.cut(child, True, [child])
    wait_for(lambda: groups.stands_still(KEY), message="the child stands still")
    freezing.comes(parent)
    assert not groups.stands_still(KEY)
    if comes:
        freezing.runs(parent.key)
        freezing.hold([])
        assert not groups.stands_still(KEY)
        freezing.cut(parent, True, [parent, child])
    else:
        freezing.forget(parent.key)
    wait_for(lambda: groups.stands_still(KEY), message="they stand still again")


def test_a_group_is_made_while_a_daemon_that_ends_removes_those_above_it(tmp_path: Path) -> None:
    groups, over = GuestGroups([tmp_path]), threading.Event()

    def remove() -> None:
        while not over.is_set():
            groups.remove_all()
            time.sleep(0.0001)  # a daemon does it once

    beside = threading.Thread(target=remove)
    beside.start()
    try:
        for _ in range(300):
            groups.create(KEY)
            assert (tmp_path / BASE / KEY).exists()
            assert groups.remove(KEY)
    finally:
        over.set()
        beside.join(10)


def test_a_frozen_guest_uses_nothing_and_goes_on_afterwards(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
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
def test_a_frozen_guest_can_be_killed(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    groups.freeze(KEY, True)
    wait_for(lambda: groups.stands_still(KEY), message="it stands still")
    burner.kill()
    assert burner.wait(10) == -9


def test_version_1_freezes_where_there_is_no_other(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    if "freezer" not in cgroups.hierarchies():
        pytest.skip("no freezer of version 1 here")
    groups = GuestGroups(point for name, point in cgroups.hierarchies().items() if name != "unified")
    assert groups.freeze(KEY, True)
    wait_for(lambda: groups.stands_still(KEY), message="it stands still")
    groups.freeze(KEY, False)
    wait_for(lambda: not groups.stands_still(KEY), message="it goes on")


def _weight(group: str = TOP) -> str:
    return _read("cpu.shares", group) or _read("cpu.weight", group)


def _groups_of(pid: int) -> list[str]:
    """The groups of a process, in all hierarchies; those of the test as paths from where they begin."""
    paths = (line.rpartition(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return [path.partition("/farhome-test-")[2].partition("/")[2] or path for path in paths]


def test_guest_supervisors_are_beside_the_guests_or_have_less_weight_than_the_owner(groups: GuestGroups) -> None:
    if not any((point / RESTING).exists() for point in set(cgroups.hierarchies().values())):
        pytest.skip("no cpu controller here")
    assert _weight(RESTING) in ("10240", "1000")
    program = subprocess.Popen(["sleep", "60"])
    try:
        for point in set(cgroups.hierarchies().values()):
            for name in (RESTING, REMOTES):
                if (point / name).exists():
                    (point / name).rmdir()  # as a daemon does that ends
        groups.place_remote(program.pid, True)
        assert RESTING in _groups_of(program.pid)
        assert not any("memory" in line and RESTING in line for line in Path(f"/proc/{program.pid}/cgroup").read_text().splitlines())
        groups.weigh_remotes(True)
        groups.place_remote(program.pid, False)
        assert REMOTES in _groups_of(program.pid) and RESTING not in _groups_of(program.pid)
        assert _weight(REMOTES) in ("205", "20")
        groups.weigh_remotes(False)
        assert _weight(REMOTES) in ("1024", "100")
    finally:
        program.kill()
        program.wait(10)
    wait_for(lambda: groups.remove_all() or not any((point / REMOTES).exists() for point in set(cgroups.hierarchies().values())))


def test_guest_supervisors_stay_in_one_group_while_other_daemons_start_and_stop(groups: GuestGroups) -> None:
    if not _weight(RESTING):
        pytest.skip("no cpu controller here")
    other, over = GuestGroups(), threading.Event()

    def begin_and_end() -> None:
        while not over.is_set():
            other.prepare()
            other.remove_all()

    beside, program = threading.Thread(target=begin_and_end), subprocess.Popen(["sleep", "60"])
    beside.start()
    try:
        for at_rest in [True, False] * 100:
            groups.place_remote(program.pid, at_rest)
            found = _groups_of(program.pid)
            assert (found.count(RESTING), found.count(REMOTES)) == (int(at_rest), int(not at_rest))
    finally:
        over.set()
        beside.join(10)
        program.kill()
        program.wait(10)


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
    return next((path.read_text().strip() for point in set(cgroups.hierarchies().values()) if (path := point / group / name).exists()), "")


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


def test_the_time_of_all_groups_is_reported_too(groups: GuestGroups, burner: subprocess.Popen[bytes]) -> None:
    before = groups.cpu_of_node()
    assert before is not None
    wait_for(lambda: (groups.cpu_of_node() or 0) > before, message="time goes by")
