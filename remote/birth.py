"""A thread that is born away: the stub at home has made one, and the guest's gets the same id.

The call that makes it is caught by the filter and waits. The thread is taken out of it, as for a restart, and makes it again by
injection, its child being our tracee from the start and stopped before its first instruction.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass

from engine.capture import inner_tid
from engine.forkcopy import CLONE_PTRACE, CLONE_VM
from kernel_helpers import inject
from kernel_helpers.errors import FarhomeError
from kernel_helpers.inject import SYS, U64, Thread, check

_CLONE_SIGHAND, _CLONE_THREAD = 0x800, 0x10000
_THREAD = CLONE_VM | _CLONE_SIGHAND | _CLONE_THREAD
_KNOWN = _THREAD | 0x200 | 0x400 | 0x40000 | 0x80000 | 0x100000 | 0x200000 | 0x400000 | 0x1000000
"""And FS, FILES, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID, DETACHED, CHILD_SETTID: what threads are made with."""
_ARGUMENTS = struct.Struct("<11Q")
"""struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup."""
_INSTRUCTION = b"\x0f\x05"
CALLS = (SYS.clone, SYS.clone3)


@dataclass(frozen=True)
class Newborn:
    """A thread, stopped before its first instruction. `parent`: the one that made it, stopped behind the call."""

    thread: Thread
    parent: Thread


def is_thread(tid: int, number: int, arguments: tuple[int, ...]) -> bool:
    """Whether this call of the guest's thread makes a thread, and nothing that we do not know of."""
    if number == SYS.clone:
        flags = arguments[0]
    else:
        given = _read(tid, arguments[0], min(arguments[1], _ARGUMENTS.size))
        if given is None or len(given) < 64:
            return False
        fields = _ARGUMENTS.unpack(given.ljust(_ARGUMENTS.size, b"\0"))
        flags = fields[0]
        if arguments[1] > _ARGUMENTS.size or fields[4] or any(fields[8:]):
            return False
    return flags & _THREAD == _THREAD and not flags & ~_KNOWN


def bear(parent: Thread, wanted: int) -> Newborn:
    """`parent` is stopped in the call that makes a thread, or put back to before it, under PTRACE_O_SUSPEND_SECCOMP, and `wanted` is the
    next id in its namespace. Errors: FarhomeError, OSError; there is no new thread then, and the call can be made again."""
    registers = parent.registers
    was_put_back = registers.orig_rax == U64
    number = registers.rax if was_put_back else registers.orig_rax
    if number not in CALLS:
        raise FarhomeError(f"thread {parent.tid} is not about to make another")
    arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8]
    parent.instruction = inject.find_instruction(parent.pid)
    before = _tasks(parent.pid)
    flags_at = 0
    if number == SYS.clone:
        arguments[0] |= CLONE_PTRACE
    else:
        flags_at = arguments[0]
        (flags,) = struct.unpack("<Q", _read(parent.tid, flags_at, 8) or bytes(8))
        _write(parent.pid, flags_at, flags | CLONE_PTRACE)
    try:
        result = parent.call(number, *arguments)
    finally:
        if flags_at:
            _write(parent.pid, flags_at, flags)
    check(result, f"a new thread of {parent.tid}")
    born = next(tid for tid in _tasks(parent.pid) - before if inner_tid(parent.pid, tid) == result)
    thread = Thread.adopt(born, parent.pid)
    if result != wanted:
        thread.instruction = parent.instruction
        with suppress(ProcessLookupError):
            thread.call(SYS.exit, 0)
        raise FarhomeError(f"the new thread is {result} here and {wanted} at home")
    child = registers.copy()
    child.rsp, child.fs_base = thread.registers.rsp, thread.registers.fs_base
    child.rip += len(_INSTRUCTION) if was_put_back else 0
    child.rax, child.orig_rax = 0, U64
    thread.registers, thread.signal_mask = child, parent.signal_mask
    thread.rseq_section = None
    registers.rip, registers.rax, registers.orig_rax = child.rip, result, U64
    return Newborn(thread, parent)


def _tasks(pid: int) -> set[int]:
    return set(map(int, os.listdir(f"/proc/{pid}/task")))


def _read(tid: int, address: int, size: int) -> bytes | None:
    try:
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            data = memory.read(size)
            return data if len(data) == size else None
    except (OSError, ValueError, OverflowError):
        return None


def _write(pid: int, address: int, flags: int) -> None:
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(struct.pack("<Q", flags))
