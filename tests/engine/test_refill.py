"""A process comes home from a copy of it that ran meanwhile, and does not notice it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from engine.context.capture import capture, send_pages
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.mappings.layout import ReservedOverlap
from engine.mappings.mappings import PAGE, read_mappings
from engine.pour.refill import Refilled, RefillFailed, refill
from kernel_helpers.process.seizing import seize
from kernel_helpers.process.syscalls import SYS, signed
from tests.engine import roundtrip, support
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
    """A program whose first line is the address of its numbers."""

    def __init__(self, process: subprocess.Popen[bytes], fields: int) -> None:
        assert process.stdout is not None
        self.process, self.pid, self.fields = process, process.pid, fields
        self.address = int(process.stdout.readline(), 16)

    def report(self, pid: int = 0) -> tuple[int, ...]:
        """Returns the numbers in its memory, or in its copy's."""
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
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        **as_user(user),  # type: ignore[call-overload]
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


def round_trip(started: Running, meanwhile: Callable[[int], None] = lambda pid: None) -> Refilled:
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
def test_the_process_goes_on_with_its_state_from_away(letters: Path, user: str) -> None:
    with shapes(letters, user) as started:
        started.runs()
        round_trip(started)
        round_trip(started, lambda pid: started.command(2, pid))
        round_trip(started)
        started.command(1)
        assert not any(name.startswith("2000") for name in Path(f"/proc/{started.pid}/maps").read_text().splitlines())


@pytest.mark.parametrize("times", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_many_round_trips(letters: Path, times: int) -> None:
    with shapes(letters) as started:
        for _ in range(times):
            round_trip(started)


def test_mapped_file_was_renamed_at_home_meanwhile(letters: Path) -> None:
    with shapes(letters) as started, away(started.pid) as guest:
        _, context = guest.capture()
        letters.rename(letters.with_name("other"))
        assert not any(m.path == str(letters) for m in read_mappings(started.pid))
        pour(guest, context)
        go_on(guest)
        started.runs()


def queue_signal(pid: int, tid: int | None, number: int, value: int) -> None:
    """Sends a signal with a value, by rt_sigqueueinfo or rt_tgsigqueueinfo."""
    info = struct.pack("<iiiiiiq", number, 0, -1, 0, os.getpid(), 0, value).ljust(128, b"\0")
    if tid is None:
        result = _libc.syscall(SYS.rt_sigqueueinfo, pid, number, info)
    else:
        result = _libc.syscall(SYS.rt_tgsigqueueinfo, pid, tid, number, info)
    assert result == 0, os.strerror(ctypes.get_errno())


def queued_sum(signals: list[tuple[int, int]]) -> int:
    """Returns the sum that shapes.c makes of (number, value) in the order in which it takes them."""
    total = 0
    for number, value in signals:
        total = (total * 31 + value + number) % (1 << 64)
    return total


QUEUED = signal.SIGRTMIN + 3


def test_waiting_signals_come_home_in_order(letters: Path) -> None:
    with shapes(letters) as started:
        queue_signal(started.pid, None, QUEUED, 5)  # to the stub: younger than what waits for the guest

        def meanwhile(pid: int) -> None:
            queue_signal(pid, pid, QUEUED, 7)
            for value in (2, 3, 4):
                queue_signal(pid, None, QUEUED, value)
            queue_signal(pid, None, signal.SIGUSR2, 9)

        round_trip(started, meanwhile)
        started.command(1)
        # The kernel gives a thread's own before the process's, and lower numbers first.
        expected = [(QUEUED, 7), (signal.SIGUSR2, 9), (QUEUED, 2), (QUEUED, 3), (QUEUED, 4), (QUEUED, 5)]
        assert started.report()[3:5] == (6, queued_sum([(int(n), v) for n, v in expected]))


def test_refill_can_be_undone_and_done_again(letters: Path) -> None:
    with shapes(letters) as started:
        queue_signal(started.pid, None, QUEUED, 3)
        with away(started.pid) as guest:
            started.runs(guest.pid)
            for value in (1, 2):
                queue_signal(guest.pid, None, QUEUED, value)
            _, context = guest.capture()
            own = [(m.start, m.end) for m in read_mappings(started.pid) if m.own and not m.special]
            shown = Path(f"/proc/{started.pid}/cmdline").read_bytes()
            assert str(letters).encode() in shown
            for _ in range(3):
                stub_registers = guest.stub.leader.registers.copy()
                pour(guest, context).undo()
                assert guest.stub.leader.registers == stub_registers
                assert guest.stub.call(SYS.getpid) == started.pid
                assert [(m.start, m.end) for m in read_mappings(started.pid) if m.own and not m.special] == own
                assert Path(f"/proc/{started.pid}/cmdline").read_bytes() == shown
            pour(guest, context)
            roundtrip.assert_same_memory(context, guest.pid, started.pid)
            go_on(guest)
        started.runs()
        started.command(1)
        assert started.report()[3:5] == (3, queued_sum([(QUEUED, 1), (QUEUED, 2), (QUEUED, 3)]))


def relay(source: socket.socket, target: socket.socket, limit: int, damage: int | None) -> None:
    """Passes `limit` bytes on, with one bit of byte `damage` changed, and then ends the connection."""
    passed = 0
    with contextlib.suppress(OSError):
        while passed < limit:
            data = bytearray(source.recv(min(65536, limit - passed)))
            if not data:
                break
            if damage is not None and passed <= damage < passed + len(data):
                data[damage - passed] ^= 1
            target.sendall(data)
            passed += len(data)
        target.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("limit", "damage"), [(0, None), (7, None), (100_000, None), (1 << 30, 0), (1 << 30, 20), (1 << 30, 100_000)])
def test_broken_stream_leaves_a_stub_that_can_be_refilled(letters: Path, limit: int, damage: int | None) -> None:
    with shapes(letters) as started, away(started.pid) as guest:
        started.runs(guest.pid)
        _, context = guest.capture()
        with connection() as (near, middle), connection() as (relayed, far):

            def send() -> None:
                with contextlib.suppress(OSError):
                    send_pages(guest.pid, context.maps, near, timeout=20)

            threads = [
                threading.Thread(target=send),
                threading.Thread(target=relay, args=(middle, relayed, limit, damage)),
            ]
            for thread in threads:
                thread.start()
            with pytest.raises(RefillFailed) as caught:
                refill(guest.stub, context, far, [guest.reserved], timeout=20)
            assert caught.value.stub_usable
            for end in (far, middle):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(20)
        assert guest.stub.call(SYS.getpid) == started.pid
        assert str(letters).encode() in Path(f"/proc/{started.pid}/cmdline").read_bytes()
        pour(guest, context)
        roundtrip.assert_same_memory(context, guest.pid, started.pid)
        go_on(guest)
        started.runs()


def test_stream_cannot_write_outside_of_the_wanted_mappings(letters: Path) -> None:
    with shapes(letters) as started, away(started.pid) as guest:
        _, context = guest.capture()
        before = guest.stub.read(guest.reserved[0], PAGE)
        header = struct.pack("<IIQQQ", 0x67706866, 1, PAGE, guest.reserved[0], PAGE)
        with connection() as (near, far):
            near.sendall(header + b"\xcc" * PAGE)
            with pytest.raises(RefillFailed, match="Protocol error") as caught:
                refill(guest.stub, context, far, [guest.reserved], timeout=20)
        assert caught.value.stub_usable
        assert guest.stub.read(guest.reserved[0], PAGE) == before
        pour(guest, context)
        go_on(guest)
        started.runs()


def test_silent_stream_ends_in_time(letters: Path) -> None:
    with shapes(letters) as started, away(started.pid) as guest:
        _, context = guest.capture()
        with connection() as (_, far), pytest.raises(RefillFailed, match="nothing has gone over the network for too long") as caught:
            refill(guest.stub, context, far, [guest.reserved], timeout=0.2)
        assert caught.value.stub_usable
        pour(guest, context)
        go_on(guest)
        started.runs()


def test_wanted_memory_at_the_stubs_own_pages_is_reported_before_any_change(letters: Path) -> None:
    with shapes(letters) as started, away(started.pid) as guest:
        _, context = guest.capture()
        intruder = replace(context.maps[0], start=guest.reserved[0], end=guest.reserved[1], is_file=False, path="", offset=0)
        before = read_mappings(started.pid)
        maps = tuple(sorted((*context.maps, intruder), key=lambda m: m.start))
        with connection() as (_, far), pytest.raises(ReservedOverlap):
            refill(guest.stub, replace(context, maps=maps), far, [guest.reserved])
        with connection() as (_, far), pytest.raises(RefillFailed, match="threads"):
            refill(guest.stub, replace(context, threads=context.threads[:1]), far, [guest.reserved])
        assert read_mappings(started.pid) == before
        pour(guest, context)
        go_on(guest)
        started.runs()


def test_sleep_ends_when_it_would_have(directory: Path) -> None:
    begun = time.monotonic()
    process = subprocess.Popen(["sleep", "3"], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("230 "), "sleep")
        wait_until(lambda: time.monotonic() > begun + 1.5, "time")
        with away(process.pid) as guest:
            assert signed(guest.stub.leader.registers.rax) == -516
            _, context = guest.capture()
            threads = tuple(replace(t, resume_with_restart_syscall=True) for t in context.threads)
            pour(guest, replace(context, threads=threads))
            go_on(guest)
        assert process.wait(10) == 0
        assert 2.9 < time.monotonic() - begun < 4.2  # slept anew it would be 4.5
    finally:
        process.kill()
        process.wait()


PYTHON = """
import array, ctypes, hashlib, time, gc
report = (ctypes.c_uint64 * 3)()
print(hex(ctypes.addressof(report)), flush=True)
block = bytearray(hashlib.shake_128(b'block').digest(50 << 20))
step, numbers, gone = 1 << 20, {}, 0
digests = [hashlib.md5(block[at:at + step]).digest() for at in range(0, len(block), step)]
while True:
    which = report[0] % len(digests)
    part = slice(which * step, (which + 1) * step)
    if hashlib.md5(block[part]).digest() != digests[which]:
        report[1] = 1
    block[part] = hashlib.shake_128(str(report[0]).encode()).digest(step)
    digests[which] = hashlib.md5(block[part]).digest()
    numbers[report[0]] = [str(report[0])] * 100
    if numbers.pop(report[0] - 50, ['x'] * 100)[99] not in ('x', str(report[0] - 50)):
        report[1] = 2
    if report[0] % 64 == 0:
        gc.collect()
        bytearray(3 << 20)
    report[0] += 1
    time.sleep(0.001)
"""


@pytest.mark.parametrize("user", [pytest.param(user, marks=pytest.mark.soak if user == "root" else ()) for user in USERS])
def test_python_with_fifty_megabytes(user: str) -> None:
    with running([support.PYTHON if user == "root" else "/usr/bin/python3", "-c", PYTHON], user, 3) as started:
        for _ in range(5 if user == "root" else 3):
            refilled = round_trip(started)
            assert refilled.pages.bytes >= 50 << 20


def test_context_is_refused_when_it_is_not_one(letters: Path) -> None:
    with shapes(letters) as started, seize(started.pid) as frozen:
        context = capture(frozen)
    wire = context.to_wire()
    assert Context.from_wire(wire) == context
    for bad in (b"", b"\x00", wire[:-1], wire + b"\0", msgpack.packb([1, 2]), msgpack.packb([9, *[0] * 7])):
        with pytest.raises(BadContext):
            Context.from_wire(bad)
    good = msgpack.unpackb(wire)
    damages: tuple[Callable[[Any], object], ...] = (
        lambda c: c[2].reverse(),
        lambda c: c[2][1][0].__setitem__(0, 5),
        lambda c: c[2][1][0].__setitem__(1, 1 << 60),
        lambda c: c[2][1][0].__setitem__(7, "zz"),
        lambda c: c[2][1].append(c[2][1][-1]),
        lambda c: c[2].__setitem__(0, "no bytes"),
        lambda c: c[2].__setitem__(0, c[2][0][:-1]),
        lambda c: c[2].__setitem__(0, c[2][0] + c[2][0][-32:]),
        lambda c: c[2].__setitem__(0, (5).to_bytes(8, "little") + c[2][0][8:]),
        lambda c: c[2].__setitem__(0, c[2][0][:8] + (1 << 60).to_bytes(8, "little") + c[2][0][16:]),
        lambda c: c[2].__setitem__(0, c[2][0][:24] + (1 << 20).to_bytes(4, "little") + c[2][0][28:]),
        lambda c: c[2].__setitem__(0, c[2][1][0][0].to_bytes(8, "little") + c[2][1][0][1].to_bytes(8, "little") + bytes(16)),
        lambda c: c[3].pop(),
        lambda c: c[4].__setitem__(0, b""),
        lambda c: c[4][1].pop(),
        lambda c: c[4][3].append(-1),
        lambda c: c[4][5].append([16, 0, 0]),
        lambda c: c[5][0].__setitem__(0, 65),
        lambda c: c[6].append(c[6][0]),
        lambda c: c[6].clear(),
        lambda c: c[6][0].__setitem__(1, b"short"),
        lambda c: c[7].append(bytes(128)),
    )
    for damage in damages:
        fields = msgpack.unpackb(wire)
        damage(fields)
        assert fields != good
        with pytest.raises(BadContext):
            Context.from_wire(msgpack.packb(fields))
    deep = b"\x91" * 1000 + b"\x90"  # one list in another, as many as there may be
    parts = [msgpack.packb(field) for field in good]
    for place in range(len(parts)):
        with pytest.raises(BadContext):
            Context.from_wire(bytes([0x90 | len(parts)]) + b"".join([*parts[:place], deep, *parts[place + 1 :]]))
