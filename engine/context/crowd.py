"""Calls in all threads of a process that stands still: where they are many, at once, with memory of the process for that meanwhile."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kernel_helpers.process import many_calls
from kernel_helpers.process.many import FEW
from kernel_helpers.process.many_calls import CALL_BYTES, Call
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread

Calls = Callable[[int, int], Sequence[Call]]
"""What a thread is to call: by its place among them, and where its memory is."""

_AT_ONCE = 256
"""threads"""
_PAGE = 4096
_PROT_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22


def call_in(
    frozen: Frozen, threads: Sequence[Thread], calls: Calls, most: int, given: Sequence[bytes] = (), reported: int = 0, aside: bool = False,
    spare: tuple[int, int] = (0, 0), alike: bool = False,
) -> tuple[list[list[int]], list[bytes]]:  # fmt: skip
    """Has each of these threads make its calls, at most `most`; returns what they gave, and what is in the memory of each then. given: what
    is there before; reported: how many bytes of it are of interest. aside: their stack pointers are elsewhere meanwhile. spare: memory that
    few threads can use, address and size. alike: they make the same calls, but for where the memory of each is. Errors: OSError, as
    Thread.call() has them."""
    slot = -(-max(reported, max(map(len, given), default=0)) // 64) * 64
    tables = most * CALL_BYTES
    results: list[list[int]] = []
    memory: list[bytes] = []
    with many_calls.code(frozen) as batch, _scratch(frozen, len(threads) if batch else 1, tables + slot + 64, spare) as (address, at_once):
        data = address + tables * at_once
        stack = data + slot * at_once + 64 if aside else 0
        for first in range(0, len(threads), at_once):
            some = threads[first : first + at_once]
            if given:
                frozen.write(data, b"".join([one.ljust(slot, b"\0") for one in given[first : first + at_once]]))
            if alike and batch:
                results += many_calls.alike(frozen, some, calls(first, data), calls(first + 1, data + slot), batch, address, stack)
            else:
                wanted = [(thread, calls(first + index, data + slot * index)) for index, thread in enumerate(some)]
                results += many_calls.calls(frozen, wanted, batch, address, tables * at_once, stack)
            if reported:
                read = frozen.read(data, slot * len(some))
                memory += [read[at : at + reported] for at in range(0, slot * len(some), slot)]
    return results, memory


def have_called(
    frozen: Frozen, threads: Sequence[Thread], calls: Calls, most: int, given: Sequence[bytes] = (), aside: bool = False,
    spare: tuple[int, int] = (0, 0), alike: bool = False,
) -> None:  # fmt: skip
    """The same where each call must succeed. Errors: OSError."""
    results, _ = call_in(frozen, threads, calls, most, given, 0, aside, spare, alike)
    if any(min(some, default=0) < 0 for some in results):
        many_calls.check_all([(thread, calls(index, 0)) for index, thread in enumerate(threads)], results)


@contextmanager
def _scratch(frozen: Frozen, count: int, each: int, spare: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Memory of the process for the calls of threads, and of how many at once; where it may not map that, for one."""
    if count < FEW and each <= spare[1]:
        yield spare[0], 1
        return
    at_once = min(count, _AT_ONCE)
    try:
        size = -(-each * at_once // _PAGE) * _PAGE
        page = frozen.call(SYS.mmap, 0, size, _PROT_READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN):  # EAGAIN: all that it maps is locked, and it has no more
            raise
        with frozen.scratch(each) as below_stack:
            yield below_stack, 1
        return
    try:
        yield page, at_once
    finally:
        with suppress(ProcessLookupError):
            frozen.call(SYS.munmap, page, size)


__all__ = ["call_in", "have_called"]
