"""The functions of C of this folder that deal with one thread, and their structures."""

from __future__ import annotations

import ctypes
import functools
import os
import struct

from kernel_helpers.common import library
from kernel_helpers.process.syscalls import U64

PTRACE_O_TRACESYSGOOD = 1
PTRACE_O_TRACEEXEC = 1 << 4
PTRACE_O_EXITKILL = 1 << 20
PTRACE_O_SUSPEND_SECCOMP = 1 << 21
EVENT_EXEC = 4
EVENT_STOP = 128
SIGINFO_SIZE = 128
_FAULTS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
FAILED = 100000
_DEFERRED_MOST = 4  # as in inject.h


def comes_again(info: bytes) -> bool:
    """Return whether the signal is that of a fault (signal number, then si_code > 0: from the kernel): the thread's registers stand before
    the instruction, which faults again when it goes on. Such a signal is never kept or passed on."""
    number, _, code = struct.unpack_from("<iii", info)
    return number in _FAULTS and code > 0


class Deferred(ctypes.Structure):
    """What stopped a thread during injected calls and could not be blocked; `before`: how many of them came before the last call."""

    _fields_ = [("count", ctypes.c_int32), ("before", ctypes.c_int32), ("infos", ctypes.c_ubyte * SIGINFO_SIZE * _DEFERRED_MOST)]


INJECTED = 64
"""Bytes of struct injected."""
_CALLS = [struct.Struct(f"<2q{count}Q{8 * (6 - count)}x") for count in range(7)]
"""The same, by how many arguments there are."""


def packed(number: int, *arguments: int) -> bytes:
    """Return a call as struct injected."""
    try:
        return _CALLS[len(arguments)].pack(number, 0, *arguments)
    except struct.error:  # a negative one
        return _CALLS[len(arguments)].pack(number, 0, *[argument & U64 for argument in arguments])


def results_of(table: bytearray) -> list[int]:
    """Return what a row of such calls has given."""
    return memoryview(table).cast("q")[1 :: INJECTED // 8].tolist()


class RseqConfiguration(ctypes.Structure):
    """struct ptrace_rseq_configuration."""

    _fields_ = [
        ("pointer", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("signature", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


@functools.cache
def functions() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_wait", i, [i, ctypes.c_int64, pointer]),
        ("inject_seize", i, [i, long]),
        ("inject_interrupt", i, [i]),
        ("inject_listen", i, [i]),
        ("inject_continue", i, [i, long]),
        ("inject_step", i, [i]),
        ("inject_detach", i, [i, long]),
        ("inject_dispatches", i, [i]),
        ("inject_reach_signal_stop", i, [i, i, pointer]),
        ("inject_set_options", i, [i, long]),
        ("inject_get_registers", i, [i, pointer]),
        ("inject_set_registers", i, [i, pointer]),
        ("inject_get_extended_state", long, [i, pointer, long]),
        ("inject_set_extended_state", i, [i, pointer, long]),
        ("inject_get_signal_mask", i, [i, pointer]),
        ("inject_set_signal_mask", i, [i, u64]),
        ("inject_get_signal_info", i, [i, pointer]),
        ("inject_set_signal_info", i, [i, pointer]),
        ("inject_rseq", i, [i, pointer]),
        ("inject_call", long, [i, u64, i, pointer, ctypes.c_int64, pointer, long, u64, u64, u64, u64, u64, u64]),
        ("inject_batch", long, [i, u64, pointer, ctypes.c_int64, pointer, u64, pointer, long]),
        ("inject_read", long, [i, u64, pointer, long]),
        ("inject_write", long, [i, u64, pointer, long]),
        ("farhome_guest_memory_write", ctypes.c_int64, [i, ctypes.c_char_p, u64, u64]),
    )


def check(result: int, what: str) -> int:
    """Return the result, or OSError(errno, what) (ProcessLookupError, PermissionError, TimeoutError, ... by errno)."""
    if -4096 < result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    if result <= -FAILED:
        number = -result - FAILED
        raise OSError(number, f"injecting {what}: {os.strerror(number)}")
    return result


def write_memory(pid: int, address: int, data: bytes) -> None:
    """Writes memory of another process, also where that may not. Errors: OSError."""
    if functions().inject_write(pid, address, data, len(data)) == len(data):
        return
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            rest = data[done:]
            done += check(functions().farhome_guest_memory_write(descriptor, rest, len(rest), address + done), f"writing {pid}")
    finally:
        os.close(descriptor)


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Memory of another process, None if not all of it can be read."""
    buffer = ctypes.create_string_buffer(size)
    return buffer.raw if functions().inject_read(pid, address & U64, buffer, size) == size else None
