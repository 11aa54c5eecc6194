"""Where a thread waits whose tracer is killed while it has the thread make calls.

To have it make a call is to give it other registers. If the tracer dies then, the kernel lets the thread go on with those. So the
`syscall` instruction of such calls stands before a loop that does nothing but wait, all signals being blocked:

        syscall
    1:  mov $34, %eax           pause(2)
        syscall
        jmp 1b

It lies in the last bytes of the vdso, which nothing uses; by our writing there the process gets that page for itself. What the thread was
before is in a journal (kernel_helpers/journal.py), by which whoever comes sees to it that it goes on (deputy/mending.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_helpers.seizing import Frozen

CODE = bytes.fromhex("0f05 b822000000 0f05 ebf7")
AFTER_CALL = 2
"""bytes of the first instruction"""
_ROOM = 16


def make(frozen: Frozen) -> int:
    """Its address in a stopped process; 0: there is no room for it, or the kernel does not let us write there. Errors: OSError."""
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


def is_in(refuge: int, instruction: int) -> bool:
    """Whether a thread with that instruction pointer is there, and has not yet to make the call."""
    return refuge < instruction <= refuge + len(CODE)


def without(vdso: bytes) -> bytes:
    """The vdso as the kernel has made it."""
    return vdso[:-_ROOM] + bytes(_ROOM) if vdso[-_ROOM:].startswith(CODE) else vdso


def _end_of_vdso(pid: int) -> int:
    with open(f"/proc/{pid}/maps", "rb") as maps:
        line = next((line for line in maps if line.endswith(b"[vdso]\n")), b"")
    return int(line.split(b" ", 1)[0].split(b"-")[1], 16) if line else 0

