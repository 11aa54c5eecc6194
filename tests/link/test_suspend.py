"""Calls that wait at home are taken back for a signal, and go on where they were when no handler runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.calls.link_pair import PARKED, PAUSE, UNPAUSE, Pair
from kernel_helpers.process.syscalls import SYS

pytestmark = pytest.mark.timeout(60)


@contextmanager
def waiting(guest: Path, what: str, interception: str = "notify") -> Iterator[tuple[Pair, int]]:
    """The guest in its blocking call; the write end of its standard input."""
    reader, writer = os.pipe()
    with Pair([str(guest), "block", what], stdin=reader, interception=interception) as pair:
        os.close(reader)
        pair.until(lambda: b"waiting" in pair.output, 10, "not begun")
        number = {"read": 0, "nanosleep": 230, "poll": 7, "epoll": 232}[what]
        link = pair.link
        assert link is not None
        tid = link.threads[0]

        def is_under_way() -> bool:
            standing = link.standing(tid)  # in one snapshot: the call before may still be busy when this one's number is there
            return bool(standing.busy) and standing.number == number

        pair.until(is_under_way, 10, "no call under way")
        yield pair, writer
        os.close(writer)


@pytest.mark.parametrize("interception", ["notify", "ptrace"])
@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("read", "read(0, buffer, 10)"),
        ("poll", "poll(&p, 1, 1000)"),
        ("nanosleep", "nanosleep(&t, &rem)"),
        ("epoll", "epoll_wait(fd, &e, 1, -1)"),
    ],
)
def test_signal_with_a_handler_interrupts(what: str, call: str, guest: Path, interception: str) -> None:
    with waiting(guest, what, interception) as (pair, _):
        os.kill(pair.process.pid, signal.SIGUSR1)
        status, output = pair.run(20)
    assert status == 7
    assert f"{call} = -1 (EINTR)".encode() in output
    if what == "nanosleep":
        assert b"remaining some" in output


@pytest.mark.parametrize("interception", ["notify", "ptrace"])
@pytest.mark.parametrize("what", ["nanosleep", "poll"])
def test_a_sleep_continues_with_its_remaining_time_when_no_handler_runs(what: str, guest: Path, interception: str) -> None:
    began, times = time.monotonic(), 0
    with waiting(guest, what, interception) as (pair, _):
        tid = pair.link.threads[0] if pair.link else 0
        while times < 5 and pair.stub.cancel(tid):
            times += 1
            pair.until(lambda: pair.stub.busy() or pair.status is not None, 5, "the call is not made again")
        is_over = time.monotonic() - began > 1.0  # the machine may have stood still until it was
        status, output = pair.run(20)
    assert times == 5 or is_over
    assert status == 7
    assert b"= 0 (ok)\ntook a second" in output


@pytest.mark.parametrize("interception", ["notify", "ptrace"])
@pytest.mark.parametrize(("what", "result"), [("read", b"= 3 (ok)"), ("epoll", b"= 1 (ok)")])
def test_suspended_call_is_made_again_and_loses_nothing(what: str, result: bytes, guest: Path, interception: str) -> None:
    with waiting(guest, what, interception) as (pair, writer):
        tid = pair.link.threads[0] if pair.link else 0
        for _ in range(20):
            assert pair.stub.cancel(tid)
            pair.until(pair.stub.busy, 5, "the call is not made again")
        os.write(writer, b"abc")
        status, output = pair.run(20)
    assert status == 7
    assert result in output


def test_cancel_that_meets_the_end_of_a_call_loses_nothing(guest: Path) -> None:
    with waiting(guest, "read") as (pair, writer):
        tid = pair.link.threads[0] if pair.link else 0
        os.write(writer, b"abc")
        pair.stub.cancel(tid)  # the result, or the call made again: the program sees no difference
        assert pair.run(20) == (7, b"waiting\nread(0, buffer, 10) = 3 (ok)\n")


def test_stub_can_be_stopped_moved_and_resumed(guest: Path) -> None:
    with waiting(guest, "read") as (pair, writer):
        assert pair.link is not None
        pair.link.send(PAUSE)
        pair.until(lambda: [e for e in pair.events if e.kind == PARKED], 5, "the guest's side does not pause")
        assert pair.events[-1].data.split(b":")[1] == b"0"
        assert pair.stub.cancel(pair.link.threads[0])
        before = pair.stub.reserved
        assert not pair.stub.relocate([(0x1000, 0x2000)])
        assert pair.stub.relocate([(before[1][0] + 4096, before[1][0] + 8192)])
        assert pair.stub.reserved[0][0] not in (before[0][0], 0)
        frozen = pair.stub.stop()
        assert frozen.call(SYS.getpid) == pair.process.pid
        pair.stub.resume_as_stub()
        pair.link.send(UNPAUSE)
        pair.until(pair.stub.busy, 5, "the call is not made again")
        os.write(writer, b"abc")
        assert pair.run(20) == (7, b"waiting\nread(0, buffer, 10) = 3 (ok)\n")


@pytest.mark.parametrize("what", ["poll", "nanosleep"])
def test_sleep_begun_at_home_goes_on_away(what: str, guest: Path) -> None:
    reader, writer = os.pipe()
    begin = time.monotonic()
    # By far the most of two seconds, however long the way takes after that: a sleep begun anew would be whole there.
    with Pair([str(guest), "leave", what], stdin=reader, ready=lambda: time.monotonic() > begin + 1.5) as pair:
        status, output = pair.run(20)
    os.close(reader)
    os.close(writer)
    assert status == 7
    result, in_all, away = map(int, output.split())
    assert result == 0
    assert in_all >= 1990
    assert away < 1990


@pytest.mark.parametrize(("what", "number"), [("poll", SYS.poll), ("nanosleep", SYS.clock_nanosleep)])
def test_sleep_begun_away_goes_on_in_the_stopped_stub(what: str, number: int, guest: Path) -> None:
    with waiting(guest, what) as (pair, _):
        assert pair.link is not None
        tid = pair.link.threads[0]
        begun = time.monotonic()
        pair.link.send(PAUSE)
        pair.until(lambda: [e for e in pair.events if e.kind == PARKED], 5, "the guest's side does not pause")
        assert pair.stub.resumable(tid) is None
        assert pair.stub.cancel(tid)
        assert pair.stub.resumable(tid) == number
        frozen = pair.stub.stop()
        assert frozen.leader.call(SYS.restart_syscall) == 0
        assert 0.5 < time.monotonic() - begun < 1.3


def test_stub_dies_with_its_status(guest: Path) -> None:
    with waiting(guest, "read") as (pair, _):
        subprocess.run(["kill", "-9", str(pair.process.pid)], check=True, timeout=60)
        assert pair.run(10)[0] == -9
