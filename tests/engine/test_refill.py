"""A process comes home from a copy of it that ran meanwhile, and cannot tell."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.capture import capture
from engine.context import Context
from engine.layout import ReservedOverlap
from engine.mappings import PAGE, read_mappings
from engine.refill import RefillFailed, refill
from kernel_helpers.inject import SYS, seize
from tests.engine import roundtrip
from tests.engine.roundtrip import away, connection, go_on, pour, wait_until
from tests.programs.build import program

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="freezing another user's process needs root")

USERS = ["root", "farhome-a"]
_libc = ctypes.CDLL(None, use_errno=True)


def as_user(name: str) -> dict[str, object]:
    """Arguments of Popen."""
    if name == "root":
        return {}
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        pytest.skip(f"no user {name}")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class Running:
    """A program whose first line tells where its numbers are."""

    def __init__(self, process: subprocess.Popen[bytes], fields: int) -> None:
        assert process.stdout is not None
        self.process, self.pid, self.fields = process, process.pid, fields
        self.address = int(process.stdout.readline(), 16)

    def report(self, pid: int = 0) -> tuple[int, ...]:
        """Its numbers as they are in it, or in its copy."""
        descriptor = os.open(f"/proc/{pid or self.pid}/mem", os.O_RDONLY)
        try:
            return struct.unpack(f"<{self.fields}Q", os.pread(descriptor, 8 * self.fields, self.address))
        finally:
            os.close(descriptor)

    def command(self, value: int, pid: int = 0) -> None:
        """Sets the third number and waits until it is taken back."""
        descriptor = os.open(f"/proc/{pid or self.pid}/mem", os.O_RDWR)
        try:
            os.pwrite(descriptor, struct.pack("<Q", value), self.address + 16)
        finally:
            os.close(descriptor)
        wait_until(lambda: self.report(pid)[2] == 0, "answer to a command")

    def runs(self, pid: int = 0, rounds: int = 3) -> None:
        """Waits for `rounds` more rounds; nothing was found to be wrong by then."""
        begun = self.report(pid)[0]
        wait_until(lambda: self.report(pid)[0] >= begun + rounds or self.report(pid)[1] != 0, "progress")
        assert self.report(pid)[1] == 0, f"check in line {self.report(pid)[1]} failed"


@contextmanager
def running(arguments: list[str], user: str, fields: int) -> Iterator[Running]:
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **as_user(user)  # type: ignore[call-overload]
    )
    try:
        yield Running(process, fields)
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Readable for every user."""
    path = Path(tempfile.mkdtemp(prefix="farhome-refill-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def letters(directory: Path) -> Path:
    """Eight pages, A to H."""
    path = directory / "letters"
    path.write_bytes(b"".join(bytes([65 + i]) * PAGE for i in range(8)))
    path.chmod(0o644)
    return path


@contextmanager
def shapes(letters: Path, user: str = "root") -> Iterator[Running]:
    """tests/programs/shapes.c: cycles, bad, command, signals, sum, spins."""
    copy = letters.parent / "shapes"
    shutil.copy(program("shapes"), copy)
    copy.chmod(0o755)
    with running([str(copy), str(letters)], user, 6) as started:
        yield started


def round_trip(started: Running, meanwhile: Callable[[int], None] = lambda pid: None) -> roundtrip.Refilled:
    """Away, a few rounds there, home; memory and mappings compared before it goes on."""
    with away(started.pid) as guest:
        started.runs(guest.pid)
        meanwhile(guest.pid)
        frozen, context = guest.capture()
        there = started.report(guest.pid)
        refilled = pour(guest, context)
        roundtrip.assert_same_memory(context, guest.pid, started.pid)
        resident = range(*guest.reserved)
        here = tuple(m for m in read_mappings(started.pid) if m.start not in resident)
        assert roundtrip.merged(here) == roundtrip.merged(context.maps)
        del frozen
        go_on(guest)
    assert started.report()[0] >= there[0]
    started.runs()
    return refilled


@pytest.mark.parametrize("user", USERS)
def test_process_goes_on_with_what_it_became_away(letters: Path, user: str) -> None:
    with shapes(letters, user) as started:
        started.runs()
        round_trip(started)
        round_trip(started, lambda pid: started.command(2, pid))
        round_trip(started)
        started.command(1)
        assert not any(name.startswith("2000") for name in Path(f"/proc/{started.pid}/maps").read_text().splitlines())


def test_fifty_round_trips(letters: Path) -> None:
    with shapes(letters) as started:
        for _ in range(50):
            round_trip(started)
