"""Lists of writes that the guest's node has answered: home takes those that can be, and nothing of any other."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from bench.calls.link_pair import wait_for
from kernel_helpers.link.ends.events import Kind
from kernel_helpers.link.ends.home import HomeLink
from tests.link.test_kept import DONE, REQUEST
from tests.link.test_session import RESUME, collect, frame

pytestmark = pytest.mark.timeout(60)
AHEAD = 9
RECORD = struct.Struct("<iIIIq")
WRITE_ON, WRITE_AT, SEEK, CLOSE, SKIP = range(5)
LIMIT, WRITE = 65536, 32768
HEADER = 4096
"""Bytes of a slot before its data."""


def record(descriptor: int, kind: int, data: bytes = b"", position: int = 0, length: int = -1) -> bytes:
    head = RECORD.pack(descriptor, kind, len(data) if length < 0 else length, 0, position)
    return head + data.ljust(len(data) + 7 & ~7, b"\0")


@pytest.fixture
def home() -> Iterator[HomeLink]:
    with HomeLink([1]) as made:
        made.set_stub(os.getpid(), 1 << 40)
        yield made


@pytest.fixture
def far(home: HomeLink) -> Iterator[socket.socket]:
    one, two = socket.socketpair()
    two.settimeout(20)
    home.attach(one.detach())
    two.sendall(frame(RESUME))
    yield two
    two.close()


def test_a_list_is_given_to_the_loop_unchanged_and_later_messages_wait(home: HomeLink, far: socket.socket) -> None:
    many = [record(3, WRITE_ON, b"abc"), record(4, WRITE_AT, b"x" * WRITE, 17), record(3, SEEK, position=5), record(3, CLOSE)]
    with mmap.mmap(home.memfd, 0) as slots:
        slot = home.slot_offset(0)
        far.sendall(frame(AHEAD, b"".join(many), 1, tid=1) + frame(AHEAD, many[0], 2, tid=1))
        wait_for(lambda: slots[slot + REQUEST] == 1, 10, "the list was not taken")
        assert slots[slot + HEADER : slot + HEADER + len(b"".join(many))] == b"".join(many)
        assert not home.has_written
        slots[slot + DONE] = 1
        wait_for(lambda: slots[slot + REQUEST] == 2, 10, "the next one was not taken")
        slots[slot + DONE] = 2
        wait_for(lambda: home.has_written, 10, "it is at it still")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        record(3, WRITE_ON, b"abc")[:-1],
        record(3, WRITE_ON, b"abc") + b"\0" * 8,
        record(-1, WRITE_ON, b"abc"),
        record(3, SKIP),
        record(3, 77, b"abc"),
        record(3, WRITE_ON),
        record(3, SEEK, b"abc"),
        record(3, WRITE_AT, b"abc", -1),
        record(3, WRITE_ON, b"abc", length=64),
        record(3, WRITE_ON, b"abc", length=(1 << 32) - 1),
        record(3, WRITE_ON, b"x" * (WRITE + 1)),
        record(3, WRITE_ON, b"x" * WRITE) * 2,
    ],
    ids=[
        "nothing",
        "cut off",
        "too long",
        "no descriptor",
        "left out",
        "unknown",
        "no bytes",
        "bytes to seek",
        "before the file",
        "less than it says",
        "far less",
        "one too long",
        "all too long",
    ],
)
def test_an_invalid_list_breaks_the_connection_and_has_no_effect(home: HomeLink, far: socket.socket, body: bytes) -> None:
    with mmap.mmap(home.memfd, 0) as slots:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its head is enough
            far.sendall(frame(AHEAD, body, 1, tid=1))
        events = collect(home, lambda events: any(event.kind == Kind.CONNECTION_LOST for event in events), 10)
        assert events[-1].data == b"writes that cannot be"
        assert slots[home.slot_offset(0) + REQUEST] == 0
