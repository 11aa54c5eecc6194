"""System calls that are made in many threads of a process at once (injection/many_calls.c)."""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common import library
from kernel_helpers.process import pause_loop
from kernel_helpers.process.injection.native import SIGINFO_SIZE, check, packed, results_of
from kernel_helpers.process.many import FEW, MOST_SIGNALS, check_each, split
from kernel_helpers.process.syscalls import SYS, U64, Registers
from kernel_helpers.process.thread import Thread


class Stopped(Protocol):
    """What is needed of a process that stands still (seizing.Frozen)."""

    pid: int
    batch_code: int
    leader: Thread
    threads: dict[int, Thread]

    @property
    def instruction(self) -> int:
        """Address of the `syscall` instruction by which its threads make calls."""

    def call(self, number: int, *args: int) -> int:
        """Errors: OSError."""

    def write_forced(self, address: int, data: bytes) -> None:
        """Writes where the process itself may not. Errors: OSError."""


Call = tuple[int, ...]
"""Number, then arguments."""
CALL_BYTES = 64
"""Bytes of memory of the process for each call."""
_PAGE = 4096
_TRAP = 5
_ALL_BUT_TRAP = U64 & ~(1 << _TRAP - 1)
_PART = struct.Struct(f"<2i2q2i{MOST_SIGNALS * SIGINFO_SIZE}s{ctypes.sizeof(Registers)}s")
_DEFERRED_AT = 6
"""which 32-bit word of it reports how many signals"""
_PROT_READ_EXEC, _PRIVATE_ANONYMOUS = 5, 0x22


@functools.cache
def _native() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_many_block", i, [pointer, long, u64, u64]),
        ("inject_many_call", i, [i, u64, u64, pointer, long, u64, pointer, long, ctypes.c_int64]),
        ("inject_many_go_on", None, [pointer, long, long]),
    )


def block(threads: Sequence[Thread]) -> None:
    """Thread.block_signals() of all threads of a process that has a pause loop. Errors: OSError."""
    _block([thread for thread in threads if not thread.is_blocked], U64, threads[0].instruction + pause_loop.AFTER_CALL)
    for thread in threads:
        thread.is_blocked = True


def _block(threads: Sequence[Thread], mask: int, instruction: int) -> None:
    if not threads:
        return
    data = _parts(threads, [0] * len(threads), [0] * len(threads))
    _native().inject_many_block((ctypes.c_char * len(data)).from_buffer(data), len(threads), mask, instruction)
    check_each(threads, _words(data, 1, _PART.size), "signal mask of")


def _parts(threads: Sequence[Thread], first: Sequence[int], count: Sequence[int], stack: int = 0) -> bytearray:
    data = bytearray(_PART.size * len(threads))
    for index, thread in enumerate(threads):
        registers = thread.registers
        if stack:
            registers = registers.copy()
            registers.rsp = stack
        _PART.pack_into(data, index * _PART.size, thread.tid, 0, first[index], count[index], 0, 0, b"", bytes(registers))
    return data


def _words(data: bytearray, number: int, each: int) -> list[int]:
    """The 32-bit word of that number of every structure, which has so many bytes."""
    return memoryview(data).cast("i")[number :: each // 4].tolist()


@contextmanager
def code(frozen: Stopped) -> Iterator[int]:
    """An address in a process that stands still by which many calls are made at once: of its pause loop, or of a page of its own meanwhile;
    0: it has few threads, or may not map more. Errors: OSError."""
    if len(frozen.threads) < FEW:
        yield 0
    elif frozen.leader.has_pause_loop:
        yield frozen.instruction - pause_loop.ONE
    elif frozen.batch_code:
        yield frozen.batch_code
    else:
        try:
            page = frozen.call(SYS.mmap, 0, _PAGE, _PROT_READ_EXEC, _PRIVATE_ANONYMOUS, -1, 0)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM):
                raise
            yield 0
            return
        try:
            frozen.write_forced(page, pause_loop.CODE)
            yield page
        finally:
            try:
                frozen.call(SYS.munmap, page, _PAGE)
            except ProcessLookupError:
                pass  # it ended meanwhile, and its memory with it


def calls(
    frozen: Stopped, wanted: Sequence[tuple[Thread, Sequence[Call]]], batch: int, room: int, size: int, stack: int = 0
) -> list[list[int]]:
    """Makes these calls in these threads, those of one in order; returns their results (negative errno), by thread. batch: of code(); 0:
    one after another. room: `size` bytes of memory that can be used. stack: where their stack pointers are meanwhile, if not where they
    are. Errors: OSError, as Thread.call() has them."""
    if not batch:
        return [_alone(thread, some, room, stack) for thread, some in wanted]
    made: list[list[int]] = []
    at_once, first = size // CALL_BYTES, 0
    while first < len(wanted):
        last, total = first, 0
        while last < len(wanted) and total + len(wanted[last][1]) <= at_once:
            total += len(wanted[last][1])
            last += 1
        if last == first:
            raise OSError(errno.ENOMEM, "no room for the calls of one thread")
        some = wanted[first:last]
        table = bytearray(b"".join(packed(*one) for _, calls in some for one in calls))
        made += _at_once(frozen, [thread for thread, _ in some], [len(calls) for _, calls in some], table, batch, room, stack)
        first = last
    return made


def alike(frozen: Stopped, threads: Sequence[Thread], first: Sequence[Call], second: Sequence[Call], batch: int, room: int,
          stack: int = 0) -> list[list[int]]:  # fmt: skip
    """Make the same calls where those of all threads are those of the first two, but for addresses, which lie as far apart from each to the
    next. There is room for all. Errors: as calls()."""
    rows = [b"".join(packed(*one) for one in some) for some in (first, second)]
    table = bytearray(b"".join(rows[: len(threads)]).ljust(len(rows[0]) * len(threads), b"\0"))
    _native().inject_many_go_on((ctypes.c_char * len(table)).from_buffer(table), len(rows[0]) // 8, len(threads))
    return _at_once(frozen, threads, [len(first)] * len(threads), table, batch, room, stack)


def _alone(thread: Thread, wanted: Sequence[Call], room: int, stack: int) -> list[int]:
    registers = thread.registers
    if stack:
        thread.registers = registers.copy()
        thread.registers.rsp = stack
    try:
        return thread.calls(wanted, room)
    finally:
        thread.registers = registers


def _at_once(
    frozen: Stopped, threads: Sequence[Thread], counts: Sequence[int], table: bytearray, batch: int, room: int, stack: int
) -> list[list[int]]:
    """The calls of `table`, so many for each thread."""
    mask = 0
    if frozen.leader.has_pause_loop:
        block(list(frozen.threads.values()))
    else:
        mask = _ALL_BUT_TRAP
    firsts = [0, *itertools.accumulate(counts[:-1])]
    parts, total = _parts(threads, firsts, counts, stack), sum(counts)
    result = _native().inject_many_call(
        frozen.pid, batch, mask, (ctypes.c_char * len(parts)).from_buffer(parts), len(threads), room,
        (ctypes.c_char * len(table)).from_buffer(table), total, int(frozen.leader.call_timeout * 1e6),
    )  # fmt: skip
    for index, (thread, deferred) in enumerate(zip(threads, _words(parts, _DEFERRED_AT, _PART.size), strict=True)):
        kept = _PART.unpack_from(parts, index * _PART.size)[6] if deferred else b""
        thread.has_called_many(split(kept, deferred) if deferred else ())
    check_each(threads, _words(parts, 1, _PART.size), "calls in")
    check(result, f"calls in {frozen.pid}")
    results = results_of(table)
    return [results[first : first + count] for first, count in zip(firsts, counts, strict=True)]


def check_all(wanted: Sequence[tuple[Thread, Sequence[Call]]], results: Sequence[Sequence[int]]) -> None:
    """Each of them must have succeeded. Errors: OSError."""
    for (thread, some), found in zip(wanted, results, strict=True):
        for one, result in zip(some, found, strict=True):
            if result < 0:
                check(result, f"{NAMES.get(one[0], one[0])} in {thread.tid}")
