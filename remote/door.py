"""Calls that a guest's thread was taken out of, and those *at the door*: caught by the filter, not yet received from the listener.

Of both a stopped thread shows a restart code in rax. What is at the door has not been made: it is put back to before it. What was
received, and answered with a restart code, is for the kernel to go on with, here or where the guest goes.
"""

from __future__ import annotations

from kernel_helpers.process import inject, syscalls, tracing
from kernel_helpers.process.inject import Thread
from kernel_helpers.process.seizing import Frozen
from remote.tracee import GuestEnd


class Door:
    """What is known of the calls of one guest's threads; threads are named by their ids as this process sees them."""

    def __init__(self, link: GuestEnd, frozen: Frozen) -> None:
        self._link = link
        self._answered: dict[int, int] = {}
        """the call that a thread was taken out of with a restart code that is to count"""
        self._suspended: dict[int, int] = {}
        """restart code of the call that home has suspended for the move that is under way"""
        self._put_back: set[int] = set()
        """threads that a move may have put back to before a call, and that have not been seen elsewhere since"""
        self._keep(frozen)

    def _keep(self, frozen: Frozen) -> None:
        self._answered = {tid: number for tid, thread in frozen.threads.items() if (number := _interrupted(thread)) is not None}
        self._put_back = {tid for tid, thread in frozen.threads.items() if syscalls.before_call(thread.registers) is not None}

    def is_there(self, tid: int, registers: syscalls.Registers) -> bool:
        """Whether a stopped thread was interrupted in a call that nobody has taken from it yet."""
        number, code = syscalls.signed(registers.orig_rax), syscalls.signed(registers.rax)
        return (
            number >= 0
            and code in syscalls.RESTART_CODES
            and self._answered.get(tid) != number
            and self._link.is_notified(number, syscalls.arguments_of(registers))
        )

    def rewind(self, tid: int) -> bool:
        """A call at the door is put back to before it. Whether there was one, or a move has done that to the thread, which still stands
        there."""
        registers = tracing.registers(tid)
        if not self.is_there(tid, registers):
            self._answered.pop(tid, None)
            if tid in self._put_back and not self._is_before(tid, registers):
                self._put_back.discard(tid)
            return tid in self._put_back
        syscalls.normalise_restart(registers)
        tracing.set_registers(tid, registers)
        return True

    def _is_before(self, tid: int, registers: syscalls.Registers) -> bool:
        """Whether a stopped thread makes next a call that a signal can end, and that goes home."""
        number = syscalls.before_call(registers)
        if number is None or not self._link.is_notified(number, syscalls.arguments_of(registers)):
            return False
        return inject.read_memory(tid, registers.rip, len(syscalls.SYSCALL)) == syscalls.SYSCALL

    def rewind_unless_suspended(self, tid: int) -> None:
        """The same, for a thread that is stopped for a move."""
        if tid not in self._suspended and self.is_there(tid, tracing.registers(tid)):
            self.rewind(tid)

    def answered(self, tid: int, number: int) -> None:
        """A call of the thread was answered with a restart code."""
        self._answered[tid] = number

    def suspended(self, tid: int, code: int) -> None:
        """The thread's call was, for the move that is under way."""
        self._suspended[tid] = code

    def begin_pause(self) -> None:
        """A move begins: nothing is suspended for it yet."""
        self._suspended.clear()

    def forget(self, tid: int) -> None:
        """The thread goes on without that call."""
        self._answered.pop(tid, None)

    def has_answered(self, tid: int) -> bool:
        """Whether the thread is on its way out of a call that was answered so."""
        return tid in self._answered

    def handled(self, tid: int) -> None:
        """The thread runs a handler: it will not make the suspended call again."""
        self._suspended.pop(tid, None)
        self._put_back.discard(tid)

    def settle(self, frozen: Frozen) -> None:
        """Puts the registers of a guest that stands still in order: every thread before a call, in one to be gone on with, or in none."""
        for tid, thread in frozen.threads.items():
            if not self.is_there(tid, thread.registers):
                syscalls.carry_restart(thread.registers)
            elif tid in self._suspended:  # it was let go meanwhile, and has made the same call again
                thread.registers.rax = self._suspended[tid] & syscalls.U64
            else:
                syscalls.normalise_restart(thread.registers)
        self._keep(frozen)


def _interrupted(thread: Thread) -> int | None:
    """The number of the call that a stopped thread was taken out of with a restart code."""
    number, code = syscalls.signed(thread.registers.orig_rax), syscalls.signed(thread.registers.rax)
    return number if number >= 0 and code in syscalls.RESTART_CODES else None
