"""How a thread of a guest goes on: with a signal, or with its call first; and out of a call that home has suspended."""

from __future__ import annotations

import errno
import time

from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.syscalls import ERESTARTNOHAND, U64, signed
from kernel_helpers.process.tracing import Cause, Stop
from remote.tracee import halves
from remote.tracee.dying import Dying
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Stops, Tracee
from remote.tracee.waits import Waits

DOOR_PATIENCE = 0.005
"""Seconds for a call that was made to be taken."""


class Delivery:
    """Of the signals of one guest."""

    def __init__(
        self, tracee: Tracee, interrupted: InterruptedCalls, signals: GuestSignals, waits: Waits, dying: Dying, stops: Stops
    ) -> None:
        self._tracee = tracee
        self._interrupted = interrupted
        self._signals = signals
        self._waits = waits
        self._dying = dying
        self._stops = stops
        self._ended_by_stop: dict[int, int] = {}
        """calls that home has given back from threads (ours), having ended with EINTR as the thread was stopped there"""

    def suspension(self, tid: int, code: int) -> None:
        """Home has suspended a call: the thread restarts it by the kernel's own rules, or makes it again after a freeze."""
        tracee = self._tracee
        host = tracee.host_tid(tid)
        if host is None:
            return
        # The trap that INTERRUPT leaves makes sure that the thread passes through get_signal(): only there is a restart
        # code turned into a restart; with nothing pending errno 512 would reach the program.
        tracing.interrupt(host)
        call = tracee.link.parked().get(tid)
        if call is not None and self._waits.ends(host, call, code):
            return
        self._ended_by_stop.pop(host, None)
        if call is not None and code == -errno.EINTR:
            self._ended_by_stop[host] = call.number
        # Calls that a handler ends with EINTR, and that go on when none runs (poll and sleeps: -516; epoll_wait: EINTR by
        # the mere stop at home), behave like ERESTARTNOHAND.
        code = code if code in syscalls.RESTART_CODES[:3] else syscalls.ERESTARTNOHAND
        if call is not None:
            self._interrupted.answered(host, call.number)
        if tracee.is_pausing:
            self._interrupted.suspended(host, code)
        tracee.link.answer(tid, error=code)

    def stop(self, stop: Stop) -> None:
        """A signal-delivery-stop: the thread goes on, with the signal, or with its call first."""
        tracee, number, tid = self._tracee, stop.number, stop.tid
        info = tracing.signal_info(tid)
        is_unreceived = self._interrupted.rewind(tid)
        is_anybodys, true = self._signals.is_anybodys(info), self._signals.claim(info)
        if true != info:
            tracing.set_signal_info(tid, true)
        state = tracing.signal_state(tracee.pid, tid)
        if number in tracing.STOPPING and not state.is_caught(number) and not state.is_ignored(number):
            halves.end(tracee, self._interrupted, tid)
            self._signals.stop_at_home(number)
            self._end_by_stop(tid)
            tracee.await_stop(tid)
            tracing.proceed(tid)
            return
        if state.is_caught(number) and halves.end(tracee, self._interrupted, tid):
            is_unreceived = False
        if is_unreceived and state.is_caught(number) and not native.comes_again(true) and not self._interrupted.blocks_next(tid, number):
            self._let_in(tid, true, is_anybodys)
            return
        if self._dying.takes(stop, true, state):
            return
        if state.is_caught(number):
            self._signals.take(tid, true, lambda reported: self._deliver(tid, number, reported if reported != true else b""))
            return
        self._signals.taken(true)
        self._deliver(tid, number)

    def _let_in(self, tid: int, info: bytes, is_anybodys: bool) -> None:
        """The thread, in a signal-delivery-stop before a call, makes that first: it can be one that the signal is to end, which comes to it
        where it waits. (A call that blocks it is not: it would wait in that thread, while others might have taken it.) Home's answer has to
        wait for that, for the call can be one after which the program counts on having had the signal (timer_delete)."""
        tracee = self._tracee
        tracee.link.hold()
        try:
            tracing.proceed(tid)
            for taken in ((info, is_anybodys), *self._await_call(tid)):
                self._signals.put_back(tid, *taken)
        finally:
            tracee.link.release()

    def _deliver(self, tid: int, number: int, info: bytes = b"") -> None:
        """The thread, in a signal-delivery-stop, goes on with the signal. info: what else is said about it."""
        tracee = self._tracee
        if info:
            tracing.set_signal_info(tid, info)
        if tracing.signal_state(tracee.pid, tid).is_caught(number):
            self._interrupted.runs_handler(tid)
            tracee.link.abandon(tracee.program_tid(tid))
        else:
            self._waits.leave(tid)
            tracee.note_use()  # it may end by that
        tracing.proceed(tid, number)

    def _end_by_stop(self, tid: int) -> None:
        """The stop of a process ends some calls (epoll_wait and others) with EINTR, whether or not anything handles its signal."""
        registers = tracing.registers(tid)
        if (signed(registers.orig_rax), signed(registers.rax)) == (self._ended_by_stop.pop(tid, None), ERESTARTNOHAND):
            registers.rax, registers.orig_rax = -errno.EINTR & U64, U64
            tracing.set_registers(tid, registers)
            self._interrupted.runs_handler(tid)
            self._interrupted.forget(tid)
            self._tracee.link.abandon(self._tracee.program_tid(tid))

    def _await_call(self, host: int) -> list[tuple[bytes, bool]]:
        """Until the call that a thread is about to make is on its way home, or a moment has passed. Returns further signals that it handles
        and has taken before that call: the siginfo, and whether it was sent to the process."""
        tracee, taken = self._tracee, []
        program = tracee.program_tid(host)
        end = time.monotonic() + DOOR_PATIENCE
        while program not in tracee.link.parked() and time.monotonic() < end:
            for stop in tracing.poll([host]):
                if (found := self._taken_before_call(stop)) is not None:
                    taken.append(found)
                    tracing.proceed(host)
                else:
                    self._stops.handle_stop(stop)
            time.sleep(0.0001)  # no descriptor reports it
        return taken

    def _taken_before_call(self, stop: Stop) -> tuple[bytes, bool] | None:
        """A signal that the thread handles and has taken before its call, if that is what the stop is."""
        if stop.cause is not Cause.SIGNAL or not tracing.signal_state(self._tracee.pid, stop.tid).is_caught(stop.number):
            return None
        info = tracing.signal_info(stop.tid)
        if native.comes_again(info) or not self._interrupted.rewind(stop.tid) or self._interrupted.blocks_next(stop.tid, stop.number):
            return None
        is_anybodys = self._signals.is_anybodys(info)
        return self._signals.claim(info), is_anybodys


__all__ = ["Delivery"]
