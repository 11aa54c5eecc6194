"""Which process has forked which, however soon the parent has ended (forks.c)."""

from __future__ import annotations

import ctypes
import os

from kernel_helpers.common import library

ROOM = 8192
"""Births that are taken at once."""


class _Birth(ctypes.Structure):
    _fields_ = (("time", ctypes.c_uint64), ("parent", ctypes.c_uint32), ("child", ctypes.c_uint32))


class Forks:
    """The births of all processes of this machine since it was made. Errors: OSError, the kernel does not report them."""

    def __init__(self) -> None:
        self._native = library.load()
        self._native.forks_open.restype = ctypes.c_void_p
        self._native.forks_close.argtypes, self._native.forks_close.restype = [ctypes.c_void_p], None
        self._native.forks_take.restype = ctypes.c_uint
        self._native.forks_take.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Birth), ctypes.c_uint, ctypes.POINTER(ctypes.c_int)]
        self._births = (_Birth * ROOM)()
        self._handle = self._native.forks_open()
        if not self._handle:
            error = ctypes.get_errno()
            raise OSError(error, f"perf_event_open: {os.strerror(error)}")

    def take(self) -> tuple[list[tuple[int, int]], bool]:
        """(parent, child) of each birth since the last time, in their order; whether there were more than have been kept."""
        lost = ctypes.c_int()
        count = self._native.forks_take(self._handle, self._births, ROOM, ctypes.byref(lost))
        return [(birth.parent, birth.child) for birth in self._births[:count]], bool(lost.value)

    def close(self) -> None:
        """Stops listening."""
        if self._handle:
            self._native.forks_close(self._handle)
            self._handle = None
