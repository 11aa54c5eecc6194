"""Pages through a socket: packed where that gets more through, and what does not belong there is refused."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kernel_helpers.pages.pages import (
    GUARD_INSTALL,
    GUARD_REMOVE,
    History,
    PageRange,
    guards,
    knows_guards,
    own_bytes,
    receive_own_pages,
    send_own_pages,
    watch,
    watch_begin,
)  # fmt: skip

ADDRESS, SIZE = 0x2000_0000_0000, 128 << 20
BYTES_A_SECOND = 60 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

pytestmark = [
    pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="reads memory of other processes")
]  # fmt: skip


@contextmanager
def process(content: bytes) -> Iterator[int]:
    """A process that has SIZE bytes at ADDRESS: nothing, or this content again and again."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if _libc.mmap(ADDRESS, SIZE, 3, 0x100022, -1, 0) == ADDRESS:
                for at in range(0, SIZE if content else 0, max(1, len(content))):
                    ctypes.memmove(ADDRESS + at, content, len(content))
                os.write(write, b"x")
                time.sleep(100)
        finally:
            os._exit(1)
    try:
        os.close(write)
        assert os.read(read, 1) == b"x"
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read)


def slow_wire(carried: list[int]) -> tuple[socket.socket, socket.socket]:
    """Returns two ends of a connection with a limited rate in bytes per second; counts the bytes in `carried`."""
    first, second = socket.socketpair()
    third, fourth = socket.socketpair()

    def carry() -> None:
        while piece := second.recv(1 << 18):
            carried[0] += len(piece)
            time.sleep(len(piece) / BYTES_A_SECOND)
            third.sendall(piece)
        third.close()

    threading.Thread(target=carry, daemon=True).start()
    return first, fourth


def content_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(ADDRESS)
        return memory.read(SIZE)


@pytest.mark.parametrize(("packs", "piece"), [(True, bytes(range(256)) * 16), (False, random.Random(1).randbytes(1 << 20))])
def test_content_is_packed_where_the_network_is_slower_than_that(packs: bool, piece: bytes) -> None:
    carried = [0]
    near, far = slow_wire(carried)
    history = History([(ADDRESS, ADDRESS + SIZE)])
    with process(piece) as source, process(b"") as target, near, far:
        sender = threading.Thread(
            target=send_own_pages, args=(source, [PageRange(ADDRESS, ADDRESS + SIZE)], near.fileno(), 30.0, history, False)
        )
        sender.start()
        totals = receive_own_pages(target, [PageRange(ADDRESS, ADDRESS + SIZE)], far.fileno(), 30.0)
        sender.join(30)
        assert totals.bytes == SIZE
        assert content_of(target) == content_of(source)
    history.close()
    assert (carried[0] < SIZE // 2) is packs, carried
    assert carried[0] < SIZE + (1 << 20)


FREED = [(256, 384), (600, 608), (700, 716)]
"""Pages of a small area: many, few, and as many as are checked one by one."""


@contextmanager
def watched(size: int) -> Iterator[Callable[[str, int, int], int]]:
    """A process that has so many bytes at ADDRESS, all written, and is watched; it does to pages [first, end) what it is asked to."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            _libc.mmap(ADDRESS, size, 3, 0x100022, -1, 0)
            userfaultfd = _libc.syscall(323, os.O_CLOEXEC | 1)
            watch_begin(userfaultfd)
            watch(userfaultfd, (ADDRESS, ADDRESS + size))
            ctypes.memset(ADDRESS, 7, size)
            its.send(b"x")
            while word := its.recv(100).decode().split():
                address, length = ADDRESS + int(word[1]) * mmap.PAGESIZE, (int(word[2]) - int(word[1])) * mmap.PAGESIZE
                if word[0] == "write":
                    ctypes.memset(address, 9, length)
                elif word[0] == "read":  # the kernel's page of zeros is there then
                    assert not any(ctypes.string_at(address, length))
                else:
                    _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), {"free": 4, "guard": 102, "unguard": 103}[word[0]])
                its.send(b"x")
        finally:
            os._exit(1)

    def ask(what: str, first: int, end: int) -> int:
        ours.send(f"{what} {first} {end}".encode()) if what else None
        assert ours.recv(1) == b"x"
        return pid

    try:
        ours.settimeout(20)
        yield ask
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        ours.close()
        its.close()


@pytest.mark.parametrize("what", ["free", pytest.param("guard", marks=pytest.mark.skipif(not knows_guards(), reason="no guards"))])
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_memory_given_up_between_rounds_is_gone(what: str, is_read: bool, rounds: int) -> None:
    """Memory that the process writes there afterwards has the written content."""
    size = 4 << 20
    ranges = [PageRange(ADDRESS, ADDRESS + size, written=True)]
    history = History([(ADDRESS, ADDRESS + size)])
    near, far = socket.socketpair()
    with watched(size) as ask, process(b"") as target, near, far:
        source = ask("", 0, 0)

        def send(last: bool) -> tuple[tuple[int, int], ...]:
            sender = threading.Thread(target=send_own_pages, args=(source, ranges, near.fileno(), 30.0, history, last))
            sender.start()
            gone = receive_own_pages(target, [PageRange(ADDRESS, ADDRESS + size)], far.fileno(), 30.0).gone
            sender.join(30)
            return gone

        send(last=False)
        for first, end in FREED:
            ask(what, first, end)
            if what == "guard":
                ask("unguard", first, end)
            if is_read:
                ask("read", first, end)
        for _ in range(1, rounds):
            send(last=False)
        ask("write", 300, 310)
        expected = bytearray(content_of(source)[:size])
        gone = send(last=True)
        found = bytearray(content_of(target)[:size])
        for start, end in gone:
            found[start - ADDRESS : end - ADDRESS] = bytes(end - start)
        assert found == expected
        assert not any(end > ADDRESS + 300 * mmap.PAGESIZE and start < ADDRESS + 310 * mmap.PAGESIZE for start, end in gone)
    history.close()


def frame(magic: bytes, *runs: tuple[int, int], content: bytes = b"", size: int | None = None) -> bytes:
    head = struct.pack("<4sIQ", magic, len(runs), len(content) if size is None else size)
    return head + b"".join(struct.pack("<QQ", *run) for run in runs) + content


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"fhpz", (ADDRESS, 4096), content=b"\xff" * 100), frame(b"fhpz", (ADDRESS, 4096), content=b"\x1f" + b"x" * 10),
        frame(b"fhpz", (ADDRESS, 4096)), frame(b"fhpz", (ADDRESS, 1 << 21), content=b"x" * 64),
        frame(b"fhpg", (ADDRESS, 8192), content=b"x" * 4096), frame(b"fhpg", (ADDRESS + SIZE, 4096), content=b"x" * 4096),
        frame(b"fhpg", (ADDRESS, 4096), content=b"x" * 64, size=1 << 40), frame(b"abcd", (ADDRESS, 4096), content=b"x" * 4096),
    ],
)  # fmt: skip
def test_an_invalid_stream_is_refused(sent: bytes) -> None:
    near, far = socket.socketpair()
    with process(b"") as target, near, far:
        near.sendall(sent)
        near.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError, match="Protocol error"):
            receive_own_pages(target, [PageRange(ADDRESS, ADDRESS + SIZE)], far.fileno(), 5.0)


@pytest.mark.skipif(not knows_guards(), reason="this kernel knows no guards (Linux 6.13)")
def test_guards_are_reported_and_are_no_pages() -> None:
    with mmap.mmap(-1, 64 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        address = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(address)
        del address
        area, pages = (start, start + len(memory)), mmap.PAGESIZE
        for first, count in ((0, 1), (7, 3), (10, 1), (63, 1)):
            memory.madvise(GUARD_INSTALL, first * pages, count * pages)
        memory.madvise(GUARD_REMOVE, 8 * pages, pages)
        wanted = [(start + first * pages, start + end * pages) for first, end in ((0, 1), (7, 8), (9, 11), (63, 64))]
        assert guards(os.getpid(), [area]) == wanted
        assert guards(os.getpid(), [area], by_words=True) == wanted
        assert guards(os.getpid(), [area], most=2) == wanted[:2]
        assert set(wanted) <= set(guards(os.getpid()))
        assert own_bytes(os.getpid(), *area) == (64 - 6) * pages
