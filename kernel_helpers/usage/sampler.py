"""Python face of sampler.c: runnable threads, counted at a steady pace."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Collection
from typing import Any

from kernel_helpers.common import library

MOST = 64
"""Samples that are kept until they are taken."""


@functools.cache
def _native() -> ctypes.CDLL:
    numbers, moments = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)
    return library.functions(
        ("farhome_sampler_start", ctypes.c_void_p, [ctypes.c_int, ctypes.c_double]),
        ("farhome_sampler_take", ctypes.c_int, [ctypes.c_void_p, numbers, ctypes.c_int, moments, numbers, ctypes.c_int]),
        ("farhome_sampler_stop", None, [ctypes.c_void_p]),
    )


class Sampler:
    """Makes a sample at once, and further ones until stop()."""

    def __init__(self, is_machine: bool, period: float) -> None:
        """is_machine: all threads of the machine are counted, not those of the processes that /proc shows; period: seconds between two
        samples. Errors: OSError."""
        self._handle: Any = _native().farhome_sampler_start(is_machine, period)
        if not self._handle:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._at, self._threads = (ctypes.c_double * MOST)(), (ctypes.c_int * MOST)()

    def take(self, without: Collection[int]) -> list[tuple[float, int]]:
        """Return the samples since the last call, the oldest first: the moment (of time.monotonic) and the threads that ran or wanted to,
        those of the processes `without` not among them as far as they can be distinguished. Nothing more once it has been stopped."""
        if self._handle is None:
            return []
        pids = (ctypes.c_int * len(without))(*without)
        found = _native().farhome_sampler_take(self._handle, pids, len(without), self._at, self._threads, MOST)
        return list(zip(self._at[:found], self._threads[:found], strict=True))

    def stop(self) -> None:
        """Makes no more. Twice is no error."""
        if self._handle is not None:
            _native().farhome_sampler_stop(self._handle)
            self._handle = None
