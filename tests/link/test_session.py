"""The session: every control frame once and in order over any number of connections; nonsense breaks it and nothing else."""

from __future__ import annotations

import mmap
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from bench.calls.link_pair import wait_for
from engine.pour.arrival import install_filter
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.link.ends.session import SessionLink
from kernel_helpers.process import seizing
from kernel_helpers.process.syscalls import SYS
from remote.reference.intercept_ptrace import PtraceLink

pytestmark = pytest.mark.timeout(60)
FRAME = struct.Struct("<IHHIIQQ")
CALL = struct.Struct("<QiI6QIIQIIIIIIIiq")
REPLY_BODY = struct.Struct("<QqII")
RESUME, HEARTBEAT, CALL_KIND, REPLY, ABANDON, CONTROL = 1, 2, 3, 4, 5, 40


@pytest.fixture
def ends() -> Iterator[tuple[HomeLink, PtraceLink]]:
    with HomeLink([1, 2]) as home, PtraceLink(os.getpid(), {1: 1}) as away:
        yield home, away


def connect(first: SessionLink, second: SessionLink) -> tuple[socket.socket, socket.socket]:
    """Joins two links; sockets that a test can shut down."""
    one, two = socket.socketpair()
    copies = one.dup(), two.dup()
    first.attach(one.detach())
    second.attach(two.detach())
    return copies


def collect(link: SessionLink, enough: Callable[[list[Event]], bool], timeout: float = 10) -> list[Event]:
    """Events until there are enough."""
    found: list[Event] = []
    end = time.monotonic() + timeout
    while not enough(found):
        assert time.monotonic() < end, found[-5:]
        found += link.wait(0.1)
    return found


def control(events: list[Event]) -> list[bytes]:
    return [event.data for event in events if event.kind >= 16]


def test_frames_cross_broken_connections_once_and_in_order(ends: tuple[HomeLink, PtraceLink]) -> None:
    home, away = ends
    rng = random.Random(7)
    sent: dict[SessionLink, list[bytes]] = {home: [], away: []}
    got: dict[SessionLink, list[bytes]] = {home: [], away: []}
    for number in range(30):
        copies = connect(home, away)
        for link in (home, away):
            for _ in range(rng.randrange(40)):
                data = b"%d:" % len(sent[link]) + bytes(rng.randrange(20_000))
                sent[link].append(data)
                link.send(CONTROL, 5, data)
        for _ in range(rng.randrange(5)):
            for link in (home, away):
                got[link] += control(link.wait(0.001))
        if number < 29:
            for copy in copies:
                copy.shutdown(socket.SHUT_RDWR)
        for copy in copies:
            copy.close()
    for link, other in ((home, away), (away, home)):
        missing = len(sent[other]) - len(got[link])
        got[link] += control(collect(link, lambda events, missing=missing: len(control(events)) >= missing))  # type: ignore[misc]
        assert got[link] == sent[other]


def test_acknowledged_frames_are_released(ends: tuple[HomeLink, PtraceLink]) -> None:
    home, away = ends
    for _ in range(50):
        home.send(CONTROL, 0, bytes(10_000))
    assert home.kept_bytes == 500_000
    copies = connect(home, away)
    collect(away, lambda events: len(control(events)) == 50)
    end = time.monotonic() + 10  # the next sign of life of the other side says so
    while home.kept_bytes:
        assert time.monotonic() < end
        away.send(CONTROL)
        home.wait(0.05)
    for copy in copies:
        copy.close()


def test_a_barrier_holds_later_frames_until_release(ends: tuple[HomeLink, PtraceLink]) -> None:
    home, away = ends
    copies = connect(home, away)
    home.send(CONTROL, 0, b"before")
    home.send(CONTROL, 0, b"barrier", barrier=True)
    home.send(CONTROL, 0, b"after")
    assert control(collect(away, lambda events: len(control(events)) == 2)) == [b"before", b"barrier"]
    assert control(away.wait(0.1)) == []
    away.send(CONTROL, 0, b"not held")
    assert control(collect(home, lambda events: bool(control(events)))) == [b"not held"]
    away.release()
    assert control(collect(away, lambda events: bool(control(events)))) == [b"after"]
    for copy in copies:
        copy.close()


def test_silence_is_reported(ends: tuple[HomeLink, PtraceLink]) -> None:
    home, _ = ends
    home.set_silence(0.3)
    one, two = socket.socketpair()
    home.attach(one.detach())
    collect(home, lambda events: any(event.kind == Kind.SILENT for event in events), 5)
    two.close()
    collect(home, lambda events: any(event.kind == Kind.CONNECTION_LOST for event in events), 5)


def frame(kind: int, body: bytes = b"", number: int = 0, acknowledged: int = 0, length: int | None = None, tid: int = 1) -> bytes:
    return FRAME.pack(len(body) if length is None else length, kind, 0, tid, 0, number, acknowledged) + body


def call(
    number: int = 39,
    offsets: int = 0,
    arguments: tuple[int, ...] = (0,) * 6,
    image: int = 0,
    area: int = 0,
    place: tuple[int, int, int] = (0, 6, 0),
    relocations: int = 0,
    outs: int = 0,
    sequence: int = 1,
) -> bytes:
    return CALL.pack(sequence, number, offsets, *arguments, image, area, *place, relocations, outs, *(0,) * 5)


GETPPID = 110
NONSENSE = {
    "garbage": bytes(range(256)),
    "no resume": frame(CONTROL, b"x", 1),
    "two gibibytes": frame(RESUME) + frame(CALL_KIND, length=2 << 30, number=1),
    "long control frame": frame(RESUME) + frame(CONTROL, length=2 << 20, number=1),
    "skipped number": frame(RESUME) + frame(CONTROL, b"x", 2),
    "acknowledges the future": frame(RESUME, acknowledged=9),
    "second resume": frame(RESUME) + frame(RESUME),
    "heartbeat with a body": frame(RESUME) + frame(HEARTBEAT, b"x"),
    "call of an unknown thread": frame(RESUME) + frame(CALL_KIND, call(GETPPID), 1, tid=77),
    "call cut short": frame(RESUME) + frame(CALL_KIND, call(GETPPID)[:50], 1),
    "call that is not forwarded": frame(RESUME) + frame(CALL_KIND, call(9), 1),
    "negative number": frame(RESUME) + frame(CALL_KIND, call(-1), 1),
    "argument beyond the area": frame(RESUME) + frame(CALL_KIND, call(GETPPID, 1, (100, 0, 0, 0, 0, 0), 0, 50), 1),
    "image beyond the area": frame(RESUME) + frame(CALL_KIND, call(GETPPID, image=10, area=5) + bytes(10), 1),
    "area beyond the slot": frame(RESUME) + frame(CALL_KIND, call(GETPPID, area=1 << 30), 1),
    "too many outs": frame(RESUME) + frame(CALL_KIND, call(GETPPID, outs=1 << 20), 1, length=96 + (16 << 20)),
    "out beyond the area": frame(RESUME) + frame(CALL_KIND, call(GETPPID, area=50, outs=1) + struct.pack("<IIHHI", 40, 11, 0, 1, 0), 1),
    "relocation beyond the image": frame(RESUME)
    + frame(CALL_KIND, call(GETPPID, image=16, area=16, relocations=1) + struct.pack("<I", 9) + bytes(16), 1),
    "relocated to beyond the area": frame(RESUME)
    + frame(CALL_KIND, call(GETPPID, image=16, area=16, relocations=1) + struct.pack("<IQQ", 0, 17, 0), 1),
    "place of no argument": frame(RESUME) + frame(CALL_KIND, call(GETPPID, place=(4096, 2, 16)), 1),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_breaks_the_connection_and_costs_nothing(what: str, ends: tuple[HomeLink, PtraceLink]) -> None:
    home, away = ends
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one, two = socket.socketpair()
    home.attach(one.detach())
    two.sendall(NONSENSE[what])
    events = collect(home, lambda events: any(event.kind == Kind.CONNECTION_LOST for event in events), 5)
    assert events[-1].data
    two.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    if what not in ("long control frame",):
        copies = connect(home, away)  # a proper connection is as good as ever
        home.send(CONTROL, 0, b"alive")
        assert control(collect(away, lambda events: bool(control(events)))) == [b"alive"]
        for copy in copies:
            copy.close()


def test_a_call_of_a_thread_that_has_ended_meanwhile_breaks_nothing(ends: tuple[HomeLink, PtraceLink]) -> None:
    home, _ = ends
    home.name_thread(1, 0)
    one, two = socket.socketpair()
    home.attach(one.detach())
    two.sendall(frame(RESUME) + frame(CALL_KIND, call(GETPPID, image=9, area=9) + bytes(9), 1, tid=2) + frame(ABANDON, b"", 2, tid=2))
    two.sendall(frame(CONTROL, b"alive", 3))
    events = collect(home, lambda events: bool(control(events)))
    assert (control(events), home.connected) == ([b"alive"], True)
    assert not [event for event in events if event.kind == Kind.CONNECTION_LOST]
    two.close()


def test_a_reply_to_a_thread_that_has_ended_meanwhile_breaks_nothing() -> None:
    never = os.eventfd(0)  # reports no call of the guest, ever
    with AwayLink(never, os.getpid(), {1: 1, 2: 2}) as away:
        away.remove_thread(2, 2)
        one, two = socket.socketpair()
        away.attach(one.detach())
        two.sendall(frame(RESUME) + frame(REPLY, REPLY_BODY.pack(1, 0, 0, 0), 1, tid=2) + frame(CONTROL, b"alive", 2))
        events = collect(away, lambda events: bool(control(events)))
        assert control(events) == [b"alive"]
        assert not [event for event in events if event.kind == Kind.CONNECTION_LOST]
        two.sendall(frame(REPLY, REPLY_BODY.pack(1, 0, 0, 0), 3, tid=77))
        collect(away, lambda events: any(event.kind == Kind.CONNECTION_LOST for event in events))
        two.close()


DONE, WATCHED, AT_CONTROL = 4, 12, 2
"""Offsets in a slot of the last request that has ended, and of its waiter (slot.h), which the control page wakes."""


def test_a_call_whose_place_is_being_mapped_has_not_ended() -> None:
    place = 0x10000  # where the guest has what remains of its sleep
    with HomeLink([1]) as home, mmap.mmap(home.memfd, 0) as slots:
        home.set_stub(os.getpid(), 1 << 40)
        one, two = socket.socketpair()
        home.attach(one.detach())
        body = call(SYS.nanosleep, 0b11, (0, 16, 0, 0, 0, 0), image=32, area=32, place=(place, 1, 16)) + bytes(32)
        two.sendall(frame(RESUME) + frame(CALL_KIND, body, 1))
        slot = home.slot_offset(0)
        wait_for(lambda: slots[slot + WATCHED] == AT_CONTROL, 10, "no request that is left to the finisher")
        assert (home.standing(1).busy, home.standing(1).done) == (1, 0)
        slots[slot + DONE] = 1  # the page is mapped; the finisher, whose turn it is, has not been woken
        assert (home.standing(1).busy, home.standing(1).done) == (1, 0)
        two.close()


def test_closing_with_everything_under_way_ends() -> None:
    for _ in range(20):
        with HomeLink([1]) as home, PtraceLink(os.getpid(), {1: 1}) as away:
            copies = connect(home, away)
            for _ in range(100):
                home.send(CONTROL, 0, bytes(50_000), barrier=True)
                away.send(CONTROL, 0, bytes(50_000))
            for copy in copies:
                copy.close()


def test_the_call_of_a_process_that_is_about_to_end_takes_no_other_home() -> None:
    """Home has let go of a child that it has killed; until the child has died here, its calls have no home."""
    source = (
        "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nsys.stdin.readline()\nchild = os.fork()\n"
        f"if not child: libc.syscall({SYS.getppid})\n"
        f"while open(f'/proc/{{child}}/syscall').read().split()[0] != '{SYS.getppid}': pass\n"
        f"libc.syscall({SYS.unshare}, 0)\n"
    )
    notify = [(0x20, 0, 0, 0), (0x15, 1, 0, SYS.getppid), (0x15, 0, 1, SYS.unshare), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, start_new_session=True) as parent:
        try:
            with seizing.seize(parent.pid) as frozen:
                listener = install_filter(frozen, b"".join(struct.pack("<HBBI", *row) for row in notify))
            with AwayLink(listener, parent.pid, {parent.pid: 1}) as away:
                assert parent.stdin is not None
                parent.stdin.write(b"go\n")
                parent.stdin.flush()
                events = collect(away, lambda events: any(event.code == SYS.unshare for event in events))
                assert [(event.kind, event.tid, event.code) for event in events] == [(Kind.GO_HOME_CALL, 1, SYS.unshare)]
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
