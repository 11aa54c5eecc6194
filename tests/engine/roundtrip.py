"""A process leaves, runs elsewhere as a copy, and comes home, all on one machine and without a network or CRIU.

The copy that engine.criu.forkcopy makes plays the guest; the process itself is hollowed as a stub is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from engine.context.capture import capture, scratch_page, send_pages
from engine.context.context import Context
from engine.criu.forkcopy import fork_copy
from engine.mappings.mappings import Mapping, free_address, read_mappings
from engine.pour.refill import Refilled, refill
from kernel_helpers.pages.pages import PageTotals
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen, find_instruction, seize
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.tracing import signal_number

PAGE = 4096
RESIDENT_BYTES = 2 * PAGE
NO_HEAP_GROWS_HERE = 0x100000000000
"""Between the heaps (at most a gigabyte above a program, wherever that is loaded) and what mmap hands out. A stub whose page is in the
way of what its process has mapped meanwhile moves it (deputy/stub/); these stubs cannot."""


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), timeout=20)
        far, _ = server.accept()
    with near, far:
        far.settimeout(20)
        yield near, far


def hollow(frozen: Frozen) -> tuple[int, int]:
    """Gives the process's memory up as a stub does; returns the range of its resident page."""
    maps = read_mappings(frozen.pid)
    at = free_address([(m.start, m.end) for m in maps], RESIDENT_BYTES, lowest=NO_HEAP_GROWS_HERE)
    frozen.call(SYS.mmap, at, RESIDENT_BYTES, 7, 0x100022, -1, 0)
    frozen.write(at, b"\x0f\x05\xcc")
    frozen.instruction = at
    for thread in frozen.threads.values():
        now = thread.rseq()
        if now.pointer:
            check(thread.call(SYS.rseq, now.pointer, now.size, 1, now.signature), "rseq")
    for m in maps:
        if m.special:
            continue
        if m.is_file:
            if m.private:
                frozen.call(SYS.madvise, m.start, m.length, 4)
        elif m.path == "[stack]":
            frozen.call(SYS.munmap, m.start, m.length - 2 * PAGE)
        else:
            frozen.call(SYS.munmap, m.start, m.length)
    return at, at + RESIDENT_BYTES


@dataclass
class Guest:
    """The copy that runs while the process is hollow."""

    pid: int
    tids: dict[int, int]
    """tid of the copy -> tid of the process"""
    stub: Frozen
    reserved: tuple[int, int]
    discard: Callable[[], None]

    def capture(self) -> tuple[Frozen, Context]:
        """Freezes the guest; its context speaks of the process's own tids and has gone over the wire."""
        frozen = seize(self.pid)
        context = capture(frozen)
        context = replace(
            context,
            pid=self.stub.pid,
            threads=tuple(replace(t, tid=self.tids[t.tid]) for t in context.threads),
        )
        return frozen, Context.from_wire(context.to_wire())


def end(pid: int, tids: Iterable[int]) -> None:
    """Kills a process and takes the deaths of those of its threads that are traced by us: zombies of ours otherwise."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for tid in sorted(tids, key=lambda tid: tid == pid):
        with suppress(ChildProcessError):
            os.waitpid(tid, 0x40000000)


def take_deliverable(frozen: Frozen) -> list[tuple[int, int]]:
    """(thread, signal) of what was just about to be delivered when the process was stopped. It is the guest that has to
    see it: a call of raise() must not return before its handler has run."""
    taken = []
    context = capture(frozen)
    for thread in context.threads:
        stopped = frozen.threads[thread.tid]
        for info in thread.pending:
            number = signal_number(info)
            if thread.signal_mask >> (number - 1) & 1:
                continue
            taken.append((thread.tid, number))
            if info in stopped.in_hand:
                stopped.in_hand.remove(info)
                continue
            with scratch_page(frozen) as scratch:
                frozen.write(scratch, (1 << number - 1).to_bytes(8, "little") + bytes(16))
                assert stopped.call(SYS.rt_sigtimedwait, scratch, 0, scratch + 8, 8) == number
    return taken


def os_tgkill(pid: int, tid: int, number: int) -> int:
    """tgkill(2)."""
    return int(ctypes.CDLL(None).syscall(SYS.tgkill, pid, tid, number))


@contextmanager
def away(pid: int) -> Iterator[Guest]:
    """The process is hollow and its copy runs."""
    stub = seize(pid)
    deliverable = take_deliverable(stub)
    copy = fork_copy(stub)
    try:
        reserved = hollow(stub)
        for tid, number in deliverable:
            check(os_tgkill(copy.pid, copy.threads[tid], number), "tgkill")
        os.kill(copy.pid, signal.SIGCONT)
        tids = {new: old for old, new in copy.threads.items()}

        def discard() -> None:
            end(copy.pid, copy.threads.values())
            copy.discard()

        yield Guest(copy.pid, tids, stub, reserved, discard)
        discard()
    except BaseException:
        # Nothing is to be saved.
        end(copy.pid, copy.threads.values())
        with suppress(OSError):
            copy.discard()
        end(pid, stub.threads)
        raise


def pour(guest: Guest, context: Context) -> Refilled:
    """refill with the guest's pages through a TCP connection. The guest is frozen."""
    sent: list[PageTotals | BaseException] = []

    def send(stream: socket.socket) -> None:
        try:
            sent.append(send_pages(guest.pid, context.maps, stream, timeout=20))
        except OSError as error:
            sent.append(error)

    with connection() as (near, far):
        sender = threading.Thread(target=send, args=(near,))
        sender.start()
        try:
            refilled = refill(guest.stub, context, far, [guest.reserved], timeout=20)
        finally:
            far.close()
            sender.join(30)
    assert sent == [refilled.pages]
    return refilled


def go_on(guest: Guest) -> None:
    """The process is native again."""
    guest.discard()
    stub = guest.stub
    stub.instruction = find_instruction(stub.pid)
    stub.call(SYS.munmap, guest.reserved[0], RESIDENT_BYTES)
    stub.detach()


def merged(maps: tuple[Mapping, ...]) -> list[tuple[int, int, int, str, frozenset[str]]]:
    """Comparable: neighbours that the kernel may keep apart or not are joined. (Whether memory is accounted for depends
    on what a mapping once was.)"""
    found: list[tuple[int, int, int, str, frozenset[str]]] = []
    for m in maps:
        if m.special:
            continue
        item = (m.start, m.end, m.prot, m.path, m.vmflags - {"ac"})
        if found and found[-1][1] == item[0] and found[-1][2:] == item[2:]:
            item = (found.pop()[0], *item[1:])
        found.append(item)
    return found


def memory_of(pid: int, m: Mapping) -> Iterator[tuple[int, bytes]]:
    """(address, bytes) of a mapping, 1 MiB each; a file's pages beyond its end are left out."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for at in range(m.start, m.end, 1 << 20):
            try:
                yield at, os.pread(descriptor, min(1 << 20, m.end - at), at)
            except OSError:
                yield at, b""
    finally:
        os.close(descriptor)


def assert_same_memory(context: Context, guest: int, process: int) -> None:
    """All memory of context.maps is the same in both processes, but for what
    the kernel itself writes (rseq)."""
    written = [t.rseq.address for t in context.threads if t.rseq.address]
    for m in context.maps:
        if m.special:
            continue
        for (at, there), (_, here) in zip(memory_of(guest, m), memory_of(process, m), strict=True):
            if there == here:
                continue
            assert len(there) == len(here)
            a, b = bytearray(there), bytearray(here)
            for address in written:
                if at <= address < at + len(a):
                    a[address - at : address - at + 32] = b[address - at : address - at + 32]
            assert a == b, f"{m.path or 'memory'} at {at:x} differs"


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
    """Errors: AssertionError after timeout seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"no {what} in {timeout} s"
        os.sched_yield()
