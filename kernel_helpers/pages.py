"""Python face of pages.c: private pages of a frozen process through a socket."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_helpers.library import load


class _Range(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("flags", ctypes.c_uint64)]


class _Totals(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("runs", "bytes", "zero_bytes", "checksum")]


@dataclass(frozen=True)
class PageRange:
    """Addresses [start, end). keep_zeros (sending): a page of zeros is not what the mapping shows without it (a file).
    discard (receiving): pages may come and are thrown away."""

    start: int
    end: int
    keep_zeros: bool = False
    discard: bool = False


@dataclass(frozen=True)
class PageTotals:
    """What went through: runs of pages, their bytes, bytes that were zero and so not sent, checksum of the stream."""

    runs: int
    bytes: int
    zero_bytes: int
    checksum: int


def _stream(function: str, pid: int, ranges: Sequence[PageRange], stream: int, timeout: float) -> PageTotals:
    array = (_Range * len(ranges))(*[_Range(r.start, r.end, r.keep_zeros | r.discard << 1) for r in ranges])
    totals = _Totals()
    result = int(
        getattr(load(), function)(
            ctypes.c_int(pid),
            array,
            ctypes.c_size_t(len(ranges)),
            ctypes.c_int(stream),
            ctypes.c_int(int(timeout * 1000)),
            ctypes.byref(totals),
        )
    )
    if result < 0:
        raise OSError(-result, f"{os.strerror(-result)}: {function} of process {pid}")
    return PageTotals(totals.runs, totals.bytes, totals.zero_bytes, totals.checksum)


def send_own_pages(pid: int, ranges: Sequence[PageRange], stream: int, timeout: float) -> PageTotals:
    """Sends pid's own pages in ranges into the socket with descriptor stream; pid is not changed.

    Errors: OSError: TimeoutError after timeout seconds without progress, ConnectionError, others: pid is unreadable.
    """
    return _stream("farhome_pages_send", pid, ranges, stream, timeout)


def receive_own_pages(pid: int, ranges: Sequence[PageRange], stream: int, timeout: float) -> PageTotals:
    """Receives what send_own_pages sends and writes it into pid; ranges (sorted) are all that may be written.

    Errors: OSError with EPROTO (not such a stream), EBADMSG (checksum), as with sending; part may be written by then.
    """
    return _stream("farhome_pages_receive", pid, ranges, stream, timeout)


def own_bytes(pid: int, start: int, end: int) -> int:
    """Bytes of [start, end) that are pages of pid's own: neither the mapped file's nor the zero page.

    Errors: OSError.
    """
    function = load().farhome_pages_own
    function.restype = ctypes.c_int64
    result = int(function(ctypes.c_int(pid), ctypes.c_uint64(start), ctypes.c_uint64(end)))
    if result < 0:
        raise OSError(-result, f"{os.strerror(-result)}: farhome_pages_own of process {pid}")
    return result
