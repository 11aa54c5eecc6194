"""Calls that a signal has ended in the middle which the guest does not hear: the rest of them is made.

A write that waits for room ends with the part that it has written when a signal comes that its thread neither blocks nor ignores. What
the guest blocks and ignores is the guest's affair, and to whom is traced the kernel shows what is ignored as well. So such a stub's thread
stays in its stop until the guest has reported (BLOCKS); then it writes on, or the call is over with what it has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.calls import rests
from kernel_helpers.process import tracing

if TYPE_CHECKING:
    from deputy.stub.stub import Stub


class Cuts:
    """Of one stub."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._signals: dict[int, int] = {}
        """which signal has ended the call of a thread"""

    def finds(self, tid: int, number: int) -> bool:
        """Return whether a thread that has stopped for that signal comes out of a call that has ended in the middle. Then decide() is
        due."""
        registers = tracing.registers(tid)
        if not self._stub.stands_behind_call(registers) or not rests.bytes_left(self._stub.pid, registers):
            return False
        self._signals[tid] = number
        return True

    def decide(self, tid: int, deaf: int) -> None:
        """A thread that stands so makes the rest of its call, if its signal is one of those that the guest's thread does not hear."""
        number = self._signals.pop(tid, 0)
        if not number or not deaf >> number - 1 & 1:
            return
        self._stub.make_rest(tid, tracing.registers(tid))


__all__ = ["Cuts"]
