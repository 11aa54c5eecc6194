"""What children have used away that have ended there (children.c), for the deputies of one program."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

from kernel_helpers.common import library
from kernel_helpers.usage.account import Used


@functools.cache
def _native() -> ctypes.CDLL:
    i, u32, pointer = ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
    return library.functions(
        ("children_begin", i, [i, u32, i]),
        ("children_forget", None, [i]),
        ("children_end", None, [i, pointer]),
        ("children_own", None, [i, u32, pointer]),
        ("children_at_end", None, [i, pointer]),
        ("children_in_all", None, [i, pointer]),
    )


def begin(pid: int, known_as: int, parent: int = 0) -> None:
    """A process is away; pid: its stub's; known_as: by its own node. parent: whose child it is, if it is another stub of this program's."""
    _native().children_begin(pid, known_as, parent)


def forget(pid: int) -> None:
    """It is at home, or has ended."""
    _native().children_forget(pid)


def end(pid: int, used: Sequence[int]) -> None:
    """It is about to end, having used that (account.FIELDS)."""
    _native().children_end(pid, ctypes.byref(Used(*used)))


def of_child(parent: int, known_as: int) -> Used:
    """Return what that child, which its parent has not waited for, has used itself; zeros of one that is not known."""
    found = Used()
    _native().children_own(parent, known_as, ctypes.byref(found))
    return found


def at_end(pid: int) -> Used:
    """What a process has used away that is about to end, or has ended; zeros of one that has reported nothing."""
    found = Used()
    _native().children_at_end(pid, ctypes.byref(found))
    return found


def in_all(pid: int) -> Used:
    """Return what a process has used by children that it has waited for."""
    found = Used()
    _native().children_in_all(pid, ctypes.byref(found))
    return found
