"""Calls that wait with a signal mask of their own (ppoll, pselect6, epoll_pwait, epoll_pwait2), or for signals (rt_sigtimedwait).

Home waits without the mask, and for no signal: both are the guest's affair. When a signal waits here that such a call lets in, the call is
asked back, and what a kernel does then is done by the one of this node, to the guest's thread, in the stop that it comes to:

- Of a mask, the thread begins rt_sigsuspend(2) with it, which an interrupt ends at once: from there on the kernel delivers by that mask,
  and what it brings back behind the handler is the thread's own. To anyone who looks the thread stands in the call that it has made.
- Of rt_sigtimedwait, the thread makes that call itself, with no time to wait: its own signals come before those of its process.

If another thread was quicker, the call is made again, and waits for the time that is left.
"""

from __future__ import annotations

import errno
import logging
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernel_helpers.link.ends.events import Parked
from kernel_helpers.process import tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.injection.native import SIGINFO_SIZE
from kernel_helpers.process.seizing import RED_ZONE, Frozen
from kernel_helpers.process.syscalls import (
    ERESTART_RESTARTBLOCK,
    ERESTARTNOHAND,
    ERESTARTNOINTR,
    SYS,
    U64,
    Registers,
    normalise_restart,
    signed,
)  # fmt: skip
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Stops, Tracee

log = logging.getLogger("remote")

PATIENCE = 60.0
"""Seconds for a thread to come to a stop on its way, as for an injected call."""


@dataclass(frozen=True)
class _Wait:
    """A call that home has given back. value: what it gives if no signal is found, 0: it is made again."""

    number: int
    mask: int
    value: int


class Waits:
    """Of one guest; threads are named by their ids as this process sees them."""

    def __init__(self, tracee: Tracee, interrupted: InterruptedCalls, signals: GuestSignals, stops: Stops) -> None:
        self._tracee = tracee
        self._interrupted = interrupted
        self._signals = signals
        self._stops = stops
        self.may_go_on = True
        """by restart_syscall(2), from which its own seccomp filters may keep the kernel"""
        self._given_back: dict[int, _Wait] = {}
        self._kept: set[int] = set()
        """threads (the program's ids) whose call home has given back for a move, and which stay in it until they stand still"""

    def ends(self, tid: int, call: Parked, code: int) -> bool:
        """Home has given a call back, with that code, or its time has passed and its result (code) is held back for a signal. Whether it
        is taken care of; else it is to be answered with ERESTARTNOHAND, and settle() comes."""
        if call.sigmask is None:
            return False
        tracee, value = self._tracee, code if code == -errno.EAGAIN else 0
        if not tracee.is_pausing:
            self._given_back[tid] = _Wait(call.number, call.sigmask, value)
            return False
        program = tracee.program_tid(tid)
        try:
            state = tracing.signal_state(tracee.pid, tid)
        except ProcessLookupError:
            return True
        if value and not state.let_in(call.sigmask):
            return tracee.link.answer(program, error=value)  # another thread was quicker
        # Out of its call it would take a signal that the call keeps from it. One whose time has passed finds what waits, made again.
        if value or (call.sigmask & ~state.blocked if call.number != SYS.rt_sigtimedwait else ~call.sigmask & ~state.blocked & U64):
            self._kept.add(program)
            return True
        return False

    def thaw(self) -> None:
        """The move is off before the guest stood still."""
        kept, self._kept = self._kept, set()
        for program in kept:
            host = self._tracee.host_tid(program)
            if host is not None and program in self._tracee.link.parked():
                tracing.interrupt(host)
                self._tracee.link.answer(program, error=ERESTARTNOINTR)

    def freeze(self, frozen: Frozen) -> None:
        """The guest stands still for a move: such calls are made again, but for those whose time has passed and that would find nothing."""
        given_back, self._given_back = self._given_back, {}
        self._kept.clear()
        for tid, wait in given_back.items():
            thread = frozen.threads.get(tid)
            if thread is None or not wait.value or not _stands_in(thread.registers, wait.number):
                continue
            if not tracing.signal_state(self._tracee.pid, tid).let_in(wait.mask):
                thread.registers.rax, thread.registers.orig_rax = wait.value & U64, U64

    def leave(self, tid: int) -> None:
        """A thread goes on out of a stop, and no handler of it runs."""
        if not self.may_go_on:
            registers = tracing.registers(tid)
            if self.end_early(registers):
                tracing.set_registers(tid, registers)

    def end_early(self, registers: Registers) -> bool:
        """Ends a wait for a futex of which the kernel keeps the time, as it may at any time, where the kernel may not go on with it.
        Returns whether it does."""
        if self.may_go_on:
            return False
        ends = signed(registers.orig_rax) == SYS.futex and signed(registers.rax) == ERESTART_RESTARTBLOCK
        if ends:
            normalise_restart(registers)
        return ends

    def settle(self, tid: int) -> bool:
        """A thread that has come to a stop is about to go on. Whether it goes on without the caller, now or later."""
        wait = self._given_back.pop(tid, None)
        if wait is None:
            return False
        try:
            registers = tracing.registers(tid)
            if not _stands_in(registers, wait.number):
                return False
            if wait.number == SYS.rt_sigtimedwait:
                return self._take(tid, wait)
            if tracing.signal_state(self._tracee.pid, tid).let_in(wait.mask):
                self._put_under(tid, registers, wait.mask)
            else:
                normalise_restart(registers)  # nor does a signal end it now that it does not let in
                tracing.set_registers(tid, registers)
                self._interrupted.forget(tid)
        except ProcessLookupError:
            return True
        except OSError as error:
            log.warning("only home can go on with call %d: %s", wait.number, error)
            self._tracee.go_home(self._tracee.program_tid(tid), wait.number)
        return False

    # -- a mask

    def _put_under(self, tid: int, registers: Registers, mask: int) -> None:
        """Errors: ProcessLookupError; OSError; TimeoutError."""
        usual = tracing.PTRACE_O_EXITKILL | self._tracee.link.trace_options
        own = tracing.signal_mask(tid)
        with self._scratch(registers, struct.pack("<Q", mask)) as address:
            suspending = registers.copy()
            suspending.rip -= 2
            suspending.rax, suspending.orig_rax, suspending.rdi, suspending.rsi = SYS.rt_sigsuspend, U64, address, 8
            tracing.set_options(tid, usual | tracing.PTRACE_O_TRACESYSGOOD | tracing.PTRACE_O_SUSPEND_SECCOMP)
            tracing.set_signal_mask(tid, U64)  # nothing comes on the way there
            tracing.set_registers(tid, suspending)
            tracing.run_to_call(tid)
            self._await(tid, (Cause.CALL,))
            tracing.set_signal_mask(tid, own)
            tracing.interrupt(tid)
            tracing.run(tid)
            self._await(tid, (Cause.TRAP, Cause.GROUP_STOP))
        tracing.set_registers(tid, registers)
        tracing.set_options(tid, usual)

    def _await(self, tid: int, causes: tuple[Cause, ...]) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for stop in tracing.poll([tid]):
                if stop.cause in causes:
                    return
                if stop.cause in (Cause.EXITED, Cause.KILLED):
                    self._stops.thread_gone(stop)
                    raise ProcessLookupError(errno.ESRCH, f"thread {tid} ended")
                tracing.run_to_call(tid)
            time.sleep(0.00005)  # no descriptor reports a ptrace stop
        raise TimeoutError(errno.ETIMEDOUT, f"thread {tid} does not stop")

    # -- a signal

    def _take(self, tid: int, wait: _Wait) -> bool:
        """Errors: ProcessLookupError; OSError; TimeoutError."""
        tracee = self._tracee
        thread = Thread(tid, tracee.pid)
        thread.capture()
        thread.instruction = thread.registers.rip - 2
        with self._scratch(thread.registers, struct.pack("<QQQ", wait.mask ^ U64, 0, 0) + bytes(SIGINFO_SIZE)) as address:
            thread.set_options(tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_SUSPEND_SECCOMP)
            number = thread.call(SYS.rt_sigtimedwait, address, address + 24, address + 8, 8)
            info = native.read_memory(tracee.pid, address + 24, SIGINFO_SIZE) or bytes(SIGINFO_SIZE)
        value = number if number > 0 else wait.value
        if value:
            thread.registers.rax, thread.registers.orig_rax = value & U64, U64
            self._interrupted.forget(tid)
            tracee.link.abandon(tracee.program_tid(tid))
        thread.park()
        thread.set_options(tracing.PTRACE_O_EXITKILL | tracee.link.trace_options)
        for kept in thread.take_in_hand():  # those that no mask keeps out
            self._signals.queue(tracing.signal_number(kept), self._signals.claim(kept), tid)

        def take(reported: bytes) -> None:
            where = thread.registers.rsi
            if where and native.functions().inject_write(tracee.pid, where, reported, len(reported)) != len(reported):
                thread.registers.rax = -errno.EFAULT & U64
                tracing.set_registers(tid, thread.registers)
            if tracee.trace is not None:
                tracee.trace.ended(tid, signed(thread.registers.rax))
            tracing.proceed(tid)

        if number <= 0:
            return False
        self._signals.take(tid, self._signals.claim(info), take)
        return True

    @contextmanager
    def _scratch(self, registers: Registers, data: bytes) -> Iterator[int]:
        """Memory of the guest below what its thread has on its stack, with `data`; what was there comes back. Errors: OSError."""
        pid = self._tracee.pid
        address = (registers.rsp - RED_ZONE - len(data)) & ~63
        saved = native.read_memory(pid, address, len(data))
        if saved is None or native.functions().inject_write(pid, address, data, len(data)) != len(data):
            raise OSError(errno.EFAULT, f"no room on the stack of {pid}")
        try:
            yield address
        finally:
            native.functions().inject_write(pid, address, saved, len(saved))


def _stands_in(registers: Registers, number: int) -> bool:
    return signed(registers.orig_rax) == number and signed(registers.rax) == ERESTARTNOHAND


__all__ = ["Waits"]
