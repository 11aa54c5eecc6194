"""What the threads of a guest block of the signals that it reads by signalfds: home's threads block the same, and there such signals wait.

A second seccomp filter, which only such guests have, stops a thread (SECCOMP_RET_TRACE) before a call that changes its mask or reports what
waits. If home's thread blocks something else then, this is reported to home, and the call is made once home has confirmed that it has
applied it:

    remote                                        deputy
      |  signalfd waits
      |--- WATCH (signals) ---------------------->|  the guest stands still for a moment, and what waits for it goes home
      | <-- QUIET (watch), THAW (watched) --------|  the call is made again, at home
      |  rt_sigprocmask, rt_sigreturn, rt_sigsuspend wait; rt_sigpending, to know what waits at home; rt_sigaction, which may drop it
      |--- MASK (what the thread blocks) -------->|  its own thread blocks it; what that lets in comes first
      | <-- MASKED (what waits at home) ----------|  the call is made
"""

from __future__ import annotations

import errno
import signal
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from ptrace import PtraceError

from engine.pour.arrival import install_watch
from engine.signals.signalfds import UNCATCHABLE
from kernel_helpers.calls import filter as call_filter
from kernel_helpers.calls.table import Class, row_of
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.syscalls import SYS, U64, Registers, signed
from kernel_helpers.process.tracing import PTRACE_O_TRACESECCOMP, Cause, Stop
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Tracee
from wire.control import Control, pack, unpack

if TYPE_CHECKING:
    from engine.context.context import Context
    from kernel_helpers.process.seizing import Frozen

_BLOCK, _UNBLOCK, _SETMASK = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK), int(signal.SIG_SETMASK)
_DFL, _IGN, _SIGNALS = 0, 1, 64
_SET = struct.Struct("<Q")
_FRAMES_MASK = 296
"""Where in a signal's frame, at which rt_sigreturn(2) finds the stack, the mask is: uc_sigmask of struct ucontext."""


class Masks:
    """Of one guest; threads are named by their ids as this process sees them. watched: signals that wait at home where they are blocked."""

    def __init__(self, tracee: Tracee, signals: GuestSignals) -> None:
        self._tracee = tracee
        self._signals = signals
        self.watched = 0
        self._reported: dict[int, int] = {}
        """what home's thread blocks of them"""
        self._unsure: set[int] = set()
        """threads that may be about to make a call that was reported to home, and what that lets in has not come: it is reported again"""
        self._waiting: dict[int, Stop] = {}
        """threads that stand before a call until home has answered"""
        self._is_filtered = False
        """threads may have the second filter"""
        self._is_whole = False
        """all have it"""

    # -- a new signalfd

    def ask(self, event: Event) -> bool:
        """Return whether the call that the guest's thread waits in makes a signalfd, or changes one; it is taken care of then."""
        tracee, host = self._tracee, self._tracee.host_tid(event.tid)
        if host is None or row_of(event.code).class_ is not Class.WATCH or not isinstance(tracee.link, AwayLink):
            return False
        if tracee.is_pausing:  # nothing more goes home now; the call is made again when it may
            tracing.interrupt(host)
            return tracee.link.answer(event.tid, error=syscalls.ERESTARTNOINTR)
        arguments = struct.unpack("<6Q", event.data)
        wanted = self._set_at(arguments[1], arguments[2]) or 0
        if wanted & ~self.watched:
            tracee.link.send(Control.WATCH, event.tid, pack(mask=wanted))
            return True
        try:
            return tracee.link.forward(event.tid, event.code, arguments)
        except OSError:
            return False

    def prepare(self, frozen: Frozen) -> list[list[int]]:
        """More is about to be watched. Returns what each thread (the program's id) blocks. Errors: OSError, FarhomeError."""
        if not isinstance(self._tracee.link, AwayLink):
            raise FarhomeError("the interceptor ptrace cannot follow what it blocks")
        if not self._is_whole:
            self.follow()  # some threads have the filter, should it fail
            install_watch(frozen)
            self._is_whole = True
        return [[self._tracee.program_tid(tid), thread.signal_mask] for tid, thread in frozen.threads.items()]

    def take(self, frozen: Frozen, watched: int) -> None:
        """Home has what waited of these signals, and blocks them as the guest does. Errors: OSError."""
        self._watch(watched)
        self._reported = {tid: thread.signal_mask & self.watched for tid, thread in frozen.threads.items()}
        with frozen.scratch(24 + native.SIGINFO_SIZE) as address:
            frozen.write(address, struct.pack("<QQQ", self.watched, 0, 0))
            for thread in frozen.threads.values():
                while thread.call(SYS.rt_sigtimedwait, address, address + 24, address + 8, 8) > 0:
                    self._signals.claim(frozen.read(address + 24, native.SIGINFO_SIZE))

    # -- who watches

    def without(self, context: Context) -> Context:
        """Return the context of the guest without the filter, which is none of the program's."""
        if not self._is_filtered:
            return context
        ours = call_filter.watching()
        own = [replace(thread, filters=tuple(one for one in thread.filters if one != ours)) for thread in context.threads]
        return replace(context, threads=tuple(own))

    def follow(self) -> None:
        """The guest has the filter, and has to run with the option for it."""
        self._is_filtered = True
        self._tracee.link.trace_options |= PTRACE_O_TRACESECCOMP

    def begin(self, watched: int, blocked: dict[int, int]) -> None:
        """The guest has come with that; its threads are named by the program's ids."""
        self._is_whole = True
        self._watch(watched)
        for tid, mask in blocked.items():
            host = self._tracee.host_tid(tid)
            if host is not None:
                self._reported[host] = mask & self.watched
                self._unsure.add(host)

    def inherit(self, parent: Masks, maker: int, tid: int) -> None:
        """A thread was born of another, here or of the guest that this one is born of."""
        if parent is not self and parent._is_filtered:
            self.follow()
            self._is_whole = parent._is_whole
            self._watch(parent.watched)
        if maker in parent._reported:
            self._reported[tid] = parent._reported[maker]

    def _watch(self, watched: int) -> None:
        self.watched = watched & U64 & ~UNCATCHABLE
        if isinstance(self._tracee.link, AwayLink):
            self._tracee.link.watch(self.watched)

    # -- calls

    def stopped(self, stop: Stop) -> bool:
        """Return whether a thread stands before such a call; it is taken care of then."""
        tid = stop.tid
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self._reported.pop(tid, None)
            self._waiting.pop(tid, None)
            self._unsure.discard(tid)
            return False
        if stop.cause is not Cause.OTHER or not self._is_filtered:
            return False
        try:
            registers = tracing.registers(tid)
            wanted = self._wanted(tid, registers)
            if wanted is None:
                tracing.proceed(tid)
            elif self._tracee.is_stopped:
                self.again(tid)
            else:
                self._reported[tid], self._waiting[tid] = wanted, stop
                self._unsure.discard(tid)
                dropped = registers.rdi if signed(registers.orig_rax) == SYS.rt_sigaction else 0
                self._tracee.link.send(Control.MASK, self._tracee.program_tid(tid), pack(mask=wanted, dropped=dropped))
        except (PtraceError, ProcessLookupError):
            pass  # it has been killed
        return True

    def masked(self, event: Event) -> None:
        """Home's thread blocks what was reported to it."""
        host = self._tracee.host_tid(event.tid)
        if host is None or self._waiting.pop(host, None) is None:
            return
        try:
            registers = tracing.registers(host)
            if signed(registers.orig_rax) == SYS.rt_sigpending:
                self._report_pending(host, registers, int(unpack(event.data)["pending"]))
            elif signed(registers.orig_rax) == SYS.rt_sigaction:
                self._go_on(host)
            else:
                self.again(host)  # with what has come in first
        except (PtraceError, ProcessLookupError):
            pass  # it has been killed

    def take_waiting(self) -> dict[int, Stop]:
        """Return those that stand before such a call, which is made again."""
        waiting, self._waiting = self._waiting, {}
        self._unsure |= set(waiting)  # signals that come while the guest stands still are held, and sent after it goes on
        return waiting

    def again(self, tid: int) -> None:
        """A thread that stands before such a call makes it again."""
        registers = tracing.registers(tid)
        registers.rax, registers.orig_rax = registers.orig_rax, U64
        registers.rip -= 2
        tracing.set_registers(tid, registers)
        self._go_on(tid)

    def _go_on(self, tid: int) -> None:
        if self._tracee.is_stopped:
            tracing.interrupt(tid)
        tracing.proceed(tid)

    def _wanted(self, tid: int, registers: Registers) -> int | None:
        """What home's thread shall block before the call is made; None: what it does. Errors: PtraceError, ProcessLookupError."""
        number, reported = signed(registers.orig_rax), self._reported.get(tid, 0)
        if number == SYS.rt_sigpending:
            return reported if registers.rsi <= _SET.size else None
        if number == SYS.rt_sigaction:
            return reported if self._drops(registers) else None
        if number == SYS.rt_sigprocmask:
            given = self._set_at(registers.rsi, registers.r10)
            if given is None:
                return None
            blocked, how = tracing.signal_mask(tid), signed(registers.rdi)
            mask = {_BLOCK: blocked | given, _UNBLOCK: blocked & ~given, _SETMASK: given}.get(how)
        elif number == SYS.rt_sigreturn:
            mask = self._set_at(registers.rsp + _FRAMES_MASK, _SET.size)
        else:
            mask = self._set_at(registers.rdi, registers.rsi)
        return None if mask is None or (mask & self.watched == reported and tid not in self._unsure) else mask & self.watched

    def _drops(self, registers: Registers) -> bool:
        """Whether signals that wait at home are dropped by an rt_sigaction(2), for they are ignored from then on."""
        number, handler = registers.rdi, native.read_memory(self._tracee.pid, registers.rsi, 8) if registers.rsi else None
        if handler is None or registers.r10 != _SET.size or not 0 < number <= _SIGNALS or not self.watched >> number - 1 & 1:
            return False
        return handler == _SET.pack(_IGN) or (handler == _SET.pack(_DFL) and number in tracing.IGNORED_BY_DEFAULT)

    def _set_at(self, address: int, size: int) -> int | None:
        """A set of signals in the guest's memory; None: it is none."""
        if size != _SET.size or not address:
            return None
        data = native.read_memory(self._tracee.pid, address, _SET.size)
        return None if data is None else int(_SET.unpack(data)[0]) & ~UNCATCHABLE

    def _report_pending(self, tid: int, registers: Registers, at_home: int) -> None:
        tracee = self._tracee
        state = tracing.signal_state(tracee.pid, tid)
        reported = _SET.pack((at_home & self.watched | state.pending | state.shared_pending) & state.blocked)[: registers.rsi]
        fails = native.functions().inject_write(tracee.pid, registers.rdi, reported, len(reported)) != len(reported)
        registers.rax, registers.orig_rax = -errno.EFAULT & U64 if fails else 0, U64
        tracing.set_registers(tid, registers)
        self._go_on(tid)


__all__ = ["Masks"]
