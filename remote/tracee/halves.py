"""Calls of which a move has ended the first half, by a part: home makes the rest when the guest's thread makes the call again.

A signal that the program hears, or a stop of the process, may come before that. Natively it would have ended the call, with that part as
its result. So it does here, and this is reported to home before any other call.
"""

from __future__ import annotations

from engine.calls import rests
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import U64
from kernel_helpers.process.tracing import Stop
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.tracee import Tracee


def end(tracee: Tracee, interrupted: InterruptedCalls, tid: int) -> bool:
    """Ends the half-done call of a thread (ours) in a stop. Returns whether there was one. Errors: ProcessLookupError."""
    program = tracee.program_tid(tid)
    part = tracee.link.part(program)
    registers = rests.behind(tracee.pid, tracing.registers(tid), part.number) if part is not None else None
    if part is None or registers is None:
        return False
    registers.rax, registers.orig_rax = part.done, U64
    tracing.set_registers(tid, registers)
    interrupted.runs_handler(tid)
    interrupted.forget(tid)
    tracee.link.abandon(program)
    if tracee.trace is not None:
        tracee.trace.ended(tid, part.done)
    return True


def halt(tracee: Tracee, interrupted: InterruptedCalls, stop: Stop) -> None:
    """A thread (ours) stays in this stop until the process is continued. Errors: ProcessLookupError."""
    end(tracee, interrupted, stop.tid)
    tracee.halt(stop)


__all__ = ["end", "halt"]
