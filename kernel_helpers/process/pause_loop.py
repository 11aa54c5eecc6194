"""Where a thread waits whose tracer is killed while it has the thread make calls.

To have it make a call is to give it other registers. If the tracer dies then, the kernel lets the thread go on with those. So the
`syscall` instruction of such calls stands before a loop that does nothing but wait, all signals being blocked; another before it makes
many calls of a table (struct injected of inject.h) without a stop in between:

    batch:  test %rbp, %rbp             how many are left
            jz wait
            mov (%rbx), %rax            and, from 16(%rbx) on, the six arguments
            syscall
            mov %rax, 8(%rbx)
            add $64, %rbx
            dec %rbp
            jmp batch
    one:    syscall
    wait:   mov $34, %eax               pause(2)
            syscall
            jmp wait

It lies in the last bytes of the vdso, which nothing uses; by our writing there the process gets that page for itself. What the thread was
before is in a journal (kernel_helpers/process/journal.py), by which anyone who comes sees to it that it goes on (deputy/stub/mending.py).
"""

from __future__ import annotations

from typing import Protocol

from kernel_helpers.inspection import places

_BATCH = bytes.fromhex("4885ed 742c 488b03 488b7b10 488b7318 488b5320 4c8b5328 4c8b4330 4c8b4b38 0f05 48894308 4883c340 48ffcd ebd1")
_ONE = bytes.fromhex("0f05 b822000000 0f05 ebf7")
CODE = _BATCH + _ONE
ONE = len(_BATCH)
"""where one call is made"""
AFTER_CALL = 2
"""bytes of the instruction that makes it"""
_ROOM = 64


class Stopped(Protocol):
    """What is needed of a process that stands still (seizing.Frozen)."""

    pid: int

    def read(self, address: int, size: int) -> bytes:
        """Errors: OSError."""

    def write_forced(self, address: int, data: bytes) -> None:
        """Writes where the process itself may not. Errors: OSError."""


def make(frozen: Stopped) -> int:
    """Return where it begins in a stopped process; 0: there is no room for it, or the kernel does not let us write there. Errors:
    OSError."""
    end = _end_of_vdso(frozen.pid)
    if not end:
        return 0
    address = end - _ROOM
    found = frozen.read(address, _ROOM)
    if not found.strip(b"\0"):
        try:
            frozen.write_forced(address, CODE)
        except PermissionError:
            return 0
    elif not found.startswith(CODE):
        return 0
    return address


def is_in(pause_loop: int, instruction: int) -> bool:
    """Return whether a thread with that instruction pointer is there."""
    return pause_loop <= instruction <= pause_loop + len(CODE)


def without(vdso: bytes) -> bytes:
    """Return the vdso as the kernel has made it."""
    return vdso[:-_ROOM] + bytes(_ROOM) if vdso[-_ROOM:].startswith(CODE) else vdso


def _end_of_vdso(pid: int) -> int:
    found = places.of_instructions(pid)  # of its mappings there may be tens of thousands
    if found is not None:
        return next((place.end for place in found if place.path == "[vdso]" and not place.inode), 0)
    with open(f"/proc/{pid}/maps", "rb") as maps:
        line = next((line for line in maps if line.endswith(b"[vdso]\n")), b"")
    return int(line.split(b" ", 1)[0].split(b"-")[1], 16) if line else 0
