"""Python face of sharing.c."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_helpers.common import library

MAPPED, OPEN, UNDER_WAY = 1, 2, 3
LOOKS, PAUSE = 10, 0.02
"""At descriptors that are on their way; seconds between two."""


class _Object(ctypes.Structure):
    _fields_ = [("device", ctypes.c_uint64), ("inode", ctypes.c_uint64)]


class _Holder(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_int32), ("object", ctypes.c_int32), ("how", ctypes.c_int32)]


@dataclass(frozen=True)
class Holder:
    """A process that has the object with that number: mapped, by a descriptor, or perhaps by one that is on its way to it over a socket
    (then the number means nothing)."""

    pid: int
    object: int
    how: int


@functools.cache
def _native() -> ctypes.CDLL:
    i, pointer = ctypes.c_int, ctypes.c_void_p
    return library.functions(("farhome_shares_memory", i, [i]), ("farhome_who_has", i, [i, pointer, ctypes.c_size_t, i, i, pointer]))


def who_shares_memory(pid: int) -> int:
    """Another process that has the address space of this one; 0: none, or the kernel cannot know. Errors: OSError."""
    found: int = _native().farhome_shares_memory(pid)
    if found < 0 and found != -errno.ENOSYS:
        raise OSError(-found, f"who shares memory with {pid}: {os.strerror(-found)}")
    return max(found, 0)


def who_has(pid: int, objects: Sequence[tuple[int, int]], without_descriptors: bool = False, only_shared: bool = False) -> Holder | None:
    """Return who else has one of the objects (st_dev, st_ino) that a process has mapped, or who at all has a descriptor of one.
    without_descriptors: of these nobody can have one; only_shared: who has it mapped privately does not count. Descriptors that are on
    their way over sockets, which may be anything, mostly arrive in a moment: it looks for them again. Errors: OSError."""
    found = _Holder()
    wanted = (_Object * len(objects))(*[_Object(*one) for one in objects])
    for _ in range(LOOKS):
        result = _native().farhome_who_has(pid, wanted, len(objects), without_descriptors, only_shared, ctypes.byref(found))
        if result < 0:
            raise OSError(-result, f"who has memory of {pid}: {os.strerror(-result)}")
        if not result or found.how != UNDER_WAY:
            break
        time.sleep(PAUSE)
    return Holder(found.pid, found.object, found.how) if result else None


__all__ = ["MAPPED", "OPEN", "UNDER_WAY", "Holder", "who_has", "who_shares_memory"]
