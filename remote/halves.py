"""Calls of which a move has ended the first half, by a part: home makes the rest when the guest's thread makes the call again.

A signal that the program hears, or a stop of the process, may come before that. Natively it would have ended the call, with that part as
its result. So it does here, and home is told before it hears of any other call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import rests
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import U64

if TYPE_CHECKING:
    from remote.guest import Guest


def end(guest: Guest, tid: int) -> bool:
    """Ends the half-done call of a thread (ours) in a stop. Returns whether there was one. Errors: ProcessLookupError."""
    program = guest.program_tid(tid)
    part = guest.link.part(program)
    registers = rests.behind(guest.pid, tracing.registers(tid), part.number) if part is not None else None
    if part is None or registers is None:
        return False
    registers.rax, registers.orig_rax = part.done, U64
    tracing.set_registers(tid, registers)
    guest.door.handled(tid)
    guest.door.forget(tid)
    guest.link.abandon(program)
    if guest.trace is not None:
        guest.trace.ended(tid, part.done)
    return True


__all__ = ["end"]
