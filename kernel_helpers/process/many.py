"""Stops, reads and sets all threads of a process at a time (injection/many_stop.c, many_states.c)."""

from __future__ import annotations

import ctypes
import errno
import functools
import itertools
import os
import struct
from collections.abc import Callable, Sequence

from kernel_helpers.common import library
from kernel_helpers.process.injection.native import SIGINFO_SIZE, check
from kernel_helpers.process.syscalls import Registers, carry_restart, is_ended_by_stop
from kernel_helpers.process.thread import Thread

FEW = 4
"""Threads, or fewer."""
STATE_ROOM = 16384
"""Bytes for the extended state of a thread: AMX makes it 11 kB."""
_AT_ONCE = 64
"""threads, where memory is needed for each"""
SOON = 0.1
"""Seconds in which threads that are asked to stop do so: one that does not is seen to alone."""
MOST_SIGNALS = 4
_SEIZED, _NEWBORN, _DONE = 1, 2, 3
_STANDING = struct.Struct(f"<8i{MOST_SIGNALS * SIGINFO_SIZE}s{ctypes.sizeof(Registers)}s3Q2I")
_KEPT = struct.Struct("<2iq2Q2i")
_RSEQ = struct.Struct("<Q4I")


@functools.cache
def _native() -> ctypes.CDLL:
    i, long, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
    return library.functions(
        ("inject_many_stop", i, [i, pointer, long, i, ctypes.c_int64]),
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


def split(infos: bytes, count: int) -> list[bytes]:
    """Return the siginfo of each signal of a row."""
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


def capture(pid: int, threads: Sequence[Thread]) -> None:
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
        for info in split(infos, signals) if signals else ():
            thread.keep(info)
        thread.group_stop = group_stop
        kept = (rseq + 8, section.to_bytes(8, "little")) if section else None
        thread.has_stopped(Registers.from_buffer_copy(registers), mask, kept, not section and not unread, bool(dispatches))
    return wrong


# -- reading


def rseqs(threads: Sequence[Thread]) -> list[tuple[int, int, int]]:
    """Return where the restartable sequences of each are registered: address, size, signature; zeros: nowhere."""
    data = bytearray(_RSEQ.size * len(threads))
    _native().inject_many_rseq(_tids(threads), (ctypes.c_char * len(data)).from_buffer(data), len(threads))
    return [(address, size, signature) for address, size, signature, _, _ in _RSEQ.iter_unpack(data)]


def states(threads: Sequence[Thread]) -> list[tuple[bytes, tuple[int, int], bool]]:
    """Of each its extended state, its robust list (head, length), and whether signals wait for it alone. Errors: OSError."""
    found: list[tuple[bytes, tuple[int, int], bool]] = []
    while len(found) < len(threads):
        # The first reports how much it is, on this processor. Memory that has been used is worth more than one call for all.
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
    check_each(threads, [min(0, waits) and -waits for waits in found], "pending signals of")
    return [waits > 0 for waits in found]


def interrupt(tids: Sequence[int]) -> None:
    """PTRACE_INTERRUPT of each; one that has ended is no error. Errors: OSError."""
    errors = (ctypes.c_int32 * len(tids))()
    _native().inject_many_interrupt((ctypes.c_int32 * len(tids))(*tids), errors, len(tids))
    for tid, error in zip(tids, errors, strict=True):
        if error and error != errno.ESRCH:
            check(-error, f"PTRACE_INTERRUPT of {tid}")


def reports(tids: Sequence[int], timeout: float) -> list[int | None]:
    """Return the next report of each thread (as waitpid has it), of all of which one is due; None: it has ended unseen, or reports nothing
    in the seconds that there are for all."""
    found = (ctypes.c_int32 * len(tids))()
    _native().inject_many_await((ctypes.c_int32 * len(tids))(*tids), found, len(tids), int(timeout * 1e6))
    return [status if status >= 0 else None for status in found]


def have_ended(tids: Sequence[int]) -> bool:
    """Return whether any of these traced threads has; that can still be waited for afterwards. Errors: ChildProcessError."""
    return bool(check(_native().inject_many_ended((ctypes.c_int32 * len(tids))(*tids), len(tids)), "threads"))


def set_extended_states(threads: Sequence[Thread], wanted: Sequence[bytes]) -> None:
    """Gives each its extended state. Errors: OSError."""
    for first in range(0, len(threads), 256):
        some, data = threads[first : first + 256], wanted[first : first + 256]
        room = max(map(len, data))
        joined = b"".join(state.ljust(room, b"\0") for state in data)
        errors, sizes = (ctypes.c_int32 * len(some))(), (ctypes.c_int64 * len(some))(*map(len, data))
        _native().inject_many_set_states(_tids(some), errors, len(some), joined, sizes, room)
        check_each(some, list(errors), "extended state of")


def filtered(threads: Sequence[Thread], beneath: int = 0) -> set[int]:
    """tids of those that have seccomp filters beyond the oldest `beneath`, or are such that this is not known."""
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


def check_each(threads: Sequence[Thread], errors: Sequence[int], what: str) -> None:
    """Raise OSError for the first thread whose errno is not 0."""
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
    alone = [thread for thread in threads if are_few or (thread.is_in_call and thread.has_pause_loop) or len(thread.in_hand) > 1]
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
    _native().inject_many_restore(rest[0].pid, (ctypes.c_char * len(data)).from_buffer(data), len(rest), rest[0].has_pause_loop)
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
