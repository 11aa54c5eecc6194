"""Python face of send.c, splice.c, receive.c, written.c, tables/scan.c and history.c: private pages of a process through a socket."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from kernel_helpers.common import library
from kernel_helpers.process.injection.native import Deferred
from kernel_helpers.process.syscalls import Registers
from kernel_helpers.process.thread import Thread
from kernel_helpers.stream.stream import Connection, lent

Span = tuple[int, int]
_HIGHEST = (1 << 47) - 4096
GUARD_INSTALL, GUARD_REMOVE = 102, 103
"""madvise(2)"""
MOST_GUARDS = 1 << 16
"""That a process moves with."""


class _Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("flags", ctypes.c_uint64)]


class _Totals(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("runs", "bytes", "zero_bytes", "checksum")]


class _Run(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint64)]


@dataclass(frozen=True)
class PageRange:
    """Addresses [start, end). keep_zeros (sending): a page of zeros is not what the mapping shows without it (a file).
    discard (receiving): pages may come and are thrown away. written (sending): only what was written since it was sent. missing
    (receiving): most are not there yet, and the userfaultfd that is given has the range registered."""

    start: int
    end: int
    keep_zeros: bool = False
    discard: bool = False
    written: bool = False
    missing: bool = False


@dataclass(frozen=True)
class PageTotals:
    """What went through: runs of pages, their bytes, bytes that were zero and so not sent, checksum of the stream; gone (received): what
    came before, and the process has no more."""

    runs: int
    bytes: int
    zero_bytes: int
    checksum: int
    gone: tuple[Span, ...] = ()


class Meter:
    """Watches while pages go through, from another thread."""

    def __init__(self) -> None:
        self.totals = _Totals()

    @property
    def bytes(self) -> int:
        """Of pages, that have gone through so far."""
        return int(self.totals.bytes)


class _Splicer(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("tid", "pipe", "inside", "refused", "pause_loop", "padding")],
        ("instruction", ctypes.c_uint64), ("room", ctypes.c_uint64), ("registers", Registers), ("deferred", Deferred),
        ("bytes", ctypes.c_uint64),
    ]  # fmt: skip


class Splicer:
    """A thread that stands still and puts pages of its process into a pipe: `pipe` is our descriptor of the end to read from, `inside` the
    thread's of the other one, `room` the address of a page of the process that is nothing of its program's."""

    def __init__(self, thread: Thread, pipe: int, inside: int, room: int) -> None:
        self._thread = thread
        self._state = _Splicer(thread.tid, pipe, inside, 0, thread.is_gentle, 0, thread.instruction, room, thread.registers)

    @property
    def bytes(self) -> int:
        """Of pages that have gone this way."""
        return int(self._state.bytes)

    @contextmanager
    def handle(self) -> Iterator[int]:
        """The C object. Errors: OSError: the thread has ended."""
        self._thread.block_signals()
        try:
            yield ctypes.addressof(self._state)
        finally:
            self._thread.has_called(self._state.deferred)


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, i, size, u64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64
    return library.functions(
        ("farhome_pages_send", i, [i, pointer, size, pointer, i, pointer, pointer, i, pointer]),
        ("farhome_pages_receive", i, [i, pointer, size, pointer, i, pointer, pointer, pointer, i]),
        ("farhome_runs_free", None, [pointer]),
        ("farhome_pages_runs", i, [i, pointer, size, pointer, size, pointer, pointer]),
        ("farhome_pages_own", ctypes.c_int64, [i, u64, u64]),
        ("farhome_pages_guards", ctypes.c_int64, [i, pointer, size, pointer, size, i]),
        ("farhome_pages_written", ctypes.c_int64, [i, pointer, size, pointer]),
        ("farhome_watch_begin", i, [i]),
        ("farhome_watch", i, [i, u64, u64]),
        ("farhome_unwatch", i, [i, u64, u64]),
        ("farhome_history_new", pointer, [pointer, size]),
        ("farhome_history_free", None, [pointer]),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        why = "nothing has gone over the network for too long" if -result == errno.ETIMEDOUT else os.strerror(-result)
        raise OSError(-result, f"{why}: {what}")
    return result


def _flags(r: PageRange) -> int:
    return r.keep_zeros | r.discard << 1 | r.written << 2 | r.missing << 3


def _array(ranges: Sequence[PageRange]) -> ctypes.Array[_Range]:
    numbers = [number for r in ranges for number in (r.start, r.end, _flags(r))]
    return (_Range * len(ranges)).from_buffer_copy(struct.pack(f"<{len(numbers)}Q", *numbers))


class History:
    """What has been sent of a process while it ran, of areas (sorted, apart) that are watched. Errors: MemoryError."""

    def __init__(self, areas: Sequence[Span]) -> None:
        self.areas = list(areas)
        self._handle = _native().farhome_history_new(_array([PageRange(*area) for area in areas]), len(areas))
        if not self._handle:
            raise MemoryError("no memory for a history of pages")

    @property
    def handle(self) -> int:
        """The C object. Errors: ValueError after close()."""
        if not self._handle:
            raise ValueError("the history is closed")
        return int(self._handle)

    def close(self) -> None:
        """Twice is no error."""
        if self._handle:
            _native().farhome_history_free(self._handle)
            self._handle = None


def watch_begin(userfaultfd: int) -> None:
    """Makes a fresh userfaultfd one that watches writes. Errors: OSError (EINVAL: before Linux 6.7)."""
    _check(_native().farhome_watch_begin(userfaultfd), "watching writes")


def watch(userfaultfd: int, area: Span) -> None:
    """Writes to the area, private memory without a file, are noted from now on. Errors: OSError: it is no such memory."""
    _check(_native().farhome_watch(userfaultfd, *area), "watching writes")


def unwatch(userfaultfd: int, area: Span) -> None:
    """They are noted no more; memory that has been unmapped is no error."""
    _native().farhome_unwatch(userfaultfd, *area)


def send_own_pages(
    pid: int, ranges: Sequence[PageRange], stream: Connection | int, timeout: float, history: History | None = None, last: bool = True,
    meter: Meter | None = None, splicer: Splicer | None = None,
) -> PageTotals:  # fmt: skip
    """Sends pid's own pages in ranges into the connection `stream` (or a socket's descriptor); pid is not changed.

    history: what was sent of it before; of ranges that are `written` only what was written since is sent. last: pid stands still, and
    the other side learns what it has no more; else it may run, and what it writes from now on is for the next time. splicer: by which
    pid, which stands still and has no history, gives the pages itself.

    Errors: OSError: TimeoutError after timeout seconds without progress, ConnectionError, others: pid is unreadable.
    """
    totals = (meter or Meter()).totals
    handle = history.handle if history is not None else None
    with splicer.handle() if splicer is not None else nullcontext() as by_itself, lent(stream) as connection:
        result = _native().farhome_pages_send(
            pid, _array(ranges), len(ranges), connection, int(timeout * 1000), ctypes.byref(totals), handle, last, by_itself
        )
    _check(result, f"sending pages of process {pid}")
    return PageTotals(totals.runs, totals.bytes, totals.zero_bytes, totals.checksum)


def receive_own_pages(
    pid: int, ranges: Sequence[PageRange], stream: Connection | int, timeout: float, meter: Meter | None = None, userfaultfd: int = -1
) -> PageTotals:
    """Receives what send_own_pages sends and writes it into pid; ranges (sorted) are all that may be written. userfaultfd: of pid, for
    ranges that are `missing`.

    Errors: OSError with EPROTO (not such a stream), EBADMSG (checksum), as with sending; part may be written by then.
    """
    totals, gone, count = (meter or Meter()).totals, ctypes.POINTER(_Run)(), ctypes.c_size_t()
    with lent(stream) as connection:
        result = _native().farhome_pages_receive(
            pid, _array(ranges), len(ranges), connection, int(timeout * 1000), ctypes.byref(totals), ctypes.byref(gone),
            ctypes.byref(count), userfaultfd,
        )  # fmt: skip
    try:
        _check(result, f"receiving pages of process {pid}")
        spans = tuple((run.address, run.address + run.length) for run in gone[: count.value])
    finally:
        _native().farhome_runs_free(gone)
    return PageTotals(totals.runs, totals.bytes, totals.zero_bytes, totals.checksum, spans)


def written_bytes(pid: int, ranges: Sequence[PageRange], history: History) -> int:
    """About how many bytes of pages were written in the ranges, which are watched, since they were sent. Errors: OSError."""
    return _check(_native().farhome_pages_written(pid, _array(ranges), len(ranges), history.handle), f"pages of process {pid}")


def page_runs(pid: int, areas: Sequence[Span], most: int, history: History | None = None) -> list[Span]:
    """Return where pid has pages of its own in the areas (sorted, apart), or, with the history of what was sent, has written since: about
    `most` runs, with what lies between. Errors: OSError."""
    runs, count = ctypes.POINTER(_Run)(), ctypes.c_size_t()
    handle = history.handle if history is not None else None
    ranges = _array([PageRange(*area) for area in areas])
    result = _native().farhome_pages_runs(pid, ranges, len(areas), handle, most, ctypes.byref(runs), ctypes.byref(count))
    _check(result, f"pages of process {pid}")
    try:
        return [(run.address, run.address + run.length) for run in runs[: count.value]]
    finally:
        _native().farhome_runs_free(runs)


def guards(pid: int, areas: Sequence[Span] = ((0, _HIGHEST),), most: int = MOST_GUARDS, by_words: bool = False) -> list[Span]:
    """Return where it has guards in the areas (sorted, apart) of its memory (MADV_GUARD_INSTALL), at most so many. by_words: as kernels
    report that have no category for them. Errors: OSError."""
    found, ranges = (ctypes.c_uint64 * (2 * most))(), _array([PageRange(*area) for area in areas])
    count = _check(_native().farhome_pages_guards(pid, ranges, len(areas), found, most, by_words), f"guards of process {pid}")
    return list(zip(found[0 : 2 * count : 2], found[1 : 2 * count : 2], strict=True))


def has_guards(pid: int) -> bool:
    """Return whether it has any. Errors: OSError."""
    return bool(guards(pid, most=1))


@functools.cache
def knows_guards() -> bool:
    """Return whether this kernel has guards (Linux 6.13)."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(GUARD_INSTALL)
    except OSError:
        return False
    finally:
        memory.close()
    return True


def own_bytes(pid: int, start: int, end: int) -> int:
    """Return bytes of [start, end) that are pages of pid's own: neither the mapped file's nor the zero page.

    Errors: OSError.
    """
    return _check(_native().farhome_pages_own(pid, start, end), f"pages of process {pid}")
