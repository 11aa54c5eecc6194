"""Has stopped threads make system calls, by ptrace, and lets them go on as they were.

All calls must come from the (Python) thread that seized: the kernel ties a tracee to one tracer *thread*.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.process import pause_loop
from kernel_helpers.process.injection.native import EVENT_EXEC, FAILED, SIGINFO_SIZE, Deferred, check, functions, packed, results_of
from kernel_helpers.process.stopped import StoppedThread
from kernel_helpers.process.syscalls import SYS, U64, carry_restart, is_ended_by_stop, signed
from kernel_helpers.process.tracing import SI_TKILL, is_void, signal_code, signal_number, signal_state

_libc = ctypes.CDLL(None, use_errno=True)
_ALL_SIGNALS = U64
_TRAP, _STOP = 5, 19
_ALL_BUT_TRAP = U64 & ~(1 << _TRAP - 1)
_RED_ZONE = 128


class Thread(StoppedThread):
    """A thread in which calls are made while it stands still; to let it go, what they changed is put back."""

    # -- calls

    def block_signals(self) -> None:
        """Blocks all signals until restore(). The first injected call does so; with a pause loop, in all threads: should we die, none of
        them is to go on alone."""
        if self.is_blocked:
            return
        if self.block_companions is not None:
            self.block_companions()
        for thread in self.companions or (self,):
            thread._block()

    @property
    def has_pause_loop(self) -> bool:
        """Whether it waits in one if we die while it makes a call."""
        return bool(self.companions)

    @property
    def is_gentle(self) -> bool:
        """Whether its calls are not made by single steps (injection/call.c). Errors: ProcessLookupError."""
        if not self.has_pause_loop and self._ignores_trap is None:
            self._ignores_trap = bool(signal_state(self.pid, self.tid).ignored >> _TRAP - 1 & 1)
        return self.has_pause_loop or bool(self._ignores_trap)

    def dispatches(self) -> bool:
        """Return whether its system calls are its own affair (PR_SET_SYSCALL_USER_DISPATCH), so that none can be made in it."""
        return bool(functions().inject_dispatches(self.tid)) if self._dispatches is None else self._dispatches

    def _block(self) -> None:
        if not self.is_blocked:
            if self.has_pause_loop:
                self._enter_pause_loop()
            mask = _ALL_SIGNALS if self.is_gentle else _ALL_BUT_TRAP
            check(functions().inject_set_signal_mask(self.tid, mask), f"signal mask of {self.tid}")
            self.is_blocked = True

    def _enter_pause_loop(self) -> None:
        registers = self.registers.copy()
        registers.rip, registers.rax, registers.orig_rax = self.instruction + pause_loop.AFTER_CALL, 0, U64
        check(functions().inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")

    def call(self, number: int, *args: int) -> int:
        """Makes one system call in the thread; its raw result (negative errno on failure). All signals stay blocked.

        Errors: OSError when the injection itself fails (the thread died: ProcessLookupError; `call_timeout` passed:
        TimeoutError, the call having been interrupted).
        """
        self.block_signals()
        acts_on_trap = number == SYS.rt_sigaction and args[:1] == (_TRAP,) and any(args[1:2]) and not self.has_pause_loop
        if acts_on_trap:
            self._ignores_trap = True  # from within the call on, perhaps: its own step would undo it
        deferred = Deferred()
        padded = [argument & U64 for argument in args] + [0] * (6 - len(args))
        result: int = functions().inject_call(
            self.tid, self.instruction, self.is_gentle, ctypes.byref(self.registers), int(self.call_timeout * 1e6),
            ctypes.byref(deferred), number, *padded,
        )  # fmt: skip
        self._keep_deferred(deferred)
        if result <= -FAILED:
            check(result, f"{NAMES.get(number, number)} in {self.tid}")
        self._has_stepped()
        if acts_on_trap:
            self._ignores_trap = None
            self.is_blocked = False  # with another mask
        return result

    def _has_stepped(self) -> None:
        self.is_in_call, self._can_inject_signal = True, not self.is_gentle

    def calls(self, wanted: Sequence[tuple[int, ...]], room: int) -> list[int]:
        """call() for each of them (number, then arguments); with a pause loop without a stop in between. room: an address at which 64 bytes
        for each can be used. Errors: as call()."""
        if not self.has_pause_loop:
            return [self.call(*one) for one in wanted]
        return self.batch(wanted, self.instruction - pause_loop.ONE, room)

    def batch(self, wanted: Sequence[tuple[int, ...]], code: int, room: int) -> list[int]:
        """Make the same calls by the code of a pause loop that is at that address, whether or not the thread would wait there if we
        died."""
        self.block_signals()
        deferred = Deferred()
        table = bytearray(b"".join([packed(*one) for one in wanted]))
        result = functions().inject_batch(
            self.tid, code, ctypes.byref(self.registers), int(self.call_timeout * 1e6), ctypes.byref(deferred), room,
            (ctypes.c_char * len(table)).from_buffer(table), len(wanted),
        )  # fmt: skip
        self._keep_deferred(deferred)
        if result <= -FAILED:
            check(result, f"calls in {self.tid}")
        self.is_in_call = self._can_inject_signal = False
        return results_of(table)

    def has_called(self, deferred: Deferred) -> None:
        """Others have made calls in it, after block_signals(), as call() does."""
        self._keep_deferred(deferred)
        self._has_stepped()

    def has_called_many(self, infos: Sequence[bytes]) -> None:
        """Others have made calls in it, together with other threads (many.py): the signals that have come meanwhile. It stands in a stop
        that is none of a call, and, without a pause loop, its mask may have to be set again."""
        for info in infos:
            self.keep(info)
        self.came_late = 0
        self.is_in_call = self._can_inject_signal = False
        self.is_blocked = self.has_pause_loop

    def has_restored(self) -> None:
        """Others have done what restore() does."""
        self.is_blocked = False

    def _keep_deferred(self, deferred: Deferred) -> None:
        infos = list(map(bytes, deferred.infos[: deferred.count]))
        for info in infos[: deferred.before]:
            self.keep(info)
        early = len(self.in_hand)
        for info in infos[deferred.before :]:
            self.keep(info)
        self.came_late = len(self.in_hand) - early

    def execute(self, path: int, arguments: int, environment: int) -> None:
        """Makes execve(2) in a process of one thread, which has PTRACE_O_TRACEEXEC; the three are addresses in it. It stands at the first
        instruction of its new program then. Errors: OSError: it has its old one, or (ProcessLookupError) has ended."""
        self.block_signals()
        native, status = functions(), ctypes.c_int()
        registers = self.registers.copy()
        registers.rip, registers.rax, registers.orig_rax = self.instruction, SYS.execve, U64
        registers.rdi, registers.rsi, registers.rdx = path, arguments, environment
        check(native.inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")
        for _ in range(64):
            check(native.inject_step(self.tid), f"execve in {self.tid}")
            check(native.inject_wait(self.tid, int(self.call_timeout * 1e6), ctypes.byref(status)), f"execve in {self.tid}")
            if status.value & 0xFF != 0x7F:
                raise ProcessLookupError(errno.ESRCH, f"process {self.pid} ended in execve")
            if status.value >> 16 == EVENT_EXEC:
                break
            check(native.inject_get_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")
            if not status.value >> 16 and registers.rip == self.instruction + 2:
                check(signed(registers.rax), f"execve in {self.pid}")
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"process {self.pid} does not come to execve")
        # The event is inside of the call: on to user mode, where the trap of the step is met first, and forgotten.
        check(native.inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
        check(native.inject_continue(self.tid, 0), f"PTRACE_CONT of {self.tid}")
        self.wait_stopped()
        self.take_in_hand()

    # -- letting go

    def restore(self) -> None:
        """Writes registers and mask back; the thread stays stopped. A call that this stop interrupted with a restart
        code is restarted by the kernel, and so is one that it ended with EINTR, unless a handler runs.

        Should we die meanwhile, a thread that has a pause loop is there until all else is as it was.
        """
        if len(self.in_hand) > 1:
            self._queue_in_hand()
        if self.has_pause_loop:
            self.leave_call()
            self._write_mask()
            self._write_section()
            self._write_registers()
        else:
            self._write_back()

    def _write_back(self) -> None:
        self._write_registers()
        self._write_section()
        self._write_mask()

    def _write_registers(self) -> None:
        registers = self.registers
        if is_ended_by_stop(registers):
            registers = registers.copy()
            carry_restart(registers)
        check(functions().inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")

    def _write_section(self) -> None:
        if self.rseq_section:
            functions().inject_write(self.pid, self.rseq_section[0], self.rseq_section[1], 8)

    def _write_mask(self) -> None:
        check(functions().inject_set_signal_mask(self.tid, self.signal_mask), f"signal mask of {self.tid}")
        self.is_blocked = False

    def park(self) -> None:
        """restore(), and leaves the thread in a stop out of which it goes on as if never traced, should we die."""
        self.restore()
        self.leave_call()

    def leave_call(self, timeout: float = 5.0) -> None:
        """Out of the stop in which an injected call ends: the delivery of a SIGTRAP, which would kill the thread if we died, or, with a
        pause loop, one outside of get_signal(), where no call is made again."""
        if not self.is_in_call:
            return
        native = functions()
        # With a trap waiting for it the thread goes no further than get_signal(), which looks for traps before signals.
        check(native.inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
        check(native.inject_continue(self.tid, 0), f"PTRACE_CONT of {self.tid}")
        status = ctypes.c_int()
        check(native.inject_wait(self.tid, int(timeout * 1e6), ctypes.byref(status)), f"parking {self.tid}")
        if status.value & 0xFF != 0x7F:
            raise ProcessLookupError(errno.ESRCH, f"thread {self.tid} ended")
        self.is_in_call = self._can_inject_signal = False

    def _queue_in_hand(self) -> None:
        """Leaves at most a SIGSTOP in hand, which would come back at once. The thread queues the others to itself, for only so may they
        bear any siginfo, in calls that leave SIGTRAP blocked; its companions have perhaps been restored."""
        self.leave_call()
        taken = self.take_in_hand()
        self.is_blocked = self.is_blocked and self.is_gentle
        companions, self.companions, was_ignored, self._ignores_trap = self.companions, (), self._ignores_trap, True
        pid, tid = _inner_ids(self.pid, self.tid)
        address = (self.registers.rsp - _RED_ZONE - SIGINFO_SIZE) & ~63
        saved = self._read(address, SIGINFO_SIZE)
        for info in taken:
            if signal_number(info) == _STOP:
                continue
            result = -errno.EFAULT
            if saved is not None and functions().inject_write(self.pid, address, info, len(info)) == len(info):
                if signal_code(info) == SI_TKILL:
                    result = self.call(SYS.rt_tgsigqueueinfo, pid, tid, signal_number(info), address)
                else:  # to the process, as which it has to call itself
                    result = self.call(SYS.rt_sigqueueinfo, tid, signal_number(info), address)
            if result < 0:  # without its siginfo rather than not at all
                _libc.syscall(SYS.tgkill, self.pid, self.tid, signal_number(info))
        if saved is not None:
            functions().inject_write(self.pid, address, saved, SIGINFO_SIZE)
        self.leave_call()
        self.companions, self._ignores_trap = companions, was_ignored
        self.in_hand = [info for info in taken if signal_number(info) == _STOP][:1]  # one is as good as two

    def _prepare_signal(self, signal: int) -> int:
        waiting = self.take_in_hand()
        info = waiting[0] if waiting and not signal else b""
        signal = signal or (signal_number(info) if info else 0)
        if signal == _STOP and not self._can_inject_signal:  # a stop has no siginfo that a program reads
            if not is_void(signal, self.pid, self.tid):
                _libc.syscall(SYS.tgkill, self.pid, self.tid, signal)
            return 0
        if signal and not self._can_inject_signal:
            # A signal can only be given at a signal-delivery-stop.
            deferred = Deferred()
            check(functions().inject_reach_signal_stop(self.pid, self.tid, ctypes.byref(deferred)), f"a stop of {self.tid} for a signal")
            for other in map(bytes, deferred.infos[: deferred.count]):
                if not is_void(signal_number(other), self.pid, self.tid):
                    _libc.syscall(SYS.tgkill, self.pid, self.tid, signal_number(other))  # it waited itself
            self._write_back()
        if is_void(signal, self.pid, self.tid):
            signal = 0  # what comes from now on the kernel sees to: this is the stop that it is given at
        if signal and info:
            functions().inject_set_signal_info(self.tid, info)
        return signal

    def resume(self, signal: int = 0) -> None:
        """PTRACE_CONT with `signal`, else with the pending one. Call restore() first."""
        signal = self._prepare_signal(signal)
        check(functions().inject_continue(self.tid, signal), f"PTRACE_CONT of {self.tid}")

    def detach(self, signal: int = 0) -> None:
        """PTRACE_DETACH with `signal`, else with the pending one. Call restore() first."""
        signal = self._prepare_signal(signal)
        check(functions().inject_detach(self.tid, signal), f"PTRACE_DETACH of {self.tid}")


def _inner_ids(pid: int, tid: int) -> tuple[int, int]:
    """What the program knows its process and one of its threads by. Errors: OSError."""
    with open(f"/proc/{pid}/task/{tid}/status", "rb") as status:
        reported = {name: value.split() for name, _, value in (line.partition(b":") for line in status) if name in (b"NStgid", b"NSpid")}
    return int(reported[b"NStgid"][-1]), int(reported[b"NSpid"][-1])
