"""Pages that a process which stands still puts into a pipe itself."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from engine.memory import splicing
from engine.memory.splicing import splicer
from kernel_helpers.pages.pages import PageRange, PageTotals, receive_own_pages, send_own_pages
from kernel_helpers.process.seizing import Frozen, seize

ADDRESS, SIZE = 0x5510_0000_0000, 64 << 20
EMPTY = (ADDRESS + (16 << 20), ADDRESS + (24 << 20))
"""Zeros."""
CLOSED = (ADDRESS + (40 << 20), ADDRESS + (42 << 20))
"""A span without read permission."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

pytestmark = [
    pytest.mark.timeout(60), pytest.mark.skipif(os.geteuid() != 0, reason="reads memory of other processes")
]  # fmt: skip


@contextmanager
def process(content: bytes = b"", full: bool = False) -> Iterator[tuple[int, int]]:
    """A process with SIZE bytes at ADDRESS, all of this content again and again but for EMPTY, and a pipe on which it reports that it runs.
    full: it may have no more descriptors than it has."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _libc.mmap(ADDRESS, SIZE, 3, 0x100022, -1, 0)
            for at in range(0, SIZE if content else 0, max(1, len(content))):
                ctypes.memmove(ADDRESS + at, content, len(content))
            if content:
                ctypes.memset(EMPTY[0], 0, EMPTY[1] - EMPTY[0])
                _libc.mprotect(CLOSED[0], CLOSED[1] - CLOSED[0], 0)
            if full:
                free = os.dup(write)
                os.close(free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
            while True:
                os.write(write, b"x")
                time.sleep(0.01)
        finally:
            os._exit(1)
    try:
        os.close(write)
        assert os.read(read, 1) == b"x"
        yield pid, read
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read)


def content_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(ADDRESS)
        return memory.read(SIZE)


def layout_of(pid: int) -> tuple[list[str], list[str]]:
    """Returns its descriptors and its mappings."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sorted(os.listdir(f"/proc/{pid}/fd")), [line for line in maps if "[stack]" not in line]


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


@contextmanager
def target(far: socket.socket) -> Iterator[tuple[int, Callable[[], list[PageTotals]]]]:
    """A process that receives the pages; and a function that waits until all have come, and returns the totals."""
    taken: list[PageTotals] = []
    with process() as (pid, _):
        ranges = [PageRange(ADDRESS, ADDRESS + SIZE)]
        taker = threading.Thread(target=lambda: taken.append(receive_own_pages(pid, ranges, far.fileno(), 20.0)))
        taker.start()

        def all_taken() -> list[PageTotals]:
            taker.join(30)
            return taken

        try:
            yield pid, all_taken
        finally:
            all_taken()


def goes_on(descriptor: int, bytes_there: int = 1 << 16) -> bool:
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        while os.read(descriptor, bytes_there):
            pass
    os.set_blocking(descriptor, True)
    return os.read(descriptor, 1) == b"x"


def send(frozen: Frozen, near: socket.socket) -> tuple[PageTotals, int]:
    """Sends the pages; returns the totals, and the number of bytes that were sent without being read."""
    with splicer(frozen) as by_itself:
        totals = send_own_pages(frozen.pid, [PageRange(ADDRESS, ADDRESS + SIZE)], near.fileno(), 20.0, splicer=by_itself)
        return totals, by_itself.bytes if by_itself is not None else 0


def test_pages_arrive_as_they_are_and_the_process_is_as_it_was() -> None:
    with process(random.Random(1).randbytes(1 << 20)) as (source, runs), connection() as (near, far):
        wanted, before = content_of(source), layout_of(source)
        frozen = seize(source)
        try:
            with target(far) as (other, taken):
                sent, unread = send(frozen, near)
                # Zeros are found and left out, and spans without read permission are read otherwise.
                assert SIZE * 3 // 4 < unread < SIZE - (EMPTY[1] - EMPTY[0])
                assert taken() == [sent]
                assert sent.zero_bytes > (EMPTY[1] - EMPTY[0]) * 3 // 4
                assert content_of(other) == wanted
        finally:
            frozen.detach()
        assert goes_on(runs)
        assert layout_of(source) == before
        assert content_of(source) == wanted


def assert_all_is_read(full: bool = False) -> None:
    """It goes as if nothing had been tried, and leaves nothing."""
    before = sorted(os.listdir("/proc/self/fd"))
    with process(random.Random(2).randbytes(1 << 20), full) as (source, runs), connection() as (near, far):
        wanted, layout = content_of(source), layout_of(source)
        frozen = seize(source)
        try:
            with target(far) as (other, taken):
                sent, unread = send(frozen, near)
                assert (taken(), unread) == ([sent], 0)
                assert content_of(other) == wanted
        finally:
            frozen.detach()
        assert goes_on(runs)
        assert layout_of(source) == layout
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_pages_of_a_process_without_free_descriptors_are_read() -> None:
    assert_all_is_read(full=True)


def test_pages_are_read_if_the_pipe_cannot_be_made_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing, "_PIPE_BYTES", -1)
    assert_all_is_read()


def test_a_receiver_that_takes_no_pages_is_reported_and_the_process_goes_on() -> None:
    with process(random.Random(3).randbytes(1 << 20)) as (source, runs), connection() as (near, far):
        before = layout_of(source)
        frozen = seize(source)
        try:
            with splicer(frozen) as by_itself, pytest.raises(TimeoutError):
                send_own_pages(source, [PageRange(ADDRESS, ADDRESS + SIZE)], near.fileno(), 0.3, splicer=by_itself)
            far.close()
            with splicer(frozen) as by_itself, pytest.raises((ConnectionResetError, BrokenPipeError)):
                send_own_pages(source, [PageRange(ADDRESS, ADDRESS + SIZE)], near.fileno(), 5.0, splicer=by_itself)
        finally:
            frozen.detach()
        assert goes_on(runs)
        assert layout_of(source) == before


def test_a_process_killed_meanwhile_leaves_nothing() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with process(random.Random(4).randbytes(1 << 20)) as (source, _), connection() as (near, _far):
        frozen = seize(source)
        with pytest.raises(OSError, match=r"No such process|Bad address|Connection reset"), splicer(frozen) as by_itself:
            os.kill(source, 9)
            send_own_pages(source, [PageRange(ADDRESS, ADDRESS + SIZE)], near.fileno(), 5.0, splicer=by_itself)
        frozen.detach()
    assert sorted(os.listdir("/proc/self/fd")) == before
