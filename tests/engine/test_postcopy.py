"""The receiver of memory that follows a process, and the side that ensures that all of it arrives."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from deputy.moves.memory_late import LateMemory
from engine.mappings.layout import Span
from engine.pour import postcopy, precopy
from kernel_helpers.pages.pages import GUARD_INSTALL, guards, knows_guards, own_bytes
from kernel_helpers.postcopy.postcopy import Given, Sink, give_pages
from kernel_helpers.process import seizing
from kernel_helpers.stream.stream import Connection, open_encrypted
from tests.engine.support import PYTHON
from tests.engine.test_precopy import BIG, process
from wire.waking import ready

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(os.geteuid() != 0, reason="needs ptrace of any process")]


@contextmanager
def watched() -> Iterator[tuple[int, int, list[Span]]]:
    """A process that runs, its userfaultfd, and areas of it."""
    with process(BIG) as big:
        areas = [(area.start, area.end) for area in precopy.areas_of(big.pid)]
        frozen = seizing.seize(big.pid)
        try:
            userfaultfd = postcopy.userfaultfd(frozen)
        finally:
            frozen.detach()
        yield big.pid, userfaultfd, areas


def test_a_taker_may_be_closed_while_it_is_served() -> None:
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
        late = LateMemory(pid, userfaultfd, areas, may_follow=True)
        keeper = late._guard
        assert keeper is not None
        assert keeper.stdin is not None
        if follows:
            late._arm_guard()
        keeper.stdin.close()  # as the end of the deputy does
        assert keeper.wait(10) == 0
        with os.fdopen(os.pidfd_open(pid)) as handle:
            assert bool(ready([handle.fileno()], 10.0 if follows else 0.5)) is follows
        assert keeper.stdout is not None
        keeper.stdout.close()
        late._guard = None
        late.forgo()


PAGES, AT, THERE = 32, 0x200000000000, 0x300000000000
DONTNEED = 4
KEEPER = f"""
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
address, size = ctypes.c_void_p, ctypes.c_size_t
libc.mmap.argtypes, libc.mmap.restype = [address, size, *[ctypes.c_int] * 3, ctypes.c_long], address
libc.mprotect.argtypes = libc.madvise.argtypes = [address, size, ctypes.c_int]
libc.mremap.argtypes, libc.mremap.restype = [address, size, size, ctypes.c_int, address], address
libc.memcpy.argtypes = [address, address, size]
def said(good):
    sys.stdout.write("done\\n" if good else "failed\\n")
def page(number, at):
    value = ctypes.c_uint64()
    libc.memcpy(ctypes.byref(value), at + (number << 12), 8)
    sys.stdout.write(f"{{number}} {{value.value}}\\n")
assert libc.mmap({AT}, {PAGES} << 12, 3, 0x100022, -1, 0) == {AT}
for number in range({PAGES}):
    ctypes.c_uint64.from_address({AT} + (number << 12)).value = number + 1
said(True)
for line in sys.stdin:
    threading.Thread(target=exec, args=(line, globals()), daemon=True).start()
"""


class Keeper:
    """A process with PAGES pages at AT: each holds its number, from 1 on. It executes lines of Python, each in a thread."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.pid = running.pid
        assert running.stdin is not None
        assert running.stdout is not None
        self._stdin, self._stdout = running.stdin, running.stdout.fileno()
        self._said = ""
        assert self.answer() == "done"

    def ask(self, line: str) -> None:
        print(line, file=self._stdin, flush=True)

    def answer(self, seconds: float = 10) -> str:
        """ "": none."""
        while "\n" not in self._said and ready([self._stdout], seconds):
            more = os.read(self._stdout, 65536)
            assert more, "it has ended"
            self._said += more.decode()
        said, _, self._said = self._said.partition("\n")
        return said

    def does(self, line: str) -> None:
        self.ask(f"said({line})")
        assert self.answer() == "done"

    def pages(self, at: int = AT) -> list[str]:
        self.ask(f"[page(number, {at}) for number in range({PAGES})]")
        return [self.answer() for _ in range(PAGES)]


@contextmanager
def keeper() -> Iterator[Keeper]:
    argv = [PYTHON, "-u", "-c", KEEPER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield Keeper(running)
        finally:
            running.kill()


class Following:
    """A process all of whose pages are missing, and are to follow it; another one has them."""

    def __init__(self, process: Keeper, left: Keeper) -> None:
        self.process, self.left = process, left
        process.does(f"not libc.madvise({AT}, {PAGES} << 12, {DONTNEED})")
        frozen = seizing.seize(process.pid)
        try:
            userfaultfd = postcopy.userfaultfd(frozen)
        finally:
            frozen.detach()
        self._changed, self._stop = os.eventfd(0), os.eventfd(0)
        self.sink = Sink(process.pid, userfaultfd, self._changed)
        self.sink.register(SPAN)
        self.sink.owe([SPAN])
        self._serving = threading.Thread(target=self.sink.serve)
        self._giving: threading.Thread | None = None

    def serve(self) -> None:
        """Starts to serve its pages."""
        self._serving.start()

    def follow(self) -> None:
        """Starts to send the pages."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            self.follow_by(ours, listener.accept()[0])

    def follow_by(self, ours: Connection, theirs: Connection) -> None:
        """Starts to send the pages to `ours`, by `theirs`."""
        self.sink.attach(theirs)
        self._giving = threading.Thread(target=self._give, args=(ours,))
        self._giving.start()

    def _give(self, connection: Connection) -> None:
        with connection:
            give_pages(self.left.pid, connection, 15.0, self._stop, Given())

    def finish(self) -> None:
        """Waits until all pages have come."""
        for thread in (self._giving, self._serving):
            if thread is not None and thread.ident:
                thread.join(20)
                assert not thread.is_alive()

    def close(self) -> None:
        """When all have come, if they come."""
        if self._giving is None:
            self.sink.close()
        self.finish()
        self.sink.free()
        os.close(self._changed)
        os.close(self._stop)


SPAN = (AT, AT + (PAGES << 12))
ALL = [f"{number} {number + 1}" for number in range(PAGES)]


@pytest.fixture
def following() -> Iterator[Following]:
    with keeper() as left, keeper() as process:
        made = Following(process, left)
        try:
            yield made
        finally:
            made.close()


def test_pages_come_that_are_of_two_mappings_by_now(following: Following) -> None:
    """A program that protects a part of a mapping splits it, which no event reports."""
    following.serve()
    following.process.does(f"not libc.mprotect({AT + (PAGES // 2 << 12)}, {PAGES // 2 << 12}, 1)")
    following.follow()
    assert following.process.pages() == ALL


@pytest.mark.skipif(not knows_guards(), reason="this kernel knows no guards (Linux 6.13)")
def test_pages_do_not_take_the_place_of_guards(following: Following) -> None:
    guarded = (AT + (3 << 12), AT + (5 << 12))
    following.process.does(f"not libc.madvise({guarded[0]}, {2 << 12}, {GUARD_INSTALL})")
    following.serve()
    following.follow()
    following.finish()
    assert guards(following.process.pid) == [guarded]
    assert own_bytes(following.process.pid, *SPAN) == (PAGES - 2) << 12


def test_pages_come_to_where_others_wait_for_them_already(following: Following) -> None:
    """While a thread moves memory, others touch it there: that they do is heard first, and that it was moved later."""
    process, touched = following.process, 15
    process.ask(f"said(libc.mremap({AT}, {PAGES} << 12, {PAGES} << 12, 3, {THERE}) == {THERE})")
    for number in range(touched):
        process.ask(f"time.sleep(.1); page({number}, {THERE})")
    assert not process.answer(0.5)
    following.serve()
    following.follow()
    assert {process.answer() for _ in range(touched + 1)} == {"done", *ALL[:touched]}
    assert process.pages(THERE) == ALL


def test_a_wait_for_a_page_ends_when_the_page_is_given_back(following: Following) -> None:
    """Not for the others of the process's pages either."""
    following.serve()
    following.process.ask(f"page(3, {AT})")
    assert not following.process.answer(0.5)
    following.process.ask(f"said(not libc.madvise({AT + (3 << 12)}, 4096, {DONTNEED}))")
    assert {following.process.answer() for _ in range(2)} == {"done", "3 0"}


@contextmanager
def bursts() -> Iterator[tuple[Connection, Connection]]:
    """An encrypted connection; what is sent at its first end comes to the other one all at once, when nothing more is sent for a while."""
    ends = [socket.socketpair() for _ in range(2)]
    (sender, near), (far, receiver) = ends

    def carry(source: socket.socket, to: socket.socket, pause: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                while pause and ready([source.fileno()], pause) and (more := source.recv(1 << 20)):
                    data += more
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    carriers = [threading.Thread(target=carry, args=args) for args in ((near, far, 0.3), (far, near, 0.0))]
    for carrier in carriers:
        carrier.start()
    greeted: list[Connection] = []
    greeting = threading.Thread(target=lambda: greeted.append(open_encrypted(receiver, b"s" * 32, None, 20.0)))
    greeting.start()
    try:
        caller = open_encrypted(sender, b"s" * 32, "page", 20.0)
        greeting.join(20)
        yield caller, greeted[0]
    finally:
        for one in (near, far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for carrier in carriers:
            carrier.join(20)
        near.close()
        far.close()


def test_pages_that_arrived_with_others_are_not_left_in_the_connection(following: Following) -> None:
    """Covers pages that an encrypted connection has already taken from its socket, which no longer polls as readable."""
    following.left.does(f"not libc.madvise({AT + (PAGES // 2 << 12)}, {PAGES // 2 << 12}, {DONTNEED})")
    with bursts() as (ours, theirs):
        following.serve()
        following.follow_by(ours, theirs)
        assert following.process.pages() == [*ALL[: PAGES // 2], *(f"{number} 0" for number in range(PAGES // 2, PAGES))]
