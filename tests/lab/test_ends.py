"""A lab ends with its owner, whatever ends that; limits that nodes share are given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab, cgroups, limits, state
from tests.lab.waiting import until

TEST = """
import pathlib, time
from lab import Lab

def test_that_is_ended_by_somebody() -> None:
    with Lab.up(2, name={name!r}) as lab:
        program = lab.node("n1").popen(["mosrun", "sleep", "1000"])
        pathlib.Path({ready!r}).touch()
        program.wait(timeout=1000)
"""


@pytest.mark.parametrize(
    ("ended_by", "workers"),
    [
        (signal.SIGKILL, 0),
        (signal.SIGINT, 0),
        (signal.SIGKILL, 1),
        *(
            pytest.param(one, workers, marks=pytest.mark.soak)
            for one, workers in ((signal.SIGTERM, 0), (signal.SIGTERM, 1), (signal.SIGINT, 1))
        ),
    ],
)
def test_a_lab_ends_with_its_test_whatever_ends_that(
    lab_name: Callable[[], str], tmp_path: Path, workers: int, ended_by: signal.Signals
) -> None:
    name, ready = lab_name(), tmp_path / "ready"
    (tmp_path / "test_it.py").write_text(TEST.format(name=name, ready=str(ready)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "test_it.py"]
    tests = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        until(lambda: ready.exists() or tests.poll() is not None, 60)
        processes = cgroups.processes(name)
        owned = {pid: state.start_time(pid) for pid in (*processes, *(state.keeper(name) or ())[:1])}
        assert len(owned) > 5  # a switch, two nodes with their daemons, mosrun, the keeper
        tests.send_signal(ended_by)
        said = tests.communicate(timeout=60)[0]
        until(lambda: not state.directory(name).exists(), 60)
        assert not [one for one in cgroups.directories(name) if one.exists()], said
        until(lambda: not [pid for pid, start in owned.items() if state.start_time(pid) == start])
        assert name not in Path("/proc/self/mountinfo").read_text()
    finally:
        tests.kill()
        tests.communicate(timeout=20)
        Lab(name).down()


def test_a_lab_of_the_command_stays_until_it_is_taken_down(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    command = Path(__file__).resolve().parents[2] / "bin" / "lab"
    try:
        subprocess.run([command, "up", "1", "--no-mosd", "--name", name], check=True, capture_output=True, timeout=60)
        assert state.keeper(name) is None
        assert [node.is_alive() for node in Lab(name).nodes()] == [True]
    finally:
        assert Lab(name).down()


def test_a_keeper_ends_with_its_lab_and_leaves_a_later_one_alone(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    with Lab.up(1, name=name, mosd=False):
        keeper = state.keeper(name)
        assert keeper is not None
        assert state.start_time(keeper[0]) == keeper[1]
        assert not Lab(name).down(keeper=os.getpid())  # it has another one
        assert [node.is_alive() for node in Lab(name).nodes()] == [True]
    until(lambda: state.start_time(keeper[0]) != keeper[1])


def test_limits_are_raised_for_all_labs_and_given_back_after_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SETTINGS", tmp_path / "settings")
    monkeypatch.setattr(state, "DIRECTORY", tmp_path / "labs")
    limit = tmp_path / "settings" / "fs" / "fanotify" / "max_user_groups"  # the other limit: this kernel has none
    limit.parent.mkdir(parents=True)
    limit.write_text("128")
    for name in ("first", "second"):
        (state.DIRECTORY / name).mkdir(parents=True)
        limits.raise_them()
        assert int(limit.read_text()) == 128 * limits.NODES
    (state.DIRECTORY / "first").rmdir()
    limits.give_them_back()
    assert int(limit.read_text()) == 128 * limits.NODES
    (state.DIRECTORY / "second").rmdir()
    limits.give_them_back()
    assert (limit.read_text(), state.DIRECTORY.exists()) == ("128", False)
    limits.give_them_back()
