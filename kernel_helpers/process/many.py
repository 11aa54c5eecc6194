"""Python face of inject_many.c: all threads of a process stopped, read and set at a time, and calls made in all of them at once.

Of few threads each is dealt with alone (inject.py), which takes no memory of the process for it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common import library
from kernel_helpers.process import refuge
from kernel_helpers.process.inject import SIGINFO_SIZE, Thread, check, packed, results_of
from kernel_helpers.process.syscalls import SYS, U64, Registers, carry_restart, is_ended_by_stop

if TYPE_CHECKING:
    from kernel_helpers.process.seizing import Frozen

Call = tuple[int, ...]
"""Number, then arguments."""

FEW = 4
"""Threads, or fewer."""
CALL_ROOM = 64
"""Bytes of memory of the process for each call."""
STATE_ROOM = 16384
"""Bytes for the extended state of a thread: AMX makes it 11 kB."""
_AT_ONCE = 64
"""threads, where memory is needed for each"""
SOON = 0.1
"""Seconds in which threads that are asked to stop do so: one that does not is seen to alone."""
_PAGE = 4096
_TRAP = 5
_ALL_BUT_TRAP = U64 & ~(1 << _TRAP - 1)
_MOST_SIGNALS = 4
_SEIZED, _NEWBORN, _DONE = 1, 2, 3
_STANDING = struct.Struct(f"<8i{_MOST_SIGNALS * SIGINFO_SIZE}s{ctypes.sizeof(Registers)}s3Q2I")
_PART = struct.Struct(f"<2i2q2i{_MOST_SIGNALS * SIGINFO_SIZE}s{ctypes.sizeof(Registers)}s")
_DEFERRED_AT = 6
"""which 32-bit word of it tells how many signals"""
_KEPT = struct.Struct("<2iq2Q2i")
_RSEQ = struct.Struct("<Q4I")
_PROT_READ_EXEC, _PRIVATE_ANONYMOUS = 5, 0x22


@functools.cache
def _native() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_many_stop", i, [i, pointer, long, i, ctypes.c_int64]),
        ("inject_many_block", i, [pointer, long, u64, u64]),
        ("inject_many_call", i, [i, u64, u64, pointer, long, u64, pointer, long, ctypes.c_int64]),
        ("inject_many_go_on", None, [pointer, long, long]),
        ("inject_many_detach", i, [pointer, pointer, long]),
        ("inject_many_await", i, [pointer, pointer, long, ctypes.c_int64]),
        ("inject_many_ended", i, [pointer, long]),
        ("inject_many_robust", i, [pointer, long]),
        ("inject_many_set_options", i, [pointer, pointer, pointer, long]),
        ("inject_many_continue", i, [pointer, pointer, long]),
        ("inject_many_interrupt", i, [pointer, pointer, long]),
        ("inject_many_waits", i, [pointer, pointer, long]),
        ("inject_many_read", i, [pointer, long, pointer, long]),
        ("inject_many_filtered", i, [pointer, pointer, long, long]),
        ("inject_many_rseq", i, [pointer, pointer, long]),
        ("inject_many_set_states", i, [pointer, pointer, long, pointer, pointer, long]),
        ("inject_many_restore", i, [i, pointer, long, i]),
    )


def _split(infos: bytes, count: int) -> list[bytes]:
    return [infos[at : at + SIGINFO_SIZE] for at in range(0, count * SIGINFO_SIZE, SIGINFO_SIZE)]


def _tids(threads: Sequence[Thread]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(threads))(*[thread.tid for thread in threads])


# -- stopping


def seize(pid: int, tids: Sequence[int], options: int = 0, timeout: float = 5.0) -> tuple[dict[int, Thread], dict[int, OSError]]:
    """Thread.seize() of each; those that stand still, and what went wrong with the others."""
    threads = [Thread(tid, pid) for tid in tids]
    for thread in threads:
        thread.options = options
    wrong = _stop(pid, threads, _SEIZED, timeout, options)
    return {thread.tid: thread for thread in threads if thread.tid not in wrong}, wrong


def adopt(pid: int, tids: Sequence[int], timeout: float = 5.0) -> list[Thread]:
    """Thread.adopt() of each. Errors: as that."""
    threads = [Thread(tid, pid) for tid in tids]
    for error in _stop(pid, threads, _NEWBORN, timeout).values():
        raise error
    return threads


def look(pid: int, threads: Sequence[Thread]) -> None:
    """Thread.capture() of each: they have stopped. Errors: OSError."""
    stops = [thread.group_stop for thread in threads]
    for error in _stop(pid, threads, _DONE, 0.0).values():
        raise error
    for thread, stop in zip(threads, stops, strict=True):
        thread.group_stop = stop


def _stop(pid: int, threads: Sequence[Thread], how: int, timeout: float, options: int = 0) -> dict[int, OSError]:
    data = bytearray(_STANDING.size * len(threads))
    for index, thread in enumerate(threads):
        struct.pack_into("<3i", data, index * _STANDING.size, thread.tid, 0, options)
    _native().inject_many_stop(pid, (ctypes.c_char * len(data)).from_buffer(data), len(threads), how, int(timeout * 1e6))
    wrong = {}
    for thread, found in zip(threads, _STANDING.iter_unpack(data), strict=True):
        _, error, _, unread, signals, group_stop, dispatches, _, infos, registers, mask, rseq, section, _, _ = found
        if error:
            wrong[thread.tid] = OSError(error, f"waiting for {thread.tid}: {os.strerror(error)}")
            continue
        for info in _split(infos, signals) if signals else ():
            thread.keep(info)
        thread.group_stop = group_stop
        kept = (rseq + 8, section.to_bytes(8, "little")) if section else None
        thread.has_stopped(Registers.from_buffer_copy(registers), mask, kept, not section and not unread, bool(dispatches))
    return wrong


# -- reading


def rseqs(threads: Sequence[Thread]) -> list[tuple[int, int, int]]:
    """Where the restartable sequences of each are registered: address, size, signature; zeros: nowhere."""
    data = bytearray(_RSEQ.size * len(threads))
    _native().inject_many_rseq(_tids(threads), (ctypes.c_char * len(data)).from_buffer(data), len(threads))
    return [(address, size, signature) for address, size, signature, _, _ in _RSEQ.iter_unpack(data)]


def states(threads: Sequence[Thread]) -> list[tuple[bytes, tuple[int, int], bool]]:
    """Of each its extended state, its robust list (head, length), and whether signals wait for it alone. Errors: OSError."""
    found: list[tuple[bytes, tuple[int, int], bool]] = []
    while len(found) < len(threads):
        # The first tells how much it is, on this processor. Memory that has been used is worth more than one call for all.
        each, first = (_room_of(found[0][0]), len(found)) if found else (STATE_ROOM, 0)
        some = threads[first : first + _AT_ONCE] if found else threads[:1]
        data, room = bytearray(_KEPT.size * len(some)), ctypes.create_string_buffer(each * len(some))
        for index, thread in enumerate(some):
            struct.pack_into("<i", data, index * _KEPT.size, thread.tid)
        _native().inject_many_read((ctypes.c_char * len(data)).from_buffer(data), len(some), room, each)
        view = memoryview(room)
        for index, (tid, error, size, robust, robust_size, waits, _) in enumerate(_KEPT.iter_unpack(data)):
            check(-error, f"state of {tid}")
            if size == each < STATE_ROOM:
                raise OSError(errno.EOVERFLOW, f"state of {tid}: it is greater than that of {threads[0].tid}")
            state = bytes(view[index * each : index * each + size])
            found.append((state, (robust, robust_size), bool(waits)))
    return found


def _room_of(state: bytes) -> int:
    return -(-(len(state) + 1) // 64) * 64


def waited_for(threads: Sequence[Thread]) -> list[bool]:
    """Of each, whether signals wait for it alone. Errors: OSError."""
    found = (ctypes.c_int32 * len(threads))()
    _native().inject_many_waits(_tids(threads), found, len(threads))
    _raise(threads, [min(0, waits) and -waits for waits in found], "pending signals of")
    return [waits > 0 for waits in found]


def interrupt(tids: Sequence[int]) -> None:
    """PTRACE_INTERRUPT of each; one that has ended is no error. Errors: OSError."""
    errors = (ctypes.c_int32 * len(tids))()
    _native().inject_many_interrupt((ctypes.c_int32 * len(tids))(*tids), errors, len(tids))
    for tid, error in zip(tids, errors, strict=True):
        if error and error != errno.ESRCH:
            check(-error, f"PTRACE_INTERRUPT of {tid}")


def reports(tids: Sequence[int], timeout: float) -> list[int | None]:
    """The next report of each thread (as waitpid has it), of all of which one is due; None: it has ended unseen, or reports nothing in the
    seconds that there are for all."""
    found = (ctypes.c_int32 * len(tids))()
    _native().inject_many_await((ctypes.c_int32 * len(tids))(*tids), found, len(tids), int(timeout * 1e6))
    return [status if status >= 0 else None for status in found]


def have_ended(tids: Sequence[int]) -> bool:
    """Whether any of these traced threads has; that can still be waited for afterwards. Errors: ChildProcessError."""
    return bool(check(_native().inject_many_ended((ctypes.c_int32 * len(tids))(*tids), len(tids)), "threads"))


def set_states(threads: Sequence[Thread], wanted: Sequence[bytes]) -> None:
    """Gives each its extended state. Errors: OSError."""
    for first in range(0, len(threads), 256):
        some, data = threads[first : first + 256], wanted[first : first + 256]
        room = max(map(len, data))
        joined = b"".join(state.ljust(room, b"\0") for state in data)
        errors, sizes = (ctypes.c_int32 * len(some))(), (ctypes.c_int64 * len(some))(*map(len, data))
        _native().inject_many_set_states(_tids(some), errors, len(some), joined, sizes, room)
        _raise(some, list(errors), "extended state of")


def filtered(threads: Sequence[Thread], beneath: int = 0) -> set[int]:
    """tids of those that have seccomp filters beyond the oldest `beneath`, or are such that it cannot be told."""
    found = (ctypes.c_int32 * len(threads))()
    _native().inject_many_filtered(_tids(threads), found, len(threads), beneath)
    return {thread.tid for thread, is_so in zip(threads, found, strict=True) if is_so}


def robust_lists(threads: Sequence[Thread]) -> list[tuple[int, int]]:
    """Of each its robust list (head, length). Errors: OSError."""
    data = bytearray(_KEPT.size * len(threads))
    for index, thread in enumerate(threads):
        struct.pack_into("<i", data, index * _KEPT.size, thread.tid)
    _native().inject_many_robust((ctypes.c_char * len(data)).from_buffer(data), len(threads))
    found = []
    for tid, error, _, robust, robust_size, _, _ in _KEPT.iter_unpack(data):
        if error:
            check(-error, f"robust list of {tid}")
        found.append((robust, robust_size))
    return found


def _raise(threads: Sequence[Thread], errors: Sequence[int], what: str) -> None:
    if any(errors):
        for thread, error in zip(threads, errors, strict=True):
            check(-error, f"{what} {thread.tid}")


# -- setting


def set_options(threads: Sequence[Thread], change: Callable[[Thread], int]) -> dict[int, OSError]:
    """PTRACE_SETOPTIONS of each, by what it has; what went wrong, by tid."""
    wanted = [change(thread) for thread in threads]
    errors = (ctypes.c_int32 * len(threads))()
    _native().inject_many_set_options(_tids(threads), (ctypes.c_int32 * len(threads))(*wanted), errors, len(threads))
    for thread, options, error in zip(threads, wanted, errors, strict=True):
        if not error:
            thread.options = options
    return _wrong(threads, list(errors), "PTRACE_SETOPTIONS")


def restore(threads: Sequence[Thread]) -> dict[int, OSError]:
    """Thread.restore() of each; what went wrong, by tid."""
    wrong: dict[int, OSError] = {}
    are_few = len(threads) < FEW
    alone = [thread for thread in threads if are_few or (thread.is_in_call and thread.has_refuge) or len(thread.in_hand) > 1]
    for thread in alone:
        try:
            thread.restore()
        except OSError as error:
            wrong[thread.tid] = error
    done = {thread.tid for thread in alone}
    rest = [thread for thread in threads if thread.tid not in done]
    if not rest:
        return wrong
    data = bytearray(_STANDING.size * len(rest))
    for index, thread in enumerate(rest):
        registers = thread.registers
        if is_ended_by_stop(registers):
            registers = registers.copy()
            carry_restart(registers)
        at, section = thread.rseq_section or (8, bytes(8))
        _STANDING.pack_into(
            data, index * _STANDING.size, thread.tid, 0, 0, 0, 0, 0, 0, 0, b"", bytes(registers), thread.signal_mask, at - 8,
            int.from_bytes(section, "little"), 0, 0,
        )  # fmt: skip
    _native().inject_many_restore(rest[0].pid, (ctypes.c_char * len(data)).from_buffer(data), len(rest), rest[0].has_refuge)
    for thread, found in zip(rest, _STANDING.iter_unpack(data), strict=True):
        if found[1]:
            wrong[thread.tid] = OSError(found[1], f"registers of {thread.tid}: {os.strerror(found[1])}")
        else:
            thread.has_restored()
    return wrong


def proceed(threads: Sequence[Thread]) -> dict[int, OSError]:
    """PTRACE_CONT of each, without a signal; what went wrong, by tid."""
    errors = (ctypes.c_int32 * len(threads))()
    _native().inject_many_continue(_tids(threads), errors, len(threads))
    return _wrong(threads, list(errors), "PTRACE_CONT")


def resume(threads: Sequence[Thread]) -> dict[int, OSError]:
    """Thread.resume() of each, in that order; what went wrong, by tid. One that cannot be found is no reason not to go on."""
    return _let_go(threads, proceed, Thread.resume)


def detach(threads: Sequence[Thread]) -> dict[int, OSError]:
    """Thread.detach() of each; as resume()."""
    return _let_go(threads, _detach, Thread.detach)


def _let_go(
    threads: Sequence[Thread], all_at_once: Callable[[Sequence[Thread]], dict[int, OSError]], alone: Callable[[Thread], None]
) -> dict[int, OSError]:
    """Those that have a signal in hand go alone."""
    wrong: dict[int, OSError] = {}
    for has_some, group in itertools.groupby(threads, lambda thread: bool(thread.in_hand)):
        if not has_some:
            wrong |= all_at_once(list(group))
            continue
        for thread in group:
            try:
                alone(thread)
            except OSError as error:
                wrong[thread.tid] = error
    return wrong


def _detach(threads: Sequence[Thread]) -> dict[int, OSError]:
    errors = (ctypes.c_int32 * len(threads))()
    _native().inject_many_detach(_tids(threads), errors, len(threads))
    return _wrong(threads, list(errors), "PTRACE_DETACH")


def _wrong(threads: Sequence[Thread], errors: Sequence[int], what: str) -> dict[int, OSError]:
    wrong = [(thread.tid, error) for thread, error in zip(threads, errors, strict=True) if error]
    return {tid: OSError(error, f"{what} of {tid}: {os.strerror(error)}") for tid, error in wrong}


# -- calls


def block(threads: Sequence[Thread]) -> None:
    """Thread.block_signals() of all threads of a process that has a refuge. Errors: OSError."""
    _block([thread for thread in threads if not thread.is_blocked], U64, threads[0].instruction + refuge.AFTER_CALL)
    for thread in threads:
        thread.is_blocked = True


def _block(threads: Sequence[Thread], mask: int, instruction: int) -> None:
    if not threads:
        return
    data = _parts(threads, [0] * len(threads), [0] * len(threads))
    _native().inject_many_block((ctypes.c_char * len(data)).from_buffer(data), len(threads), mask, instruction)
    _raise(threads, _words(data, 1, _PART.size), "signal mask of")


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
def code(frozen: Frozen) -> Iterator[int]:
    """An address in a process that stands still by which many calls are made at once: of its refuge, or of a page of its own meanwhile;
    0: it has few threads, or may not map more. Errors: OSError."""
    if len(frozen.threads) < FEW:
        yield 0
    elif frozen.leader.has_refuge:
        yield frozen.instruction - refuge.ONE
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
            frozen.write_forced(page, refuge.CODE)
            yield page
        finally:
            try:
                frozen.call(SYS.munmap, page, _PAGE)
            except ProcessLookupError:
                pass  # it ended meanwhile, and its memory with it


def calls(
    frozen: Frozen, wanted: Sequence[tuple[Thread, Sequence[Call]]], batch: int, room: int, size: int, stack: int = 0
) -> list[list[int]]:
    """Makes these calls in these threads, those of one in order; returns their results (negative errno), by thread. batch: of code(); 0:
    one after another. room: `size` bytes of memory that can be used. stack: where their stack pointers are meanwhile, if not where they
    are. Errors: OSError, as Thread.call() has them."""
    if not batch:
        return [_alone(thread, some, room, stack) for thread, some in wanted]
    made: list[list[int]] = []
    at_once, first = size // CALL_ROOM, 0
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


def alike(frozen: Frozen, threads: Sequence[Thread], first: Sequence[Call], second: Sequence[Call], batch: int, room: int,
          stack: int = 0) -> list[list[int]]:  # fmt: skip
    """The same where the calls of all threads are those of the first two, but for addresses, which lie as far apart from each to the next.
    There is room for all. Errors: as calls()."""
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
    frozen: Frozen, threads: Sequence[Thread], counts: Sequence[int], table: bytearray, batch: int, room: int, stack: int
) -> list[list[int]]:
    """The calls of `table`, so many for each thread."""
    mask = 0
    if frozen.leader.has_refuge:
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
        thread.has_called_many(_split(kept, deferred) if deferred else ())
    _raise(threads, _words(parts, 1, _PART.size), "calls in")
    check(result, f"calls in {frozen.pid}")
    results = results_of(table)
    return [results[first : first + count] for first, count in zip(firsts, counts, strict=True)]


def check_all(wanted: Sequence[tuple[Thread, Sequence[Call]]], results: Sequence[Sequence[int]]) -> None:
    """Each of them must have succeeded. Errors: OSError."""
    for (thread, some), found in zip(wanted, results, strict=True):
        for one, result in zip(some, found, strict=True):
            if result < 0:
                check(result, f"{NAMES.get(one[0], one[0])} in {thread.tid}")


__all__ = [
    "CALL_ROOM", "FEW", "SOON", "adopt", "alike", "block", "calls", "check_all", "code", "detach", "filtered", "have_ended", "look",
    "proceed", "reports", "restore", "resume", "robust_lists", "rseqs", "seize", "set_options", "set_states", "states",
]  # fmt: skip
