"""Interrupted calls of a guest's threads: those that a thread was taken out of, and those that are *unreceived*: the filter has caught
them, and nobody has received them from the listener yet.

Of both a stopped thread shows a restart code in rax. An unreceived call has not been made: the thread is put back to before it. A call that
was received, and answered with a restart code, is for the kernel to go on with, here or where the guest goes.
"""

from __future__ import annotations

from kernel_helpers.calls.table import Shape, row_of
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.thread import Thread
from remote.tracee.tracee import GuestEnd


class InterruptedCalls:
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
        self._answered = {tid: number for tid, thread in frozen.threads.items() if (number := _interrupted_call(thread)) is not None}
        self._put_back = {tid for tid, thread in frozen.threads.items() if syscalls.before_call(thread.registers) is not None}

    def is_unreceived(self, tid: int, registers: syscalls.Registers) -> bool:
        """Return whether a stopped thread was interrupted in a call that nobody has received yet."""
        number, code = syscalls.signed(registers.orig_rax), syscalls.signed(registers.rax)
        return (
            number >= 0
            and code in syscalls.RESTART_CODES
            and self._answered.get(tid) != number
            and self._link.is_notified(number, syscalls.arguments_of(registers))
        )

    def rewind(self, tid: int) -> bool:
        """Puts the thread back to before an unreceived call. Returns whether there was one, or a move has done that to the thread, which
        still stands there."""
        registers = tracing.registers(tid)
        if not self.is_unreceived(tid, registers):
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
        return native.read_memory(tid, registers.rip, len(syscalls.SYSCALL)) == syscalls.SYSCALL

    def blocks_next(self, tid: int, signal: int) -> bool:
        """Return whether the call that a thread makes next, before which it was put back, blocks the signal by a mask of its own."""
        registers = tracing.registers(tid)
        number = syscalls.before_call(registers)
        if number is None:
            return False
        for argument, value in zip(row_of(number).arguments, syscalls.arguments_of(registers), strict=False):
            if argument.shape not in (Shape.MASK, Shape.MASK6):
                continue
            at = value
            if argument.shape is Shape.MASK6:  # of pselect6(2) and io_pgetevents(2): where the mask is, and its size
                pair = native.read_memory(tid, value, 16) if value else None
                at = int.from_bytes(pair[:8], "little") if pair is not None else 0
            mask = native.read_memory(tid, at, 8) if at else None
            return mask is not None and bool(int.from_bytes(mask, "little") >> signal - 1 & 1)
        return False

    def rewind_unless_suspended(self, tid: int) -> None:
        """The same, for a thread that is stopped for a move."""
        if tid not in self._suspended and self.is_unreceived(tid, tracing.registers(tid)):
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
        """Return whether the thread is on its way out of a call that was answered so."""
        return tid in self._answered

    def runs_handler(self, tid: int) -> None:
        """The thread runs a handler: it will not make the suspended call again."""
        self._suspended.pop(tid, None)
        self._put_back.discard(tid)

    def settle(self, frozen: Frozen) -> None:
        """Puts the registers of a guest that stands still in order: every thread before a call, in one to be gone on with, or in none."""
        for tid, thread in frozen.threads.items():
            if not self.is_unreceived(tid, thread.registers):
                syscalls.carry_restart(thread.registers)
            elif tid in self._suspended:  # it was let go meanwhile, and has made the same call again
                thread.registers.rax = self._suspended[tid] & syscalls.U64
            else:
                syscalls.normalise_restart(thread.registers)
        self._keep(frozen)


def _interrupted_call(thread: Thread) -> int | None:
    """The number of the call that a stopped thread was taken out of with a restart code."""
    number, code = syscalls.signed(thread.registers.orig_rax), syscalls.signed(thread.registers.rax)
    return number if number >= 0 and code in syscalls.RESTART_CODES else None
