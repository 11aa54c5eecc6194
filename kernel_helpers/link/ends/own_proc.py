"""Paths in /proc by which a process looks at itself (own_proc.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from kernel_helpers.common import library


@functools.cache
def _native() -> ctypes.CDLL:
    native = library.load()
    native.own_proc_path.restype, native.own_proc_path.argtypes = ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p]
    return native


def may_be_own(path: bytes, is_own: Callable[[int], bool]) -> bool:
    """Whether a path may be that of a file by which the process that names it looks at its own memory or signals. is_own: whether an id
    is that of one of its threads."""
    number = ctypes.c_uint32()
    return bool(_native().own_proc_path(path, ctypes.byref(number))) and (not number.value or is_own(number.value))
