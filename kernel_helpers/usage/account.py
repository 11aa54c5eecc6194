"""What a guest has used of processor time and other resources, here and on the nodes that it has left.

Home's kernel knows of the stub's time only. What `times`, `getrusage` and the cpu clocks say there is right for home; the
guest's own share is added on its way to the program (account.c).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import resource
import struct
import time
from typing import Any

from kernel_helpers.common import library

FIELDS = ("total", "user", "system", "minor", "major", "voluntary", "involuntary", "peak")
"""Nanoseconds, three times; page faults; context switches; KiB resident at most."""
WHOLE = 0
"""In place of a thread's id: the process."""
SECOND = 1_000_000_000
_LIMIT = 1 << 63
_ROW = struct.Struct(f"<{1 + len(FIELDS)}Q")


class Used(ctypes.Structure):
    """struct used of account.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in FIELDS]


def fields(used: Used) -> list[int]:
    """By FIELDS."""
    return [int(getattr(used, name)) for name in FIELDS]


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
    return library.functions(
        ("account_new", pointer, [ctypes.c_int, pointer, pointer, ctypes.c_uint]),
        ("account_free", None, [pointer]),
        ("account_add_thread", ctypes.c_int, [pointer, ctypes.c_int, u32]),
        ("account_remove_thread", None, [pointer, ctypes.c_int]),
        ("account_begin", ctypes.c_int, [pointer]),
        ("account_carry", None, [pointer, u32, pointer]),
        ("account_used", ctypes.c_int, [pointer, u32, pointer]),
        ("account_used_by_each", ctypes.c_int, [pointer, pointer, ctypes.c_uint]),
        ("account_add", None, [pointer, ctypes.c_int, ctypes.c_long, pointer, pointer, ctypes.c_size_t]),
    )


class Account:
    """`threads`: tid as this process sees it -> tid as the program sees it. counts: what they use counts from now on, else from begin()
    on. Errors: MemoryError."""

    def __init__(self, host_pid: int, threads: dict[int, int], counts: bool = True) -> None:
        self._tids = list(threads.values())
        count = len(threads)
        here, there = (ctypes.c_int * count)(*threads), (ctypes.c_int * count)(*self._tids)
        self.handle: int | None = _native().account_new(host_pid, here, there, count)
        """The C object, for away_set_account()."""
        if not self.handle:
            raise MemoryError("no memory for an account")
        if counts:
            self.begin()

    def add_thread(self, host: int, tid: int) -> None:
        """A thread that is born here, before it runs. Errors: MemoryError."""
        if _native().account_add_thread(self.handle, host, tid):
            raise MemoryError("no memory for an account")
        self._tids.append(tid)

    def remove_thread(self, host: int, tid: int) -> None:
        """One that has ended."""
        _native().account_remove_thread(self.handle, host)
        if tid in self._tids:
            self._tids.remove(tid)

    def used_by_all(self) -> bytes:
        """struct used of the process, here and before; empty if it is gone."""
        used = Used()
        return b"" if _native().account_used(self.handle, WHOLE, ctypes.byref(used)) else bytes(used)

    def whole(self) -> list[int]:
        """Return the same as FIELDS."""
        used = self.used_by_all()
        return fields(Used.from_buffer_copy(used)) if used else []

    def begin(self) -> None:
        """What has been used up to now (by those who made the guest) does not count. Errors: MemoryError."""
        if _native().account_begin(self.handle):
            raise MemoryError("no memory for an account")

    def used(self) -> list[list[int]]:
        """Return what was used here and before: [WHOLE, *FIELDS] of the process, [tid as the program sees it, *FIELDS] of each thread
        that there still is. Errors: MemoryError."""
        data = bytearray(_ROW.size * (1 + len(self._tids)))
        count = _native().account_used_by_each(self.handle, (ctypes.c_char * len(data)).from_buffer(data), 1 + len(self._tids))
        if count < 0:
            raise MemoryError("no memory for an account")
        return [list(row) for row in _ROW.iter_unpack(data[: count * _ROW.size])]

    def carry(self, before: object) -> None:
        """Takes what used() said where the guest was before. Errors: ValueError."""
        for tid, *used in check(before):
            _native().account_carry(self.handle, tid, ctypes.byref(Used(*used)))

    def add(self, host_tid: int, number: int, arguments: tuple[int, ...], reported: bytes) -> bytes:
        """Return what home has answered to a call of a thread, the guest's own share added."""
        buffer = ctypes.create_string_buffer(reported, len(reported))
        _native().account_add(self.handle, host_tid, number, (ctypes.c_uint64 * 6)(*arguments), buffer, len(reported))
        return buffer.raw

    def close(self) -> None:
        """Once is enough, twice is no error."""
        handle, self.handle = self.handle, None
        if handle:
            _native().account_free(handle)


def limit_left(stub: int) -> list[int] | None:
    """Nanoseconds that a process at home may still compute before SIGXCPU and before SIGKILL (RLIMIT_CPU), -1: for ever. None:
    both for ever, or it is gone."""
    try:
        limits = resource.prlimit(stub, resource.RLIMIT_CPU)
        used = time.clock_gettime_ns(_clock_of(stub))
    except OSError:
        return None
    if all(limit == resource.RLIM_INFINITY for limit in limits):
        return None
    return [-1 if limit == resource.RLIM_INFINITY else min(max(0, limit * SECOND - used), _LIMIT - 1) for limit in limits]


def limit_guest(guest: int, left: object, before: int) -> bool:
    """Sets the limit of a guest that has used `before` nanoseconds on other nodes, by what limit_left() said at home. The kernel
    counts whole seconds, so it comes up to one late. Returns whether there is one. Errors: ValueError, OSError."""
    if left is None:
        return False
    if not isinstance(left, list) or len(left) != 2 or not all(isinstance(limit, int) and -1 <= limit < _LIMIT for limit in left):
        raise ValueError("the limit on processor time makes no sense")
    own = time.clock_gettime_ns(_clock_of(guest))
    # The kernel's figure of what it has used has all that CRIU did in it to make it. 0 would mean: none for one second.
    soft, hard = (resource.RLIM_INFINITY if limit < 0 else max(1, -(-(own + limit - before) // SECOND)) for limit in left)
    resource.prlimit(guest, resource.RLIMIT_CPU, (soft, hard))
    return True


def _clock_of(pid: int) -> int:
    """The cpu clock of a process; see clock_getcpuclockid(3)."""
    return ~pid << 3 | 2


def check_whole(used: Any) -> list[int]:
    """Return what Account.whole() gave, after its way over the network; zeros if it is missing. Errors: ValueError."""
    return check([[WHOLE, *used]])[0][1:] if isinstance(used, list) and used else [0] * len(FIELDS)


def check(used: Any) -> list[list[int]]:
    """Return what used() gave, after its way over the network. Errors: ValueError."""
    if not isinstance(used, list) or not all(isinstance(row, list) and len(row) == 1 + len(FIELDS) for row in used):
        raise ValueError("what the guest has used makes no sense")
    values = list(itertools.chain.from_iterable(used))
    if not {int}.issuperset(map(type, values)) or not 0 <= min(values, default=0) <= max(values, default=0) < _LIMIT:
        raise ValueError("what the guest has used makes no sense")
    if max(values[:: 1 + len(FIELDS)], default=0) >= 1 << 32:
        raise ValueError("what the guest has used makes no sense")
    return [list(row) for row in used]
