"""A traced thread beside its tracer, on one processor, while one has the other make calls.

Each call is two wake-ups. On the processor where the waker runs one takes 4 us, on one that sleeps up to 130 in a virtual machine.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_libc = ctypes.CDLL(None)
_ONLINE = Path("/sys/devices/system/cpu/online")
_EVERY = range(1024)
"""More processors than there are: whoever is bound to these is bound to none."""


class Beside:
    """Threads that are bound to one processor. A thread that somebody has bound to some is left where it is."""

    def __init__(self, processor: int) -> None:
        self.processor = processor
        self._tids: set[int] = set()

    def bring(self, tid: int) -> None:
        """Binds a thread that stands still."""
        with suppress(OSError):  # it has ended, or its cpuset has other processors
            if runs_anywhere(tid):
                os.sched_setaffinity(tid, {self.processor})
                self._tids.add(tid)

    def born(self, tid: int, maker: int) -> None:
        """A thread has been made by one of these: it is bound, too."""
        if maker in self._tids:
            self._tids.add(tid)

    def end(self) -> None:
        """Lets them run anywhere, but one that somebody has bound otherwise meanwhile."""
        for tid in self._tids:
            with suppress(OSError):
                if os.sched_getaffinity(tid) == {self.processor}:
                    let_run_anywhere(tid)


@contextmanager
def beside(*tids: int) -> Iterator[Beside]:
    """These threads, and this one, which traces them, run on one processor inside. They must end with this one, or have a journal
    (journal.py): should it die meanwhile, they stay bound. Threads of this program that begin meanwhile run anywhere afterwards."""
    own = os.sched_getaffinity(0)
    place = Beside(_libc.sched_getcpu())
    if len(own) < 2 or place.processor not in own:
        yield place
        return
    before = os.listdir("/proc/self/task")
    os.sched_setaffinity(0, {place.processor})
    try:
        for tid in tids:
            place.bring(tid)
        yield place
    finally:
        os.sched_setaffinity(0, own)
        for begun in set(os.listdir("/proc/self/task")).difference(before):  # it has what this one had
            with suppress(OSError):
                os.sched_setaffinity(int(begun), own)
        place.end()


def runs_anywhere(tid: int) -> bool:
    """Return whether a thread is bound to no processors. Errors: OSError."""
    return os.sched_getaffinity(tid) >= _online()


def let_run_anywhere(tid: int) -> None:
    """Binds a thread to no processors. Errors: OSError."""
    os.sched_setaffinity(tid, _EVERY)


@functools.cache
def _online() -> frozenset[int]:
    """The processors that there are. Errors: OSError."""
    found: set[int] = set()
    for part in _ONLINE.read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


__all__ = ["Beside", "beside", "let_run_anywhere", "runs_anywhere"]
