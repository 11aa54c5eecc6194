"""Which programs processes execute, and what each has used at its end (executions.c)."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

from kernel_helpers.common import library

PATH_ROOM = 256
"""Bytes; programs of longer paths are not reported."""
ROOM = 1024
"""Of what has happened, that is taken at once."""
SECOND = 1_000_000_000
_ENDED = 2


class _Execution(ctypes.Structure):
    _fields_ = (
        ("cpu", ctypes.c_uint64), ("pid", ctypes.c_uint32), ("uid", ctypes.c_uint32), ("kind", ctypes.c_uint32),
        ("replaced", ctypes.c_uint32), ("path", ctypes.c_char * PATH_ROOM),
    )  # fmt: skip


@dataclass(frozen=True)
class Execution:
    """A process of that user has executed the program at that path, as its own mount namespace has it; or (`has_ended`) the program has,
    having used `cpu` seconds of processor time here, `replaced` by another that the process executes."""

    pid: int
    uid: int
    path: str
    has_ended: bool = False
    cpu: float = 0.0
    replaced: bool = False


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
    return library.functions(
        ("executions_open", pointer, [ctypes.c_uint64]),
        ("executions_close", None, [pointer]),
        ("executions_fd", ctypes.c_int, [pointer]),
        ("executions_follow", None, [pointer, u32]),
        ("executions_know", None, [pointer, u32, ctypes.c_char_p, ctypes.c_int]),
        ("executions_take", ctypes.c_uint, [pointer, ctypes.POINTER(_Execution), ctypes.c_uint]),
    )


class Executions:
    """Of the processes that are followed, and their descendants. floor: seconds of processor time from which on the end of a program is
    reported that is not known. Errors: OSError, the kernel does not report them."""

    def __init__(self, floor: float) -> None:
        self._reported = (_Execution * ROOM)()
        self._handle = _native().executions_open(round(floor * SECOND))
        if not self._handle:
            error = ctypes.get_errno()
            raise OSError(error, f"perf_event_open: {os.strerror(error)}")

    def fileno(self) -> int:
        """Can be read when something has happened."""
        return int(_native().executions_fd(self._handle))

    def follow(self, pid: int) -> None:
        """A process, from its next program on, and its descendants."""
        _native().executions_follow(self._handle, pid)

    def know(self, uid: int, path: str, is_known: bool = True) -> None:
        """That program of that user is to be reported whenever it is executed, or not any more."""
        _native().executions_know(self._handle, uid, os.fsencode(path), is_known)

    def take(self) -> list[Execution]:
        """What has happened since the last time, in its order."""
        count = _native().executions_take(self._handle, self._reported, ROOM)
        return [
            Execution(one.pid, one.uid, os.fsdecode(one.path), one.kind == _ENDED, one.cpu / SECOND, bool(one.replaced))
            for one in self._reported[:count]
        ]

    def close(self) -> None:
        """Follows nothing any more."""
        if self._handle:
            _native().executions_close(self._handle)
            self._handle = None
