"""Threads and processes that are born away: the stub at home has made one, and the guest's gets the same id.

The call that makes it is caught by the filter and waits. The thread is taken out of it, as for a restart, and makes it again by
injection, its child being our tracee from the start and stopped before its first instruction.

A process is born as a child of process 1 of the sandbox, which reaps it: whose child it is, and what its end means, home's kernel
knows. The parent of a vfork is not held by the kernel but by us, in its stop, until its child has let go of the memory that they share.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass

from engine.context.capture import inner_tid
from engine.criu.clone import CLONE_PTRACE, CLONE_VM, kernel_translates, translated
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.injection.native import check, read_memory, write_memory
from kernel_helpers.process.syscalls import SYS, U64
from kernel_helpers.process.thread import Thread

CLONE_VFORK = 0x4000
CLONE_PARENT = 0x8000
_CLONE_SIGHAND, _CLONE_THREAD = 0x800, 0x10000
_SIGNAL = 0xFF
"""The bits of clone's flags that are the signal of its end."""
_SETS = 0x80000 | 0x100000 | 0x200000 | 0x1000000
"""SETTLS, PARENT_SETTID, CHILD_CLEARTID, CHILD_SETTID: all in the memory and registers of the guest."""
_THREAD = CLONE_VM | _CLONE_SIGHAND | _CLONE_THREAD
_THREAD_KNOWN = _THREAD | _SETS | 0x200 | 0x400 | 0x40000 | 0x400000
"""And FS, FILES, SYSVSEM, DETACHED: what threads are made with."""
_PROCESS_KNOWN = CLONE_VM | CLONE_VFORK | _SETS | 0x100000000
"""And CLEAR_SIGHAND: what processes are made with that share no more than memory with their parent."""
_ARGUMENTS = struct.Struct("<11Q")
"""struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup."""
_INSTRUCTION = b"\x0f\x05"
_SHARED = re.compile(rb"^\S+ .(?:w.s|..s .* \(deleted\)$)", re.MULTILINE)
"""Of the lines of /proc/PID/maps: what is shared and may be written, or has no name: that is its own, and may be made writable."""
CALLS = (SYS.clone, SYS.clone3, SYS.fork, SYS.vfork)


@dataclass(frozen=True)
class Wanted:
    """What a call is to make. exit_signal: of a process, what its parent gets at its end. is_process: else a thread."""

    flags: int
    exit_signal: int = 0
    is_process: bool = False

    @property
    def shares_memory(self) -> bool:
        """Whether a process is to have the memory of its parent, who waits for it."""
        return self.is_process and bool(self.flags & CLONE_VM)

    @property
    def is_awaited(self) -> bool:
        """Whether the parent waits until the child has let go of its memory."""
        return bool(self.flags & CLONE_VFORK)


def wanted(tid: int, number: int, arguments: tuple[int, ...]) -> Wanted | None:
    """What this call of the guest's thread makes; None: something that we do not know of, or share nothing with home of."""
    exit_signal = 0
    if number == SYS.fork:
        flags, exit_signal = 0, signal.SIGCHLD
    elif number == SYS.vfork:
        flags, exit_signal = CLONE_VM | CLONE_VFORK, signal.SIGCHLD
    elif number == SYS.clone:
        flags, exit_signal = arguments[0] & ~_SIGNAL & 0xFFFF_FFFF, arguments[0] & _SIGNAL
    else:
        given = _read(tid, arguments[0], min(arguments[1], _ARGUMENTS.size))
        if given is None or len(given) < 64:
            return None
        fields = _ARGUMENTS.unpack(given.ljust(_ARGUMENTS.size, b"\0"))
        flags, exit_signal = fields[0], fields[4]
        if arguments[1] > _ARGUMENTS.size or any(fields[8:]):
            return None
    if flags & _THREAD == _THREAD:
        return Wanted(flags) if not flags & ~_THREAD_KNOWN and not exit_signal else None
    if flags & ~_PROCESS_KNOWN or (flags & CLONE_VM and not flags & CLONE_VFORK) or not 0 <= exit_signal <= 64:
        return None
    return Wanted(flags, exit_signal, True)


def bear(parent: Thread, wish: Wanted, number: int, first: int, instruction: int) -> Thread:
    """The new task, stopped before its first instruction; the parent stands behind the call. `parent` is stopped in the call, or put
    back to before it, under PTRACE_O_SUSPEND_SECCOMP, and `number` is the next id in its namespace. `first`: process 1 there;
    `instruction`: where the guest has a `syscall` instruction.

    Errors: FarhomeError, OSError; there is no new task then, and the call can be made again."""
    registers = parent.registers
    was_put_back = registers.orig_rax == U64
    call = registers.rax if was_put_back else registers.orig_rax
    if call not in CALLS:
        raise FarhomeError(f"thread {parent.tid} is not about to make another")
    parent.instruction = instruction
    flags = wish.flags & ~CLONE_VFORK | CLONE_PTRACE | (CLONE_PARENT if wish.is_process else 0)
    listing = _children(first) if wish.is_process else f"/proc/{parent.pid}/task"
    before = set() if kernel_translates() else _tasks(listing)
    if call == SYS.clone3:
        at = registers.rdi
        own = _read(parent.tid, at, _ARGUMENTS.size) or _read(parent.tid, at, 64) or b""
        changed = struct.pack("<Q", flags) + own[8:32] + bytes(8) + own[40:]  # the sandbox's process 1 needs no signal
        write_memory(parent.pid, at, changed[:40])
        try:
            result = parent.call(SYS.clone3, at, registers.rsi)
        finally:
            write_memory(parent.pid, at, own[:40])
    else:
        stack, sets = (registers.rsi, (registers.rdx, registers.r10, registers.r8)) if call == SYS.clone else (0, (0, 0, 0))
        result = parent.call(SYS.clone, flags, stack, *sets)
    check(result, f"a child of {parent.tid}")
    if kernel_translates():
        born = translated(parent.pid, result)
    else:
        born = next((tid for tid in _tasks(listing) - before if inner_tid(tid, tid) == result), 0)
    if not born:
        raise ProcessLookupError(errno.ESRCH, f"the new task {result} of {parent.pid} is not to be found")
    thread = parent.adopt_child(born) if wish.is_process else Thread.adopt(born, parent.pid)
    if result != number:
        thread.instruction = parent.instruction
        with suppress(ProcessLookupError):
            thread.call(SYS.exit, 0)
        raise FarhomeError(f"the new task is {result} here and {number} at home")
    if call == SYS.clone3 and wish.is_process and not wish.shares_memory:
        write_memory(thread.pid, at, own[:40])
    child = registers.copy()
    child.rsp, child.fs_base = thread.registers.rsp, thread.registers.fs_base
    child.rip += len(_INSTRUCTION) if was_put_back else 0
    child.rax, child.orig_rax = 0, U64
    thread.registers, thread.signal_mask = child, parent.signal_mask
    thread.rseq_section = parent.rseq_section if wish.is_process and not wish.shares_memory else None
    registers.rip, registers.rax, registers.orig_rax = child.rip, result, U64
    return thread


def shared_memory(pid: int) -> bool:
    """Whether a process has memory that it would share with a child that it forks: home and its guests cannot. Errors: OSError."""
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
        return _SHARED.search(maps.readall()) is not None


def _children(first: int) -> str:
    return f"/proc/{first}/task/{first}/children"


def _tasks(listing: str) -> set[int]:
    if listing.endswith("children"):
        with open(listing, encoding="ascii") as children:
            return set(map(int, children.read().split()))
    return set(map(int, os.listdir(listing)))


def _read(tid: int, address: int, size: int) -> bytes | None:
    return read_memory(tid, address, size) if size else b""
