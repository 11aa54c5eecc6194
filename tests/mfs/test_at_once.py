"""Simultaneous changes by several writers: each waits until a peer that has pages has confirmed its change, whatever else that confirms."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mfs import caller
from tests.mfs.caller import Caller
from tests.mfs.nodes import until
from tests.mfs.served import Served
from tests.mfs.threads import stopped, waiting

LARGE = 1 << 20
ATTEMPTS = 5
MOMENT = 0.5
"""Seconds within which a fence comes, if others are not waited for."""


@pytest.fixture
def file(area: Path) -> Path:
    """A small one; beside it there is another, and one that is large."""
    made = area / "shown" / "file"
    for one in (made, made.with_name("other")):
        one.write_text("as it was")
    made.with_name("large").write_bytes(bytes(LARGE))
    return made


@pytest.fixture
def reader(served: Served) -> Iterator[Caller]:
    """A peer that has pages."""
    one = served.caller()
    yield one
    one.close()


@pytest.fixture
def writers(served: Served) -> Iterator[list[Caller]]:
    """Two of them."""
    found = [served.caller() for _ in range(2)]
    yield found
    for one in found:
        one.close()


def fence(peer: Caller) -> int:
    """Returns the number of a fence if the next frame is one (receive_frame() acknowledges it), else 0. The ping ensures a frame."""
    peer.send(caller.PING, 0)
    _, error, body = peer.receive_frame()
    return int.from_bytes(body[:8], "little") if error == caller.FENCE else 0


def ask_for_much(peer: Caller, file: Path) -> int:
    """Sends requests whose answers fill the connection, so that the server has to wait for a reader; returns how many."""
    node = peer.walk(file.with_name("large")).node
    handle = peer.open(node)
    peer.back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for _ in range(count := 8):  # so that the server's end is full; it may have 4 MiB
        peer.send(caller.READ, node, struct.pack("<QQIIQII", handle, 0, LARGE, 0, 0, 0, 0))
    time.sleep(0.2)
    return count


def in_a_moment(work: Callable[..., object], *arguments: object) -> threading.Thread:
    """It has begun."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    time.sleep(0.02)
    return thread


def truncate(peer: Caller, file: int) -> None:
    """To four bytes, which gives the peer no pages."""
    peer.ask(caller.SETATTR, file, struct.pack("<2I3Q", 8, 0, 0, 4, 0) + bytes(56))


def test_a_fence_confirms_only_earlier_notifications(served: Served, writers: list[Caller], file: Path) -> None:
    """The fence was also numbered by a notification about to be sent: its writer did not wait for its own fence then."""
    paths = (file, file.with_name("other"))
    nodes = [one.walk(path).node for one, path in zip(writers, paths, strict=True)]
    handles = [one.open(node, os.O_RDWR) for one, node in zip(writers, nodes, strict=True)]

    def write(number: int) -> threading.Thread:
        return in_a_moment(writers[number].write, nodes[number], handles[number], b"AS")

    for _ in range(ATTEMPTS):
        with contextlib.closing(served.caller()) as reader:
            for node in [reader.walk(path).node for path in paths]:
                reader.read(node, reader.open(node))
            answers, number = ask_for_much(reader, file), 0
            before = waiting(served.process.pid)
            threads = [write(0)]
            (slow,) = waiting(served.process.pid) - before
            with stopped(slow):
                threads.append(write(1))
                while answers:
                    answers -= bool(reader.receive_frame()[0])
                end = time.monotonic() + MOMENT
                while not number and time.monotonic() < end:
                    number = fence(reader)
                notified = len(reader.notified)
            while any(thread.is_alive() for thread in threads):
                fence(reader)
        assert number <= notified
        if number:
            return
    pytest.fail("the machine is too busy: no notification arrived in time")


def test_a_write_after_anothers_truncation_waits_too(reader: Caller, writers: list[Caller], file: Path) -> None:
    """The first writer's notification has not reached the reader yet, but the server counts it as sent."""
    first, second = writers
    theirs = [one.walk(file).node for one in (first, second)]
    handle = second.open(theirs[1], os.O_RDWR)
    node = reader.walk(file).node
    reader.read(node, reader.open(node))
    answers = ask_for_much(reader, file)
    threads = [in_a_moment(truncate, first, theirs[0]), in_a_moment(second.write, theirs[1], handle, b"AS")]
    threads[1].join(0.2)
    assert threads[1].is_alive()
    while answers:
        answers -= bool(reader.receive_frame()[0])
    until(lambda: fence(reader), "a fence")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert (caller.INVAL_INODE, node) in reader.notified


def test_a_write_after_one_at_home_waits_too(reader: Caller, writers: list[Caller], file: Path) -> None:
    """The reader is notified of writes by programs at home, but may not have checked its pages yet."""
    writer = writers[0]
    theirs = writer.walk(file).node
    handle = writer.open(theirs, os.O_RDWR)
    node = reader.walk(file).node
    reader.read(node, reader.open(node))
    with file.open("r+") as held:
        held.write("changed")
    until(lambda: (caller.REVALIDATE_SOON, node) in reader.notified or (reader.receive_frame() and False), "word of it")
    thread = in_a_moment(writer.write, theirs, handle, b"AS")
    thread.join(0.2)
    assert thread.is_alive()
    until(lambda: fence(reader), "a fence")
    thread.join(10)
    assert not thread.is_alive()
    assert (caller.INVAL_INODE, node) in reader.notified
