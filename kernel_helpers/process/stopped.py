"""A thread that its tracer has stopped: what it is, and the signals that came meanwhile."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from typing import Self

from kernel_helpers.process.injection.native import EVENT_STOP, SIGINFO_SIZE, RseqConfiguration, check, comes_again, functions, read_memory
from kernel_helpers.process.syscalls import Registers
from kernel_helpers.process.tracing import SI_TKILL, signal_code, signal_number

_EXTENDED_STATE_ROOM = 16384  # AMX makes it 11 kB
_SIGNALS_OF_OLD = 32
"""Of each signal below it one waits in a queue of the kernel's."""


class StoppedThread:
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
        self.companions: Sequence[Self] = ()  # all threads of the process, if the instruction is before a pause loop
        self.block_companions: Callable[[], None] | None = None  # at once, where they are many
        self.call_timeout = 60.0  # seconds for one injected call
        self.options = 0  # PTRACE_O_*
        self.is_in_call = False  # its last stop is the end of an injected call
        self._can_inject_signal = False  # which is a signal-delivery-stop
        self.is_blocked = False  # all signals are, for injected calls
        self._ignores_trap: bool | None = None  # SIGTRAP, which a single step would undo
        self._dispatches: bool | None = None  # see dispatches(), if it is known
        self.rseq_section: tuple[int, bytes] | None = None  # where, and the pointer that stood there
        self.stood_in_none = False  # it is known that none stood there

    @classmethod
    def seize(cls, tid: int, pid: int, options: int = 0, timeout: float = 5.0) -> Self:
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
    def adopt(cls, tid: int, pid: int, timeout: float = 5.0) -> Self:
        """A thread that is our tracee already (CLONE_PTRACE, PTRACE_O_TRACECLONE) and about to stop for the first
        time."""
        thread = cls(tid, pid)
        thread.wait_stopped(timeout)
        return thread

    def adopt_child(self, tid: int) -> Self:
        """The same for a process that this thread, by a call of ours, has just made: instruction and dispositions are its own."""
        child = self.adopt(tid, tid)
        child.instruction, child._ignores_trap = self.instruction, self._ignores_trap
        return child

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
                self._keep_signal()
            # Each stop may have cleared the trap that was asked for (signal.c, ptrace_stop). Signal 0 lets the thread go on inside
            # get_signal(): it meets the trap before any user instruction, and the registers still say which call it has to restart.
            check(native.inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
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

    def rseq(self) -> RseqConfiguration:
        configuration = RseqConfiguration()
        functions().inject_rseq(self.tid, ctypes.byref(configuration))
        return configuration

    def extended_state(self) -> bytes:
        """Return the whole xsave area (x87, SSE, AVX, ...)."""
        buffer = ctypes.create_string_buffer(_EXTENDED_STATE_ROOM)
        size = check(functions().inject_get_extended_state(self.tid, buffer, len(buffer)), f"extended state of {self.tid}")
        return buffer.raw[:size]

    def set_extended_state(self, data: bytes) -> None:
        check(functions().inject_set_extended_state(self.tid, data, len(data)), f"extended state of {self.tid}")

    def _read(self, address: int, size: int) -> bytes | None:
        return read_memory(self.pid, address, size)


def _place(info: bytes) -> tuple[int, bool]:
    """The signal, and whether its si_code says that it was sent to a thread."""
    return signal_number(info), signal_code(info) == SI_TKILL
