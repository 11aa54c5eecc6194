"""A user who moves a process must have all of its rights: each right that a process can have in addition is seen, on real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputy.moves.programs.beginning import Beginning, program_of
from engine.leaving.permission import CAPABILITIES, ROOT, SETUID, THREADS_DIFFER, UNREADABLE, Owner, is_secure, may_leave
from engine.leaving.refusal import reasons
from kernel_helpers.common.errors import MoveRefused
from tests.programs.privileged import copy_into

UID, GID, FRIENDS = 61001, 61002, 61003
MINE = Owner(UID, GID, (FRIENDS,))


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that all users may enter, with copies of the program whose files have rights."""
    made = Path(f"/tmp/rights-{os.getpid()}")
    made.mkdir()
    made.chmod(0o777)
    copy_into(made)
    yield made
    shutil.rmtree(made)


class Running:
    """A program as a user of ours, without further groups."""

    def __init__(self, place: Path, name: str, how: str = "stay", *words: str) -> None:
        groups = () if any(word.startswith("--groups") for word in words) else ("--clear-groups",)
        user = ("setpriv", f"--reuid={UID}", f"--regid={GID}", *groups, *words) if "root" not in words else ()
        self.place = place
        self.child = subprocess.Popen([*user, str(place / name), how], cwd=place)
        self.pid = self.child.pid
        self.until("up")
        if how not in {"stay", "back"}:
            (place / "go").touch()
        self.until("gone")

    def until(self, name: str) -> None:
        end = time.monotonic() + 20
        while not (self.place / name).exists():
            assert self.child.poll() is None and time.monotonic() < end
            time.sleep(0.01)

    def __enter__(self) -> int:
        return self.pid

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait(10)


@pytest.mark.parametrize(
    ("name", "how", "words", "reason"),
    [
        ("plain", "stay", (), None),
        ("plain", "stay", (f"--groups={FRIENDS}",), None),
        ("setuid", "stay", (), "rights of root"),
        ("setgid", "stay", (), "rights of group"),
        ("setuid", "back", (), SETUID),
        ("setgid", "back", (), SETUID),
        ("capable", "stay", (), CAPABILITIES),
        ("plain", "undumpable", (), UNREADABLE),
        ("plain", "stay", ("--inh-caps=+net_raw", "--ambient-caps=+net_raw"), CAPABILITIES),
        ("plain", "stay", ("--inh-caps=+net_raw",), CAPABILITIES),
        ("plain", "stay", ("--inh-caps=+wake_alarm", "--ambient-caps=+wake_alarm"), None),
        ("setuid", "stay", ("--no-new-privs",), None),
    ],
)
def test_a_process_with_more_rights_than_its_user_stays(
    place: Path, name: str, how: str, words: tuple[str, ...], reason: str | None
) -> None:
    with Running(place, name, how, *words) as pid:
        refusal = may_leave(pid, [MINE])
        assert refusal is None if reason is None else refusal is not None and reason in refusal, refusal
        assert may_leave(pid, [ROOT, MINE]) == may_leave(pid, [MINE, ROOT]) == refusal, "all users in the list need the rights"
        assert may_leave(pid, [ROOT]) is None


def test_another_users_process_and_that_of_another_group_stay(place: Path) -> None:
    with Running(place, "plain") as pid:
        assert f"rights of user {UID}" in str(may_leave(pid, [Owner(UID + 1, GID)]))
        assert f"rights of group {GID}" in str(may_leave(pid, [Owner(UID, GID + 9)]))
        assert may_leave(pid, [Owner(UID, GID + 9, (GID,))]) is None
    with Running(place, "plain", "stay", "root") as pid:
        assert "rights of root" in str(may_leave(pid, [MINE]))


def test_one_thread_with_other_rights_keeps_all_at_home(place: Path) -> None:
    source = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
def other():
    libc.syscall(117, 65534, 65534, 65534)
    print("up", flush=True)
    time.sleep(60)
threading.Thread(target=other, daemon=True).start()
time.sleep(60)
"""
    with subprocess.Popen(["/usr/bin/python3", "-c", source], stdout=-1) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            assert THREADS_DIFFER in list(reasons(child.pid))
            assert "rights of root" in str(may_leave(child.pid, [Owner(65534, 65534)]))
        finally:
            child.kill()


def test_a_process_that_has_ended_is_no_process() -> None:
    child = subprocess.Popen(["true"])
    child.wait(10)
    with pytest.raises(ProcessLookupError):
        may_leave(child.pid, [MINE])


@pytest.mark.parametrize(("name", "leaves"), [("plain", True), ("setuid", False), ("setgid", False), ("capable", False)])
def test_a_program_that_is_to_begin_away_is_asked_before_its_first_instruction(place: Path, name: str, leaves: bool) -> None:
    shell = ["setpriv", f"--reuid={UID}", f"--regid={GID}", "--clear-groups", "bash", "-c", f"echo there; read line; exec {place}/{name}"]
    with subprocess.Popen(shell, stdin=-1, stdout=-1, cwd=place) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        beginning = Beginning(child.pid, program_of(child.pid))
        child.stdin.write(b"now\n")
        child.stdin.flush()
        end = time.monotonic() + 10
        while not beginning.is_over:
            beginning.poll()
            assert time.monotonic() < end
            time.sleep(0.001)
        try:
            if leaves:
                frozen = beginning.take([MINE])
                assert frozen is not None
                assert not is_secure(child.pid)
                frozen.detach()
            else:
                with pytest.raises(MoveRefused):
                    beginning.take([MINE])
        finally:
            os.kill(child.pid, signal.SIGKILL)
