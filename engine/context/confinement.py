"""Seccomp filters of a program's own: which of them can go along, and how they are read where the program stands still.

They judge a call where it is made, by the program's own registers: on the node where it is. There they lie above farhome's own filter,
which catches calls; of what two filters say the kernel takes what is more severe (seccomp(2)), so a call is forwarded when the program's
filters allow it. The stub has them still; what it is made to do for the guest has been judged by then (PTRACE_O_SUSPEND_SECCOMP).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence

from kernel_helpers.calls.filter import AUDIT_ARCH_X86_64
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

Chain = tuple[bytes, ...]
"""Programs (struct sock_filter[]) of a thread's filters, the oldest first."""

INSTRUCTION = 8
LONGEST = 4096
"""Instructions of one filter (BPF_MAXINSNS)."""
MOST = 6553
"""Filters of one thread: 32768 instructions, and each counts for five at least (MAX_INSNS_PER_PATH)."""

MOST_IN_ALL = 1 << 17
"""Filters of all threads of a process."""

STRICT = "it runs in the strict mode of seccomp"
COMPUTES = "its seccomp filter computes what becomes of a call"
LOGS = "its seccomp filter writes to the log of its home (SECCOMP_FILTER_FLAG_LOG)"
UNREADABLE = "its seccomp filters cannot be read"
IN_IMAGES = "it runs under seccomp filters of its own, which CRIU's images do not hold"
TOO_LONG = "its seccomp filters and farhome's own are longer than the kernel allows together"
_ASKING = {
    0x7FC00000: "its seccomp filter asks another process about calls (SECCOMP_RET_USER_NOTIF)",
    0x7FF00000: "its seccomp filter asks a tracer about calls (SECCOMP_RET_TRACE)",
    0x7FFC0000: "its seccomp filter writes calls to the log of its home (SECCOMP_RET_LOG)",
}
_ALLOW = 0x7FFF0000
_CARRIED = frozenset({0x80000000, 0x00000000, 0x00030000, 0x00050000, _ALLOW})
"""KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, ALLOW."""
_ACTION = 0xFFFF0000

_PTRACE_SECCOMP_GET_FILTER, _PTRACE_SECCOMP_GET_METADATA = 0x420C, 0x420D
_EMEDIUMTYPE = 124
_FLAG_LOG = 2
_METADATA = struct.Struct("<QQ")
_CODE = struct.Struct("<HBBI")
_RETURN, _RETURN_CONSTANT = 0x06, 0x06
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long


def chain(tid: int, beneath: int = 0) -> Chain:
    """Return the filters of a thread that is stopped by its tracer, us. beneath: how many of the oldest are farhome's own. Errors:
    OSError."""
    found: list[bytes] = []
    while (length := _get_filter(tid, beneath + len(found), None)) > 0:
        program = ctypes.create_string_buffer(length * INSTRUCTION)
        _get_filter(tid, beneath + len(found), program)
        found.append(program.raw)
    return tuple(found)


def is_confined(pid: int) -> bool:
    """Return whether a thread of a process runs under seccomp. Errors: FileNotFoundError, ProcessLookupError."""
    return any(reported != b"Seccomp:\t0\n" for reported in tasks.texts(pid, "status", ["Seccomp:"]).values())


def obstacle(frozen: Frozen) -> str | None:
    """Return why the filters of a process that stands still cannot go along, or None. Errors: OSError."""
    seen: set[bytes] = set()
    for tid in sorted(many.filtered(list(frozen.threads.values()))):
        try:
            programs = chain(tid)
            if any(_flags(tid, number) & _FLAG_LOG for number in range(len(programs))):
                return LOGS
        except OSError as error:
            if error.errno in (errno.EACCES, _EMEDIUMTYPE):
                return UNREADABLE
            raise
        for program in programs:
            if program not in seen and (reason := unfit(program)) is not None:
                return reason
            seen.add(program)
    return None


def unfit(program: bytes) -> str | None:
    """Return why a filter cannot judge elsewhere what it judges at home, or None: by all that it may return."""
    for code, _, _, constant in _CODE.iter_unpack(program):
        if code & 0x07 != _RETURN:
            continue
        if code != _RETURN_CONSTANT:
            return COMPUTES
        action = constant & _ACTION
        if action not in _CARRIED:
            return _ASKING.get(action, f"its seccomp filter knows an action that farhome does not ({action:#x})")
    return None


def lets_sleeps_go_on(chains: Iterable[Chain]) -> bool:
    """Return whether a sleep that a stop has interrupted can go on where it was, for which the kernel makes a call of its own."""
    return all(_judge(program, SYS.restart_syscall) & _ACTION == _ALLOW for program in {one for each in chains for one in each})


def chains(frozen: Frozen, beneath: int = 0) -> dict[int, Chain]:
    """tid -> its filters. Errors: OSError."""
    have_some = many.filtered(list(frozen.threads.values()), beneath)
    return {tid: chain(tid, beneath) if tid in have_some else () for tid in frozen.threads}


def _get_filter(tid: int, number: int, buffer: ctypes.Array[ctypes.c_char] | None) -> int:
    """How many instructions it has, 0: there is none of that number. Errors: OSError."""
    length = int(_libc.ptrace(ctypes.c_long(_PTRACE_SECCOMP_GET_FILTER), ctypes.c_long(tid), ctypes.c_long(number), buffer))
    if length < 0:
        code = ctypes.get_errno()
        if code in (errno.ENOENT, errno.EINVAL):  # EINVAL: it has none at all
            return 0
        raise OSError(code, f"seccomp filter {number} of {tid}: {os.strerror(code)}")
    return length


def _flags(tid: int, number: int) -> int:
    """Of seccomp(2), those that the kernel reports. Errors: OSError."""
    reported = ctypes.create_string_buffer(_METADATA.pack(number, 0), _METADATA.size)
    if _libc.ptrace(ctypes.c_long(_PTRACE_SECCOMP_GET_METADATA), ctypes.c_long(tid), ctypes.c_long(_METADATA.size), reported) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp filter {number} of {tid}: {os.strerror(code)}")
    return int(_METADATA.unpack(reported.raw)[1])


def _judge(program: bytes, number: int, arguments: Sequence[int] = (0,) * 6) -> int:
    """What a filter that the kernel has taken returns for a call: BPF as of the kernel's seccomp_check_filter()."""
    data = struct.pack("<IIQ6Q", number, AUDIT_ARCH_X86_64, 0, *arguments)
    memory = [0] * 16
    code = list(_CODE.iter_unpack(program))
    at = accumulator = index = 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        kind, operand = operation & 0x07, index if operation & 0x08 else constant
        if kind == 0x00:  # BPF_LD: a word of the call, the size of that, a constant, or memory
            mode = operation & 0xE0
            if mode == 0x20:
                accumulator = int.from_bytes(data[constant : constant + 4], "little")
            else:
                accumulator = {0x80: len(data), 0x00: constant}.get(mode, memory[constant & 15])
        elif kind == 0x01:  # BPF_LDX
            index = {0x80: len(data), 0x00: constant}.get(operation & 0xE0, memory[constant & 15])
        elif kind == 0x02:  # BPF_ST
            memory[constant] = accumulator
        elif kind == 0x03:  # BPF_STX
            memory[constant] = index
        elif kind == 0x04:  # BPF_ALU
            accumulator = _compute(operation & 0xF0, accumulator, operand)
        elif kind == 0x05:  # BPF_JMP
            at += constant if operation & 0xF0 == 0 else if_true if _compare(operation & 0xF0, accumulator, operand) else if_false
        elif kind == 0x06:  # BPF_RET
            return accumulator if operation & 0x18 == 0x10 else constant
        elif operation & 0xF8 == 0x80:  # BPF_MISC: TXA
            accumulator = index
        else:
            index = accumulator


def _compute(operation: int, a: int, b: int) -> int:
    if operation == 0x30:
        return a // b if b else 0
    if operation in (0x60, 0x70):
        return (a << (b & 31) if operation == 0x60 else a >> (b & 31)) & 0xFFFFFFFF
    results = {0x00: a + b, 0x10: a - b, 0x20: a * b, 0x40: a | b, 0x50: a & b, 0x80: -a, 0xA0: a ^ b}
    return results[operation] & 0xFFFFFFFF


def _compare(operation: int, a: int, b: int) -> bool:
    return {0x10: a == b, 0x20: a > b, 0x30: a >= b, 0x40: bool(a & b)}[operation]


__all__ = [
    "INSTRUCTION", "IN_IMAGES", "LONGEST", "MOST", "MOST_IN_ALL", "STRICT", "TOO_LONG", "Chain", "chain", "chains", "is_confined",
    "lets_sleeps_go_on", "obstacle", "unfit",
]  # fmt: skip
