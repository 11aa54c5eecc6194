"""Python face of sharing.c."""

from __future__ import annotations

import ctypes
import errno
import functools
import os

from kernel_helpers import library


@functools.cache
def _native() -> ctypes.CDLL:
    return library.functions(("farhome_shares_memory", ctypes.c_int, [ctypes.c_int]))


def who_shares_memory(pid: int) -> int:
    """Another process that has the address space of this one; 0: none, or the kernel cannot tell. Errors: OSError."""
    found: int = _native().farhome_shares_memory(pid)
    if found < 0 and found != -errno.ENOSYS:
        raise OSError(-found, f"who shares memory with {pid}: {os.strerror(-found)}")
    return max(found, 0)


__all__ = ["who_shares_memory"]
