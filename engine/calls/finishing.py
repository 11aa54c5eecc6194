"""A process at home makes the rest of its half-done writes (engine/calls/rests.py).

It does so call by call, followed by its tracer until it is over. A signal that the thread hears ends it, with what it has written, as it
does natively.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.calls import rests
from engine.calls.entering import begin_calls
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import U64, signed
from kernel_helpers.process.tracing import Cause, Stop
from wire.waking import ready

PATIENCE = 10.0
"""Seconds that a check or a checkpoint waits until a process has made its rests."""


@dataclass
class _Followed:
    """A thread that makes its rest. is_in: it is in a call."""

    cut: rests.Cut
    steps: list[rests.Step] = field(default_factory=list)
    is_in: bool = False


class Rests:
    """Of one process at home. Its tracer's thread alone may call this."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._threads: dict[int, _Followed] = {}

    def __bool__(self) -> bool:
        return bool(self._threads)

    def detach(self, frozen: Frozen, cuts: dict[int, rests.Cut]) -> None:
        """Lets the process go, but for these threads, which make their rests first."""
        taken = {}
        for tid, cut in cuts.items():
            thread = frozen.threads.get(tid)
            if thread is None:
                continue
            thread.registers = cut.registers.copy()
            with _unless_dead():
                if not thread.group_stop and not rests.hears(tracing.signal_state(self._pid, tid), thread):
                    thread.take_in_hand()  # which it ignores
                    thread.park()
                    taken[tid] = thread
        for tid in taken:
            del frozen.threads[tid]
        begin_calls(frozen)
        frozen.detach()
        for tid, thread in taken.items():
            with _unless_dead():
                thread.companions, thread.block_companions = (), None
                thread.restore()
                thread.set_options(tracing.PTRACE_O_TRACESYSGOOD)
                self._threads[tid] = _Followed(cuts[tid])
                self._go_on(tid)

    def poll(self) -> None:
        """Takes the stops that there are."""
        for stop in tracing.poll(list(self._threads)):
            self._take(stop)

    def wait(self, patience: float = PATIENCE) -> None:
        """Until they are made; after so many seconds with what has been written."""
        end = time.monotonic() + patience
        while self._threads and time.monotonic() < end:
            self.poll()
            ready([], 0.001)
        self.end()

    def end(self) -> None:
        """Now, with what has been written."""
        for tid in list(self._threads):
            tracing.interrupt(tid)
        end = time.monotonic() + 1.0
        while self._threads and time.monotonic() < end:
            for stop in tracing.poll(list(self._threads)):
                self._take(stop, is_last=True)
            ready([], 0.0005)

    def _take(self, stop: Stop, is_last: bool = False) -> None:
        tid, one = stop.tid, self._threads[stop.tid]
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            del self._threads[tid]
        elif stop.cause is Cause.CALL and one.is_in:
            one.is_in = False
            self._has_called(tid, one, is_last)
        elif stop.cause is Cause.CALL:
            one.is_in = True
            tracing.run_to_call(tid)
        elif stop.cause is Cause.SIGNAL and tracing.signal_state(self._pid, tid).is_ignored(stop.number):
            tracing.run_to_call(tid)
        elif stop.cause in (Cause.SIGNAL, Cause.GROUP_STOP) or is_last:
            self._let_go(tid, stop.number if stop.cause is Cause.SIGNAL else 0)
        else:
            tracing.run_to_call(tid)

    def _has_called(self, tid: int, one: _Followed, is_last: bool) -> None:
        value, wanted = signed(tracing.registers(tid).rax), one.steps[0][1]
        is_ended = value in syscalls.RESTART_CODES or 0 < value < wanted
        one.cut.done += max(0, value)
        if value == wanted or (is_ended and not is_last and not rests.hears(tracing.signal_state(self._pid, tid))):
            self._go_on(tid)
        else:
            self._let_go(tid)

    def _go_on(self, tid: int) -> None:
        """To the next call, from a stop in which the thread is in none."""
        one = self._threads[tid]
        one.steps = rests.steps(self._pid, one.cut.registers, one.cut.done)
        if not one.steps:
            self._let_go(tid)
            return
        number, _, arguments = one.steps[0]
        registers = one.cut.registers.copy()
        registers.rax, registers.orig_rax = number, U64
        registers.rip -= 2
        for name, value in zip(syscalls.ARGUMENTS, arguments, strict=True):
            setattr(registers, name, value)
        tracing.set_registers(tid, registers)
        tracing.run_to_call(tid)

    def _let_go(self, tid: int, number: int = 0) -> None:
        one = self._threads.pop(tid)
        registers = one.cut.registers.copy()
        registers.rax, registers.orig_rax = one.cut.done, U64
        with _unless_dead():
            tracing.set_registers(tid, registers)
            native.check(native.functions().inject_detach(tid, number), f"PTRACE_DETACH of {tid}")


class _unless_dead:
    """A thread that died meanwhile is none of our affair."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> bool:
        return isinstance(value, ProcessLookupError) or getattr(value, "errno", 0) == 3
