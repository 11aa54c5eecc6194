"""Who takes memory that follows a process, and who sees to it that all of it comes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deputy.pledge import Pledge
from engine import postcopy, precopy
from engine.layout import Span
from kernel_helpers import inject
from kernel_helpers.postcopy import Given, give_pages
from tests.engine.test_precopy import BIG, process
from wire.waking import ready

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(os.geteuid() != 0, reason="needs ptrace of any process")]


@contextmanager
def watched() -> Iterator[tuple[int, int, list[Span]]]:
    """A process that runs, its userfaultfd, and areas of it."""
    with process(BIG) as big:
        areas = [(area.start, area.end) for area in precopy.areas_of(big.pid)]
        frozen = inject.seize(big.pid)
        try:
            userfaultfd = postcopy.userfaultfd(frozen)
        finally:
            frozen.detach()
        yield big.pid, userfaultfd, areas


def test_a_taker_may_be_closed_while_it_is_looked_after() -> None:
    with watched() as (pid, userfaultfd, areas):
        taker, over = postcopy.Taker(pid, userfaultfd), threading.Event()
        taker.guard(areas)
        taker.start(60.0, over.set)
        taker.close()
        assert over.wait(10)
        assert (taker.is_over, taker.left, taker.failure) == (True, 0, "")
        taker.close()


@pytest.mark.parametrize("follows", [False, True])
def test_a_deputy_that_dies_takes_with_it_only_a_process_that_lacks_memory(follows: bool) -> None:
    with watched() as (pid, userfaultfd, areas):
        pledge = Pledge(pid, userfaultfd, areas, may_follow=True)
        keeper = pledge._keeper
        assert keeper is not None
        assert keeper.stdin is not None
        if follows:
            pledge._arm()
        keeper.stdin.close()  # as the end of the deputy does
        assert keeper.wait(10) == 0
        with os.fdopen(os.pidfd_open(pid)) as handle:
            assert bool(ready([handle.fileno()], 10.0 if follows else 0.5)) is follows
        assert keeper.stdout is not None
        keeper.stdout.close()
        pledge._keeper = None
        pledge.forgo()


PAGES, AT = 32, 0x200000000000
HALVES = f"""
import ctypes, sys
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap({AT}, {PAGES} << 12, 3, 0x100022, -1, 0) == {AT}
memory = (ctypes.c_uint64 * ({PAGES} << 9)).from_address({AT})
for page in range({PAGES}):
    memory[page << 9] = page + 1
print("ready", flush=True)
for line in sys.stdin:
    if line == "split\\n":
        assert libc.mprotect(ctypes.c_void_p({AT} + ({PAGES} // 2 << 12)), {PAGES} // 2 << 12, 1) == 0
    print(*memory[:: 1 << 9] if line == "tell\\n" else ["done"], flush=True)
"""


@contextmanager
def halves() -> Iterator[subprocess.Popen[str]]:
    """A process with PAGES pages at AT, each with its number; it makes two mappings of them, and tells what they have."""
    argv = [sys.executable, "-c", HALVES]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert answer(running) == "ready"
            yield running
        finally:
            running.kill()


def answer(running: subprocess.Popen[str], question: str = "") -> str:
    assert running.stdin is not None
    assert running.stdout is not None
    if question:
        print(question, file=running.stdin, flush=True)
    return running.stdout.readline().rstrip()


def test_pages_come_that_are_of_two_mappings_by_now() -> None:
    """A program that protects a part of a mapping makes two of it, of which nobody is told."""
    with halves() as left, halves() as process:
        span = (AT, AT + (PAGES << 12))
        frozen = inject.seize(process.pid)
        try:
            taker, over = postcopy.Taker(process.pid, postcopy.userfaultfd(frozen)), threading.Event()
            taker.guard([span])
            taker.owe(frozen, [span])
        finally:
            frozen.detach()
        assert answer(process, "split") == "done"
        ours, theirs = socket.create_connection((listener := socket.create_server(("127.0.0.1", 0))).getsockname()), listener.accept()[0]
        stop = os.eventfd(0)
        giving = threading.Thread(target=give_pages, args=(left.pid, ours.fileno(), 15.0, stop, Given()))
        giving.start()
        taker.attach(theirs)
        taker.start(30.0, over.set)
        assert over.wait(20)
        giving.join(20)
        for closed in (ours, listener):
            closed.close()
        os.close(stop)
        assert taker.failure == ""
        assert answer(process, "tell").split() == [str(page + 1) for page in range(PAGES)]
