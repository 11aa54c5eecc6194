"""Many calls of one thread, from a table that C has made or reads: nothing of Python runs for each of them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common import library
from kernel_helpers.process.injection.native import Deferred, check

if TYPE_CHECKING:
    from kernel_helpers.process.seizing import Frozen

_FEW = 4
"""Calls, or fewer, are made one by one."""


class Call(ctypes.Structure):
    """struct injected of inject.h."""

    _fields_ = [("number", ctypes.c_int64), ("result", ctypes.c_int64), ("arguments", ctypes.c_uint64 * 6)]


Calls = ctypes.Array[Call]
SIZE = ctypes.sizeof(Call)


@functools.cache
def _native() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_batches", long, [i, u64, pointer, ctypes.c_int64, pointer, u64, u64, pointer, long]),
        ("inject_first_failed", long, [pointer, long, long]),
    )


def as_calls(count: int) -> Calls:
    """Room for so many."""
    return (Call * count)()


def make(frozen: Frozen, calls: Calls, room: int, size: int) -> None:
    """Has the leader make the calls; the result of each is beside it. room: `size` bytes of its memory that can be used. Errors: as
    Thread.call()."""
    leader = frozen.leader
    if not frozen.batch_code or len(calls) < _FEW:
        for one in calls:
            one.result = leader.call(one.number, *one.arguments)
        return
    leader.block_signals()
    deferred = Deferred()
    result = _native().inject_batches(
        leader.tid, frozen.batch_code, ctypes.byref(leader.registers), int(leader.call_timeout * 1e6), ctypes.byref(deferred), room, size,
        calls, len(calls),
    )  # fmt: skip
    leader.has_called_many(list(map(bytes, deferred.infos[: deferred.count])))
    check(result, f"calls in {leader.tid}")


def failed(frozen: Frozen, calls: Calls) -> Iterator[tuple[Call, OSError]]:
    """Those that have failed, and why."""
    at = -1
    while (at := _native().inject_first_failed(calls, len(calls), at + 1)) < len(calls):
        one = calls[at]
        try:
            check(one.result, f"{NAMES.get(one.number, one.number)} at {one.arguments[0]:x} in {frozen.pid}")
        except OSError as error:
            yield one, error


def make_all(frozen: Frozen, calls: Calls, room: int, size: int) -> None:
    """make(), where each must succeed. Errors: as Thread.call(), OSError: one of them has failed."""
    make(frozen, calls, room, size)
    for _, error in failed(frozen, calls):
        raise error
