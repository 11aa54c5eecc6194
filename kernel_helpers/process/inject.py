"""Stopping threads and having them make system calls, by ptrace (inject.c).

All calls must come from the (Python) thread that seized: the kernel ties a tracee to one tracer *thread*.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Sequence

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common import library
from kernel_helpers.process import refuge
from kernel_helpers.process.syscalls import SYS, U64, Registers, carry_restart, is_ended_by_stop, signed
from kernel_helpers.process.tracing import SI_TKILL, is_void, signal_code, signal_number, signal_state

PTRACE_O_TRACESYSGOOD = 1
PTRACE_O_TRACEEXEC = 1 << 4
PTRACE_O_EXITKILL = 1 << 20
PTRACE_O_SUSPEND_SECCOMP = 1 << 21
EVENT_EXEC = 4
EVENT_STOP = 128
SIGINFO_SIZE = 128
_FAULTS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
_FAILED = 100000
_libc = ctypes.CDLL(None, use_errno=True)
_ALL_SIGNALS = U64
_TRAP, _STOP = 5, 19
_ALL_BUT_TRAP = U64 & ~(1 << _TRAP - 1)
_EXTENDED_STATE_ROOM = 16384  # AMX makes it 11 kB
_DEFERRED_MOST = 4  # as in inject.h
_RED_ZONE = 128
_SIGNALS_OF_OLD = 32
"""Of each signal below it one waits in a queue of the kernel's."""


def comes_again(info: bytes) -> bool:
    """Whether the signal is that of a fault (signal number, then si_code > 0: from the kernel): the thread's registers stand before
    the instruction, which faults again when it goes on. Such a signal is never kept or passed on."""
    number, _, code = struct.unpack_from("<iii", info)
    return number in _FAULTS and code > 0


class Deferred(ctypes.Structure):
    """What stopped a thread during injected calls and could not be blocked; `before`: how many of them came before the last call."""

    _fields_ = [("count", ctypes.c_int32), ("before", ctypes.c_int32), ("infos", ctypes.c_ubyte * SIGINFO_SIZE * _DEFERRED_MOST)]


INJECTED = 64
"""Bytes of struct injected."""
_CALLS = [struct.Struct(f"<2q{count}Q{8 * (6 - count)}x") for count in range(7)]
"""The same, by how many arguments there are."""


def packed(number: int, *arguments: int) -> bytes:
    """A call as struct injected."""
    try:
        return _CALLS[len(arguments)].pack(number, 0, *arguments)
    except struct.error:  # a negative one
        return _CALLS[len(arguments)].pack(number, 0, *[argument & U64 for argument in arguments])


def results_of(table: bytearray) -> list[int]:
    """What a row of such calls has given."""
    return memoryview(table).cast("q")[1 :: INJECTED // 8].tolist()


class RseqConfiguration(ctypes.Structure):
    """struct ptrace_rseq_configuration."""

    _fields_ = [
        ("pointer", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("signature", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


@functools.cache
def functions() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_wait", i, [i, ctypes.c_int64, pointer]),
        ("inject_seize", i, [i, long]),
        ("inject_interrupt", i, [i]),
        ("inject_listen", i, [i]),
        ("inject_continue", i, [i, long]),
        ("inject_step", i, [i]),
        ("inject_detach", i, [i, long]),
        ("inject_dispatches", i, [i]),
        ("inject_reach_signal_stop", i, [i, i, pointer]),
        ("inject_set_options", i, [i, long]),
        ("inject_get_registers", i, [i, pointer]),
        ("inject_set_registers", i, [i, pointer]),
        ("inject_get_extended_state", long, [i, pointer, long]),
        ("inject_set_extended_state", i, [i, pointer, long]),
        ("inject_get_signal_mask", i, [i, pointer]),
        ("inject_set_signal_mask", i, [i, u64]),
        ("inject_get_signal_info", i, [i, pointer]),
        ("inject_set_signal_info", i, [i, pointer]),
        ("inject_rseq", i, [i, pointer]),
        ("inject_call", long, [i, u64, i, pointer, ctypes.c_int64, pointer, long, u64, u64, u64, u64, u64, u64]),
        ("inject_batch", long, [i, u64, pointer, ctypes.c_int64, pointer, u64, pointer, long]),
        ("inject_read", long, [i, u64, pointer, long]),
        ("inject_write", long, [i, u64, pointer, long]),
        ("farhome_guest_memory_write", ctypes.c_int64, [i, ctypes.c_char_p, u64, u64]),
    )


def check(result: int, what: str) -> int:
    """The result, or OSError(errno, what) (ProcessLookupError, PermissionError, TimeoutError, ... by errno)."""
    if -4096 < result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    if result <= -_FAILED:
        number = -result - _FAILED
        raise OSError(number, f"injecting {what}: {os.strerror(number)}")
    return result


class Thread:
    """One ptrace-stopped thread.

    `tid` and `pid` as this process's pid namespace sees them. `registers` and `signal_mask` are those of the moment of
    the stop and what restore() writes back; both may be changed. `in_hand` are signals (siginfo) that came as
    signal-delivery-stops: they were taken off the kernel's queues, are kept here in the order in which they came, and
    given to the thread by resume() and detach(). The last `came_late` of them came when the last call had been made.
    `group_stop` is the stop signal when the thread was in a group stop (job control), else 0.
    """

    def __init__(self, tid: int, pid: int) -> None:
        self.tid = tid
        self.pid = pid
        self.registers = Registers()
        self.signal_mask = 0
        self.in_hand: list[bytes] = []
        self.came_late = 0
        self.group_stop = 0
        self.mask_in_force = 0  # of the call that it was taken out of, where that has one of its own and it is known
        self.instruction = 0
        self.companions: Sequence[Thread] = ()  # all threads of the process, if the instruction is before a refuge
        self.call_timeout = 60.0  # seconds for one injected call
        self.options = 0  # PTRACE_O_*
        self.is_in_call = False  # its last stop is the end of an injected call
        self._can_inject_signal = False  # which is a signal-delivery-stop
        self.is_blocked = False  # all signals are, for injected calls
        self._ignores_trap: bool | None = None  # SIGTRAP, which a single step would undo
        self._dispatches: bool | None = None  # see dispatches(), if it is known
        self.rseq_section: tuple[int, bytes] | None = None  # where, and the pointer that stood there
        self.stood_in_none = False  # it is known that none stood there

    # -- stopping

    @classmethod
    def seize(cls, tid: int, pid: int, options: int = 0, timeout: float = 5.0) -> Thread:
        """Seizes and stops one thread. Errors: see seize()."""
        thread = cls(tid, pid)
        thread.follow(options)
        thread.interrupt(timeout)
        return thread

    def follow(self, options: int) -> None:
        """Seizes the thread, which runs on. Errors: as seize()."""
        check(functions().inject_seize(self.tid, options), f"PTRACE_SEIZE of {self.tid}")
        self.options = options

    @classmethod
    def adopt(cls, tid: int, pid: int, timeout: float = 5.0) -> Thread:
        """A thread that is our tracee already (CLONE_PTRACE, PTRACE_O_TRACECLONE) and about to stop for the first
        time."""
        thread = cls(tid, pid)
        thread.wait_stopped(timeout)
        return thread

    def set_options(self, options: int) -> None:
        """PTRACE_SETOPTIONS: these and no others."""
        check(functions().inject_set_options(self.tid, options), f"PTRACE_SETOPTIONS of {self.tid}")
        self.options = options

    def interrupt(self, timeout: float = 5.0) -> None:
        """Stops the thread again after resume() and takes its state as of now."""
        check(functions().inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
        self.wait_stopped(timeout)

    def wait_stopped(self, timeout: float = 5.0) -> None:
        """Waits for the PTRACE_EVENT_STOP that SEIZE+INTERRUPT or an automatic attach brings; keeps a signal that
        comes first. Takes the thread's state."""
        native = functions()
        status = ctypes.c_int()
        for _ in range(64):
            check(native.inject_wait(self.tid, int(timeout * 1e6), ctypes.byref(status)), f"waiting for {self.tid}")
            value = status.value
            if value & 0xFF != 0x7F:
                raise ProcessLookupError(errno.ESRCH, f"thread {self.tid} ended")
            event, number = value >> 16, (value >> 8) & 0xFF
            if event == EVENT_STOP:
                self.group_stop = 0 if number == 5 else number
                break
            if not event:
                # Signal 0 lets the thread go on inside get_signal(): it meets the trap before any user instruction,
                # and the registers still say which call it has to restart.
                self._keep_signal()
            check(native.inject_continue(self.tid, 0), f"PTRACE_CONT of {self.tid}")
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"thread {self.tid} does not come to a stop")
        self.is_in_call = self._can_inject_signal = False
        self.capture()

    def _keep_signal(self) -> None:
        info = (ctypes.c_ubyte * SIGINFO_SIZE)()
        check(functions().inject_get_signal_info(self.tid, ctypes.byref(info)), f"PTRACE_GETSIGINFO of {self.tid}")
        if not comes_again(bytes(info)):
            self.keep(bytes(info))

    def keep(self, info: bytes) -> None:
        """Has a signal in hand, too. As the kernel does in its queues, of each one below 32 the first at the thread, and at the process."""
        if signal_number(info) >= _SIGNALS_OF_OLD or _place(info) not in map(_place, self.in_hand):
            self.in_hand.append(info)

    def take_in_hand(self) -> list[bytes]:
        """The caller gives them back to the thread."""
        taken, self.in_hand, self.came_late = self.in_hand, [], 0
        return taken

    def capture(self) -> None:
        """Takes registers and mask as of now."""
        native = functions()
        check(native.inject_get_registers(self.tid, ctypes.byref(self.registers)), f"registers of {self.tid}")
        mask = ctypes.c_uint64()
        check(native.inject_get_signal_mask(self.tid, ctypes.byref(mask)), f"signal mask of {self.tid}")
        self.signal_mask = mask.value
        self.is_blocked, self._ignores_trap, self._dispatches = False, None, None
        # An injected call moves the instruction pointer out of a restartable sequence, and the kernel then clears the
        # pointer to it. Kept and put back, so that the sequence is aborted properly when the thread goes on.
        self.rseq_section, self.stood_in_none = None, False
        rseq = self.rseq()
        if rseq.pointer:
            section = self._read(rseq.pointer + 8, 8)
            if section and any(section):
                self.rseq_section = (rseq.pointer + 8, section)

    def has_stopped(
        self, registers: Registers, mask: int, section: tuple[int, bytes] | None, stood_in_none: bool, dispatches: bool
    ) -> None:
        """Others have stopped it, as wait_stopped() does, and taken its state (many.py)."""
        self.registers, self.signal_mask, self.rseq_section = registers, mask, section
        self.is_in_call = self._can_inject_signal = self.is_blocked = False
        self._ignores_trap, self._dispatches, self.stood_in_none = None, dispatches, stood_in_none

    # -- state

    def rseq(self) -> RseqConfiguration:
        configuration = RseqConfiguration()
        functions().inject_rseq(self.tid, ctypes.byref(configuration))
        return configuration

    def extended_state(self) -> bytes:
        """The whole xsave area (x87, SSE, AVX, ...)."""
        buffer = ctypes.create_string_buffer(_EXTENDED_STATE_ROOM)
        size = check(functions().inject_get_extended_state(self.tid, buffer, len(buffer)), f"extended state of {self.tid}")
        return buffer.raw[:size]

    def set_extended_state(self, data: bytes) -> None:
        check(functions().inject_set_extended_state(self.tid, data, len(data)), f"extended state of {self.tid}")

    def _read(self, address: int, size: int) -> bytes | None:
        return read_memory(self.pid, address, size)

    # -- calls

    def block_signals(self) -> None:
        """Blocks all signals until restore(). The first injected call does so; with a refuge, in all threads: should we die, none of them
        is to go on alone."""
        if self.is_blocked:
            return
        if len(self.companions) > 3:
            from kernel_helpers.process import many  # which is made of threads as these

            many.block(self.companions)
        for thread in self.companions or (self,):
            thread._block()

    @property
    def has_refuge(self) -> bool:
        """Whether it waits in one if we die while it makes a call."""
        return bool(self.companions)

    @property
    def is_gentle(self) -> bool:
        """Whether its calls are not made by single steps (inject.c). Errors: ProcessLookupError."""
        if not self.has_refuge and self._ignores_trap is None:
            self._ignores_trap = bool(signal_state(self.pid, self.tid).ignored >> _TRAP - 1 & 1)
        return self.has_refuge or bool(self._ignores_trap)

    def dispatches(self) -> bool:
        """Whether its system calls are its own affair (PR_SET_SYSCALL_USER_DISPATCH), so that none can be made in it."""
        return bool(functions().inject_dispatches(self.tid)) if self._dispatches is None else self._dispatches

    def _block(self) -> None:
        if not self.is_blocked:
            if self.has_refuge:
                self._take_refuge()
            mask = _ALL_SIGNALS if self.is_gentle else _ALL_BUT_TRAP
            check(functions().inject_set_signal_mask(self.tid, mask), f"signal mask of {self.tid}")
            self.is_blocked = True

    def _take_refuge(self) -> None:
        registers = self.registers.copy()
        registers.rip, registers.rax, registers.orig_rax = self.instruction + refuge.AFTER_CALL, 0, U64
        check(functions().inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")

    def call(self, number: int, *args: int) -> int:
        """Makes one system call in the thread; its raw result (negative errno on failure). All signals stay blocked.

        Errors: OSError when the injection itself fails (the thread died: ProcessLookupError; `call_timeout` passed:
        TimeoutError, the call having been interrupted).
        """
        self.block_signals()
        acts_on_trap = number == SYS.rt_sigaction and args[:1] == (_TRAP,) and any(args[1:2]) and not self.has_refuge
        if acts_on_trap:
            self._ignores_trap = True  # from within the call on, perhaps: its own step would undo it
        deferred = Deferred()
        padded = [argument & U64 for argument in args] + [0] * (6 - len(args))
        result: int = functions().inject_call(
            self.tid, self.instruction, self.is_gentle, ctypes.byref(self.registers), int(self.call_timeout * 1e6),
            ctypes.byref(deferred), number, *padded,
        )  # fmt: skip
        self._keep_deferred(deferred)
        if result <= -_FAILED:
            check(result, f"{NAMES.get(number, number)} in {self.tid}")
        self._has_stepped()
        if acts_on_trap:
            self._ignores_trap = None
            self.is_blocked = False  # with another mask
        return result

    def _has_stepped(self) -> None:
        self.is_in_call, self._can_inject_signal = True, not self.is_gentle

    def calls(self, wanted: Sequence[tuple[int, ...]], room: int) -> list[int]:
        """call() for each of them (number, then arguments); with a refuge without a stop in between. room: an address at which 64 bytes
        for each can be used. Errors: as call()."""
        if not self.has_refuge:
            return [self.call(*one) for one in wanted]
        return self.batch(wanted, self.instruction - refuge.ONE, room)

    def batch(self, wanted: Sequence[tuple[int, ...]], code: int, room: int) -> list[int]:
        """The same by the code of a refuge that is at that address, whether or not the thread would wait there if we died."""
        self.block_signals()
        deferred = Deferred()
        table = bytearray(b"".join([packed(*one) for one in wanted]))
        result = functions().inject_batch(
            self.tid, code, ctypes.byref(self.registers), int(self.call_timeout * 1e6), ctypes.byref(deferred), room,
            (ctypes.c_char * len(table)).from_buffer(table), len(wanted),
        )  # fmt: skip
        self._keep_deferred(deferred)
        if result <= -_FAILED:
            check(result, f"calls in {self.tid}")
        self.is_in_call = self._can_inject_signal = False
        return results_of(table)

    def has_called(self, deferred: Deferred) -> None:
        """Others have made calls in it, after block_signals(), as call() does."""
        self._keep_deferred(deferred)
        self._has_stepped()

    def has_called_many(self, infos: Sequence[bytes]) -> None:
        """Others have made calls in it, together with other threads (many.py): the signals that have come meanwhile. It stands in a stop
        that is none of a call, and, without a refuge, its mask may have to be set again."""
        for info in infos:
            self.keep(info)
        self.came_late = 0
        self.is_in_call = self._can_inject_signal = False
        self.is_blocked = self.has_refuge

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

        Should we die meanwhile, a thread that has a refuge is there until all else is as it was.
        """
        if len(self.in_hand) > 1:
            self._queue_in_hand()
        if self.has_refuge:
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
        refuge, one outside of get_signal(), where no call is made again."""
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


def _place(info: bytes) -> tuple[int, bool]:
    """The signal, and whether it is told by its si_code to have been sent to a thread."""
    return signal_number(info), signal_code(info) == SI_TKILL


def _inner_ids(pid: int, tid: int) -> tuple[int, int]:
    """What the program knows its process and one of its threads by. Errors: OSError."""
    with open(f"/proc/{pid}/task/{tid}/status", "rb") as status:
        told = {name: value.split() for name, _, value in (line.partition(b":") for line in status) if name in (b"NStgid", b"NSpid")}
    return int(told[b"NStgid"][-1]), int(told[b"NSpid"][-1])


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Memory of another process, None if not all of it can be read."""
    buffer = ctypes.create_string_buffer(size)
    return buffer.raw if functions().inject_read(pid, address & U64, buffer, size) == size else None
