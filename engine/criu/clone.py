"""clone3(2) by injection: a thread or a child that a stopped thread makes."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
from pathlib import Path
from typing import Protocol

from kernel_helpers.process.injection.native import check
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread

CLONE_VM = 0x100
CLONE_FS = 0x200
CLONE_FILES = 0x400
CLONE_SIGHAND = 0x800
CLONE_PTRACE = 0x2000
CLONE_THREAD = 0x10000
CLONE_SYSVSEM = 0x40000
CLONE_OF_THREAD = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
_NS_GET_PID_FROM_PIDNS = 0x8004B706
CLONE_ARGUMENTS = 88


class Writable(Protocol):
    """What can be written of a process (seizing.Frozen)."""

    def write(self, address: int, data: bytes) -> None: ...


def clone_task(
    parent: Thread, memory: Writable, scratch: int, flags: int, known: set[int], listing: str, wanted: int = 0, exit_signal: int = 0
) -> tuple[int, int]:
    """Injected clone3 without a stack of its own: the new task stops before its first instruction, as our tracee.
    Returns its id in our pid namespace and in its own; `wanted`: which its own is to be; `exit_signal`: what a process's parent gets
    at its end."""
    memory.write(scratch, clone_arguments(scratch, flags, wanted, exit_signal))
    inner = check(parent.call(SYS.clone3, scratch, CLONE_ARGUMENTS), f"clone3 in {parent.tid}")
    # The result counts in the process's own namespace. Its kernel reports the number in ours (Linux 6.11), or /proc the one new task.
    if (ours := translated(parent.pid, inner)) > 0:
        return ours, inner
    if len(_namespaced_ids(parent.pid)) == 1:
        return inner, inner
    new = [tid for tid in tasks(listing) if tid not in known]
    for tid in new:
        if inner_id(tid) == inner:
            return tid, inner
    raise ProcessLookupError(errno.ESRCH, f"the new task {inner} of {parent.pid} is not to be found")


def clone_arguments(address: int, flags: int, wanted: int = 0, exit_signal: int = 0) -> bytes:
    """Return what clone3(2) finds at that address: CLONE_ARGUMENTS bytes, and which id the new task is to have, in eight more."""
    asked = (address + CLONE_ARGUMENTS, 1) if wanted else (0, 0)
    return struct.pack("<11Qi4x", flags | CLONE_PTRACE, 0, 0, 0, exit_signal, 0, 0, 0, *asked, 0, wanted)


@functools.cache
def kernel_translates() -> bool:
    """Return whether translated() finds every task: since Linux 6.11."""
    return translated(os.getpid(), os.getpid()) == os.getpid()


def translated(pid: int, inner: int) -> int:
    """Return the number in our pid namespace of a task of the one that process pid is in; 0: the kernel does not report it, or there is
    none of that number."""
    try:
        with open(f"/proc/{pid}/ns/pid", "rb", buffering=0) as namespace:
            return fcntl.ioctl(namespace, _NS_GET_PID_FROM_PIDNS, inner)
    except OSError:
        return 0


def tasks(listing: str) -> list[int]:
    """Return the ids that a file or folder of /proc lists."""
    if listing.endswith("/children"):
        return [int(word) for word in Path(listing).read_text(encoding="ascii").split()]
    return [int(name) for name in os.listdir(listing)]


def _namespaced_ids(tid: int) -> list[int]:
    for line in Path(f"/proc/{tid}/status").read_text(encoding="utf-8", errors="replace").split("\n"):
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [tid]


def inner_id(tid: int) -> int:
    """Return the id of a task in its own pid namespace."""
    return _namespaced_ids(tid)[-1]
