"""Python face of send.c and receive.c: pages that follow a process which runs already."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_helpers.common import library
from kernel_helpers.stream.stream import Connection, lent
from kernel_helpers.stream.stream import given as taken

Span = tuple[int, int]


class _Run(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _View(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("left", "bytes", "faults")] + [
        (name, ctypes.c_int32) for name in ("state", "error", "connected", "spaces")
    ]


class State(enum.IntEnum):
    """Of a sink: pages still come; all have come; it was closed before; the process has ended; it cannot go on."""

    SERVING = 0
    ALL_CAME = 1
    CLOSED = 2
    GONE = 3
    FAILED = 4


@dataclass(frozen=True)
class View:
    """Bytes of pages that have not come (`left`) and that have, how often somebody had to wait for a page or touched a fresh one, and an
    errno if it failed."""

    left: int
    bytes: int
    faults: int
    state: State
    error: int
    connected: bool


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, i, size, u64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64
    return library.functions(
        ("farhome_postcopy_begin", i, [i]),
        ("farhome_postcopy_send", i, [i, pointer, i, i, pointer, pointer]),
        ("farhome_sink_new", pointer, [i, i, i]),
        ("farhome_sink_free", None, [pointer]),
        ("farhome_sink_register", i, [pointer, u64, u64]),
        ("farhome_sink_owe", i, [pointer, pointer, size]),
        ("farhome_sink_attach", None, [pointer, pointer]),
        ("farhome_sink_close", None, [pointer]),
        ("farhome_sink_look", None, [pointer, pointer]),
        ("farhome_sink_serve", None, [pointer]),
    )


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{os.strerror(-result)}: {what}")


def begin(userfaultfd: int) -> None:
    """Makes a fresh userfaultfd one for a Sink. It must not be for user mode only. Errors: OSError."""
    _check(_native().farhome_postcopy_begin(userfaultfd), "waiting for pages")


class Given:
    """How far give_pages() has come, for observers. Bytes."""

    def __init__(self) -> None:
        self._left, self._bytes = ctypes.c_uint64(), ctypes.c_uint64()

    @property
    def left(self) -> int:
        """Not sent yet."""
        return int(self._left.value)

    @property
    def bytes(self) -> int:
        """Sent, without pages of zeros."""
        return int(self._bytes.value)


def give_pages(pid: int, stream: Connection | int, timeout: float, stop: int, given: Given) -> None:
    """Gives the pages of pid, which stands still, to the Sink at the other end of `stream`, until it has all that it lacks.

    timeout: seconds without progress. stop: an eventfd by which another thread ends it.
    Errors: OSError: ECANCELED (stopped), EFAULT and ESRCH: pid has them no more; others are the connection's: it may be tried on another.
    """
    with lent(stream) as connection:
        result = _native().farhome_postcopy_send(
            pid, connection, int(timeout * 1000), stop, ctypes.byref(given._left), ctypes.byref(given._bytes)
        )
    _check(result, f"pages of process {pid} that follow it")


class Sink:
    """Where pages of the process pid come that runs already. `userfaultfd`: of it, ours from here on; `changed`: an eventfd that is
    written to when a connection breaks, and in the end. serve() is a thread's body. Errors: MemoryError."""

    def __init__(self, pid: int, userfaultfd: int, changed: int) -> None:
        self._handle = _native().farhome_sink_new(pid, userfaultfd, changed)
        if not self._handle:
            os.close(userfaultfd)
            raise MemoryError("no memory for pages that are to come")

    def register(self, area: Span) -> None:
        """Makes threads wait that touch a missing page there. Errors: OSError."""
        _check(_native().farhome_sink_register(self._handle, *area), f"waiting for pages at {area[0]:x}")

    def owe(self, spans: Sequence[Span]) -> None:
        """What is to come (sorted, apart): it is missing now. Errors: OSError."""
        runs = (_Run * len(spans))(*[_Run(start, end - start) for start, end in spans])
        _check(_native().farhome_sink_owe(self._handle, runs, len(spans)), "pages that are to come")

    def attach(self, connection: Connection | int) -> None:
        """A connection (or a socket's descriptor) by which they come, ours from here on. Errors: OSError: it is closed."""
        _native().farhome_sink_attach(self._handle, taken(connection))

    def serve(self) -> None:
        """Until all have come, or close()."""
        _native().farhome_sink_serve(self._handle)

    def close(self) -> None:
        """serve() ends soon."""
        _native().farhome_sink_close(self._handle)

    def poll(self) -> View:
        """Return how far it has come."""
        view = _View()
        _native().farhome_sink_look(self._handle, ctypes.byref(view))
        return View(view.left, view.bytes, view.faults, State(view.state), view.error, bool(view.connected))

    def free(self) -> None:
        """After serve() has ended, or if it never began. Nobody waits for a page any more."""
        _native().farhome_sink_free(self._handle)
        self._handle = None
