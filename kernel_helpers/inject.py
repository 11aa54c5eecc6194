"""Freezing a process and running system calls in it, by ptrace.

All calls must come from the (Python) thread that seized: the kernel ties a tracee to one tracer *thread*.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kernel_helpers import library, refuge
from kernel_helpers.errors import MoveRefused
from kernel_helpers.journal import Journal, Signals
from kernel_helpers.numbers import NAMES, NUMBERS

U64 = (1 << 64) - 1
PTRACE_O_TRACESYSGOOD = 1
PTRACE_O_TRACEEXEC = 1 << 4
PTRACE_O_EXITKILL = 1 << 20
PTRACE_O_SUSPEND_SECCOMP = 1 << 21
EVENT_EXEC = 4
EVENT_STOP = 128
SIGINFO_SIZE = 128
_FAULTS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV
RED_ZONE = 128
_FAILED = 100000
_ALL_SIGNALS = U64
_WALL = 0x40000000
_EXTENDED_STATE_ROOM = 16384  # AMX makes it 11 kB

ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK = -512, -513, -514, -516
"""What a call that is not over gives to its kernel, and never to the program (linux/errno.h)."""
RESTART_CODES = (ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK)


class _Numbers(dict[str, int]):
    """System-call numbers: SYS["mmap"] or SYS.mmap."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


SYS = _Numbers(NUMBERS)

# Calls that a ptrace stop ends with EINTR, restart or not (signal(7), "interrupted even with SA_RESTART", less those
# that the kernel restarts when no handler runs).
_INTERRUPTED_BY_STOP = frozenset(
    SYS[name]
    for name in (
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "rt_sigtimedwait", "semop", "semtimedop", "msgsnd", "msgrcv",
        "io_getevents", "io_pgetevents",
    )
)  # fmt: skip


class Registers(ctypes.Structure):
    """struct user_regs_struct: every field an unsigned 64-bit number; signed() for results."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
            "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
        )
    ]

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registers) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


def signed(value: int) -> int:
    """A register's 64 bits as a signed number."""
    value &= U64
    return value - (1 << 64) if value >> 63 else value


def comes_again(info: bytes) -> bool:
    """Whether the signal is that of a fault (signal number, then si_code > 0: from the kernel): the thread's registers stand before
    the instruction, which faults again when it goes on. Such a signal is never kept or passed on."""
    number, _, code = struct.unpack_from("<iii", info)
    return number in _FAULTS and code > 0


def normalise_restart(registers: Registers) -> int:
    """Turns, in place, the registers of an interrupted call into plain user mode at its `syscall` instruction, so that
    the call is simply made (again) wherever they are loaded.

    Returns the restart code that was found (-512 .. -516, or -EINTR for the calls that a ptrace stop ends with EINTR),
    or 0. A relative FUTEX_WAIT (-516: its remaining time lives in the kernel) becomes a spurious wake-up with result 0,
    which futex(2) allows and every user of it has to expect; being waited for anew it would wait its whole time again.
    """
    code = signed(registers.rax)
    number = signed(registers.orig_rax)
    if number < 0:
        return 0
    found = 0
    if code == ERESTART_RESTARTBLOCK and number == SYS.futex:
        registers.rax = 0
        found = code
    elif code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP):
        registers.rax = registers.orig_rax
        registers.rip -= 2
        found = code
    registers.orig_rax = U64
    return found


def carry_restart(registers: Registers) -> None:
    """Turns, in place, the registers of an interrupted call into a form in which any kernel decides, as the one that interrupted it
    would have: with a signal's handler to run the call ends with EINTR (or is made again, by SA_RESTART), without one it is made
    again. They have to be loaded at a stop in get_signal(), which every ptrace stop but those of a call is.

    What only the kernel that interrupted it could go on with (-516, and EINTR by the mere stop) is carried as ERESTARTNOHAND.
    """
    code, number = signed(registers.rax), signed(registers.orig_rax)
    if number >= 0 and code in RESTART_CODES[:3]:
        return
    if number >= 0 and number != SYS.futex and (code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP)):
        registers.rax = ERESTARTNOHAND & U64
        return
    normalise_restart(registers)


class Deferred(ctypes.Structure):
    """What stopped a thread during an injected call and could not be blocked."""

    _fields_ = [("signal", ctypes.c_int32), ("pad", ctypes.c_int32), ("info", ctypes.c_ubyte * SIGINFO_SIZE)]


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
def _library() -> ctypes.CDLL:
    i, long, u64, pointer = ctypes.c_int, ctypes.c_long, ctypes.c_uint64, ctypes.c_void_p
    return library.functions(
        ("inject_wait", i, [i, ctypes.c_int64, pointer]),
        ("inject_seize", i, [i, long]),
        ("inject_interrupt", i, [i]),
        ("inject_listen", i, [i]),
        ("inject_continue", i, [i, long]),
        ("inject_step", i, [i]),
        ("inject_detach", i, [i, long]),
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
    the stop and what restore() writes back; both may be changed. `pending_signal` (with its siginfo, `pending_info`)
    came as a signal-delivery-stop: it was taken off the kernel's queue, is kept here, and injected by resume() and
    detach().
    `group_stop` is the stop signal when the thread was in a group stop (job control), else 0.
    """

    def __init__(self, tid: int, pid: int) -> None:
        self.tid = tid
        self.pid = pid
        self.registers = Registers()
        self.signal_mask = 0
        self.pending_signal = 0
        self.pending_info = b""
        self.group_stop = 0
        self.instruction = 0
        self.companions: Sequence[Thread] = ()  # all threads of the process, if the instruction is before a refuge
        self.call_timeout = 60.0  # seconds for one injected call
        self.options = 0  # PTRACE_O_*
        self._is_in_call = False  # its last stop is the end of an injected call
        self._can_inject_signal = False  # which is a signal-delivery-stop
        self._blocked = False  # all signals are, for injected calls
        self.rseq_section: tuple[int, bytes] | None = None  # where, and the pointer that stood there

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
        check(_library().inject_seize(self.tid, options), f"PTRACE_SEIZE of {self.tid}")
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
        check(_library().inject_set_options(self.tid, options), f"PTRACE_SETOPTIONS of {self.tid}")
        self.options = options

    def interrupt(self, timeout: float = 5.0) -> None:
        """Stops the thread again after resume() and takes its state as of now."""
        check(_library().inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
        self.wait_stopped(timeout)

    def wait_stopped(self, timeout: float = 5.0) -> None:
        """Waits for the PTRACE_EVENT_STOP that SEIZE+INTERRUPT or an automatic attach brings; keeps a signal that
        comes first. Takes the thread's state."""
        native = _library()
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
                self._keep_signal(number)
            check(native.inject_continue(self.tid, 0), f"PTRACE_CONT of {self.tid}")
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"thread {self.tid} does not come to a stop")
        self._is_in_call = self._can_inject_signal = False
        self.capture()

    def _keep_signal(self, number: int) -> None:
        info = (ctypes.c_ubyte * SIGINFO_SIZE)()
        check(_library().inject_get_signal_info(self.tid, ctypes.byref(info)), f"PTRACE_GETSIGINFO of {self.tid}")
        if not comes_again(bytes(info)):
            self.pending_signal, self.pending_info = number, bytes(info)

    def capture(self) -> None:
        """Takes registers and mask as of now."""
        native = _library()
        check(native.inject_get_registers(self.tid, ctypes.byref(self.registers)), f"registers of {self.tid}")
        mask = ctypes.c_uint64()
        check(native.inject_get_signal_mask(self.tid, ctypes.byref(mask)), f"signal mask of {self.tid}")
        self.signal_mask = mask.value
        self._blocked = False
        # An injected call moves the instruction pointer out of a restartable sequence, and the kernel then clears the
        # pointer to it. Kept and put back, so that the sequence is aborted properly when the thread goes on.
        self.rseq_section = None
        rseq = self.rseq()
        if rseq.pointer:
            section = self._read(rseq.pointer + 8, 8)
            if section and any(section):
                self.rseq_section = (rseq.pointer + 8, section)

    # -- state

    def rseq(self) -> RseqConfiguration:
        configuration = RseqConfiguration()
        _library().inject_rseq(self.tid, ctypes.byref(configuration))
        return configuration

    def extended_state(self) -> bytes:
        """The whole xsave area (x87, SSE, AVX, ...)."""
        buffer = ctypes.create_string_buffer(_EXTENDED_STATE_ROOM)
        size = check(
            _library().inject_get_extended_state(self.tid, buffer, len(buffer)), f"extended state of {self.tid}"
        )
        return buffer.raw[:size]

    def set_extended_state(self, data: bytes) -> None:
        check(_library().inject_set_extended_state(self.tid, data, len(data)), f"extended state of {self.tid}")

    def _read(self, address: int, size: int) -> bytes | None:
        return read_memory(self.pid, address, size)

    # -- calls

    def block_signals(self) -> None:
        """Blocks all signals until restore(). The first injected call does so; with a refuge, in all threads: should we die, none of them
        is to go on alone."""
        if not self._blocked:
            for thread in self.companions or (self,):
                thread._block()

    @property
    def has_refuge(self) -> bool:
        """Whether it waits in one if we die while it makes a call."""
        return bool(self.companions)

    def _block(self) -> None:
        if not self._blocked:
            if self.has_refuge:
                self._take_refuge()
            check(_library().inject_set_signal_mask(self.tid, _ALL_SIGNALS), f"signal mask of {self.tid}")
            self._blocked = True

    def _take_refuge(self) -> None:
        registers = self.registers.copy()
        registers.rip, registers.rax, registers.orig_rax = self.instruction + refuge.AFTER_CALL, 0, U64
        check(_library().inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")

    def call(self, number: int, *args: int) -> int:
        """Makes one system call in the thread; its raw result (negative errno on failure). All signals stay blocked.

        Errors: OSError when the injection itself fails (the thread died: ProcessLookupError; `call_timeout` passed:
        TimeoutError, the call having been interrupted).
        """
        self.block_signals()
        deferred = Deferred()
        padded = [argument & U64 for argument in args] + [0] * (6 - len(args))
        result: int = _library().inject_call(
            self.tid, self.instruction, self.has_refuge, ctypes.byref(self.registers), int(self.call_timeout * 1e6),
            ctypes.byref(deferred), number, *padded,
        )  # fmt: skip
        self._keep_deferred(deferred)
        if result <= -_FAILED:
            check(result, f"{NAMES.get(number, number)} in {self.tid}")
        self._has_stepped()
        return result

    def _has_stepped(self) -> None:
        self._is_in_call, self._can_inject_signal = True, not self.has_refuge

    def has_called(self, deferred: Deferred) -> None:
        """Others have made calls in it, after block_signals(), as call() does."""
        self._keep_deferred(deferred)
        self._has_stepped()

    def _keep_deferred(self, deferred: Deferred) -> None:
        if deferred.signal and not self.pending_signal:
            self.pending_signal, self.pending_info = deferred.signal, bytes(deferred.info)

    def execute(self, path: int, arguments: int, environment: int) -> None:
        """Makes execve(2) in a process of one thread, which has PTRACE_O_TRACEEXEC; the three are addresses in it. It stands at the first
        instruction of its new program then. Errors: OSError: it has its old one, or (ProcessLookupError) has ended."""
        self.block_signals()
        native, status = _library(), ctypes.c_int()
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
        self.pending_signal, self.pending_info = 0, b""

    # -- letting go

    def restore(self) -> None:
        """Writes registers and mask back; the thread stays stopped. A call that this stop interrupted with a restart
        code is restarted by the kernel; one that it ended with EINTR is rewound here.

        Should we die meanwhile, a thread that has a refuge is there until all else is as it was.
        """
        if self.has_refuge:
            self._leave_call()
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
        if signed(registers.rax) == -errno.EINTR and signed(registers.orig_rax) in _INTERRUPTED_BY_STOP:
            registers = registers.copy()
            normalise_restart(registers)
        check(_library().inject_set_registers(self.tid, ctypes.byref(registers)), f"registers of {self.tid}")

    def _write_section(self) -> None:
        if self.rseq_section:
            _library().inject_write(self.pid, self.rseq_section[0], self.rseq_section[1], 8)

    def _write_mask(self) -> None:
        check(_library().inject_set_signal_mask(self.tid, self.signal_mask), f"signal mask of {self.tid}")
        self._blocked = False

    def park(self) -> None:
        """restore(), and leaves the thread in a stop out of which it goes on as if never traced, should we die."""
        self.restore()
        self._leave_call()

    def _leave_call(self, timeout: float = 5.0) -> None:
        """Out of the stop in which an injected call ends: the delivery of a SIGTRAP, which would kill the thread if we died, or, with a
        refuge, one outside of get_signal(), where no call is made again."""
        if not self._is_in_call:
            return
        native = _library()
        # With a trap waiting for it the thread goes no further than get_signal(), which looks for traps before signals.
        check(native.inject_interrupt(self.tid), f"PTRACE_INTERRUPT of {self.tid}")
        check(native.inject_continue(self.tid, 0), f"PTRACE_CONT of {self.tid}")
        status = ctypes.c_int()
        check(native.inject_wait(self.tid, int(timeout * 1e6), ctypes.byref(status)), f"parking {self.tid}")
        if status.value & 0xFF != 0x7F:
            raise ProcessLookupError(errno.ESRCH, f"thread {self.tid} ended")
        self._is_in_call = self._can_inject_signal = False

    def _prepare_signal(self, signal: int) -> int:
        signal = signal or self.pending_signal
        if signal and not self._can_inject_signal:
            # A signal can only be given at a signal-delivery-stop; the step of an injected call ends in one.
            self.companions = ()
            self.call(SYS.gettid)
            self._write_back()
        if signal and signal == self.pending_signal:
            _library().inject_set_signal_info(self.tid, self.pending_info)
        self.pending_signal, self.pending_info = 0, b""
        return signal

    def resume(self, signal: int = 0) -> None:
        """PTRACE_CONT with `signal`, else with the pending one. Call restore() first."""
        signal = self._prepare_signal(signal)
        check(_library().inject_continue(self.tid, signal), f"PTRACE_CONT of {self.tid}")

    def detach(self, signal: int = 0) -> None:
        """PTRACE_DETACH with `signal`, else with the pending one. Call restore() first."""
        signal = self._prepare_signal(signal)
        check(_library().inject_detach(self.tid, signal), f"PTRACE_DETACH of {self.tid}")


def read_memory(pid: int, address: int, size: int) -> bytes | None:
    """Memory of another process, None if not all of it can be read."""
    buffer = ctypes.create_string_buffer(size)
    return buffer.raw if _library().inject_read(pid, address & U64, buffer, size) == size else None


class Frozen:
    """A process all of whose threads are ptrace-stopped by this thread. As a context manager it detaches at the end."""

    def __init__(self, pid: int, threads: dict[int, Thread], instruction: int = 0) -> None:
        self.pid = pid
        self.threads = threads
        self.leader = threads[pid]
        self._instruction = 0
        self._journal: Journal | None = None
        self.instruction = instruction or find_instruction(pid)

    def __enter__(self) -> Frozen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.threads:
            self.detach()

    @property
    def instruction(self) -> int:
        """Address of a `syscall` instruction in the process; may be changed (for the resident page)."""
        return self._instruction

    @instruction.setter
    def instruction(self, address: int) -> None:
        self._instruction = address
        for thread in self.threads.values():
            thread.instruction = address

    def keep(self, journal: Journal) -> None:
        """Before the first call: what it is is written down, and should we be killed it waits until it is put back by that. Without a
        word where there is no refuge for it. Errors: OSError."""
        address = refuge.make(self)
        if address:
            self.instruction = address
            journal.write(self)
            self._journal = journal
            self._give_refuge(True)

    def end_journal(self) -> None:
        """It is as it was, or what it was does not matter any more. Errors: OSError."""
        if self._journal is not None:
            self._give_refuge(False)
            self._journal.end()
            self._journal = None

    def _give_refuge(self, is_there: bool) -> None:
        threads = tuple(self.threads.values())
        for thread in threads:
            thread.companions = threads if is_there else ()
            if is_there:
                thread.set_options(thread.options | PTRACE_O_TRACESYSGOOD)

    def note_signals(self, signals: Signals) -> None:
        """These are in none of its queues, and have to be put back. Errors: OSError."""
        if self._journal is not None:
            self._journal.signals = list(signals)
            self._journal.write(self)

    def _note_memory(self, address: int, was: bytes | None) -> None:
        """None: it is as it was."""
        if self._journal is not None:
            self._journal.memory.pop(address, None)
            if was is not None:
                self._journal.memory[address] = was
            self._journal.write(self)

    def read(self, address: int, size: int) -> bytes:
        """Errors: OSError EFAULT when not all of it can be read."""
        buffer = ctypes.create_string_buffer(size)
        done = 0
        while done < size:
            at = ctypes.byref(buffer, done)
            count = check(
                _library().inject_read(self.pid, address + done, at, size - done), f"reading {self.pid} at {address:x}"
            )
            if not count:
                raise OSError(errno.EFAULT, f"reading {self.pid} at {address + done:x}")
            done += count
        return buffer.raw[:size]

    def write(self, address: int, data: bytes) -> None:
        """Errors: OSError EFAULT when not all of it can be written."""
        done = 0
        while done < len(data):
            rest = data[done:] if done else data
            count = check(
                _library().inject_write(self.pid, address + done, rest, len(rest)),
                f"writing {self.pid} at {address:x}",
            )
            if not count:
                raise OSError(errno.EFAULT, f"writing {self.pid} at {address + done:x}")
            done += count

    def write_forced(self, address: int, data: bytes) -> None:
        """Writes through /proc/PID/mem, which also writes where the process itself may not."""
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            done = 0
            while done < len(data):
                rest = data[done:]
                done += check(_library().farhome_guest_memory_write(descriptor, rest, len(rest), address + done), f"writing {self.pid}")
        finally:
            os.close(descriptor)

    @contextmanager
    def scratch(self, size: int = 4096) -> Iterator[int]:
        """Writable memory below the leader's stack pointer and red zone, 64-byte aligned; its contents come back.

        Where no memory lies below (the kernel grows a stack only for its own thread) other bytes of the stack serve.
        Errors: OSError when the stack is smaller than that.
        """
        address = (self.leader.registers.rsp - RED_ZONE - size) & ~63
        try:
            saved = self.read(address, size)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            address = self._stack_start()
            saved = self.read(address, size)
        self._note_memory(address, saved)
        try:
            yield address
        finally:
            try:
                self.write(address, saved)
            except ProcessLookupError:
                pass  # it ended meanwhile, and its memory with it
            self._note_memory(address, None)

    def _stack_start(self) -> int:
        """The lowest address of the mapping that the leader's stack pointer is in. Errors: OSError EFAULT."""
        pointer = self.leader.registers.rsp
        for line in Path(f"/proc/{self.pid}/maps").read_text(errors="replace").splitlines():
            start, end = (int(bound, 16) for bound in line.split(" ", 1)[0].split("-"))
            if start <= pointer < end:
                return start
        raise OSError(errno.EFAULT, f"no stack at {pointer:x} in {self.pid}")

    def call(self, number: int, *args: int) -> int:
        """One system call on the leader. Errors: OSError(errno, "mmap in 123: ...")."""
        return check(self.leader.call(number, *args), f"{NAMES.get(number, number)} in {self.pid}")

    def restore(self) -> None:
        for thread in self.threads.values():
            thread.restore()

    def park(self) -> None:
        """Thread.park() for all: frozen, but sound if we die. Injecting goes on to work."""
        for thread in self.threads.values():
            thread.park()

    def resume(self) -> None:
        """Restores every thread, then lets them run, still traced."""
        self._let_go(detach=False)

    def detach(self) -> None:
        """Restores every thread, then lets them go for good."""
        self._let_go(detach=True)
        self.threads = {}

    def _let_go(self, detach: bool) -> None:
        """What a thread that died meanwhile (SIGKILL) answers is no error: there is nothing to let go."""
        dead = []
        for thread in self.threads.values():
            try:
                thread.restore()
            except ProcessLookupError:
                dead.append(thread)
        for thread in self.threads.values():
            try:
                if thread not in dead:
                    thread.detach() if detach else thread.resume()
            except ProcessLookupError:
                dead.append(thread)
        self.end_journal()
        if detach:
            for thread in sorted(dead, key=lambda thread: thread is self.leader):
                _take_death(thread)


def _take_death(thread: Thread, timeout: float = 5.0) -> None:
    """A dead tracee is hidden from its parent until its tracer has waited for it. If we are the parent, the main
    thread's death is left for whoever waits for the process."""
    if thread.tid == thread.pid and _parent(thread.pid) == os.getpid():
        return
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            pid, status = os.waitpid(thread.tid, os.WNOHANG | _WALL)
        except ChildProcessError:
            return
        if pid and not os.WIFSTOPPED(status):
            return
        os.sched_yield()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rsplit(b")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def find_instruction(pid: int) -> int:
    """Address of a `syscall` instruction: in the vdso, else in any executable mapping. Errors: OSError ENOEXEC."""
    candidates = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if "x" in fields[1] and not line.rstrip().endswith("[vsyscall]"):
                start, end = (int(part, 16) for part in fields[0].split("-"))
                candidates.append((not line.rstrip().endswith("[vdso]"), start, end))
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _, start, end in sorted(candidates):
            for at in range(start, end, 1 << 20):
                found = os.pread(descriptor, min(end - at, (1 << 20) + 1), at).find(b"\x0f\x05")
                if found >= 0:
                    return at + found
    finally:
        os.close(descriptor)
    raise OSError(errno.ENOEXEC, f"process {pid} has no syscall instruction")


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None


def _is_ending(pid: int, tid: int) -> bool:
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as stat:
            return stat.read().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X", b"x")
    except (FileNotFoundError, ProcessLookupError):
        return True


def seize(pid: int, options: int = 0, timeout: float = 5.0) -> Frozen:
    """Seizes and stops all threads of a process (PTRACE_SEIZE + INTERRUPT until no new thread shows up).

    `timeout`, seconds, is for all. What was seized is let go again on any error.

    Errors: ProcessLookupError (no such process, or a zombie), PermissionError (traced by somebody else, or not ours
    to trace), TimeoutError (a thread is in an uninterruptible sleep; such a thread cannot be detached from, only the
    end of the tracer sets it free), MoveRefused (not a 64-bit program).
    """
    deadline = time.monotonic() + timeout
    threads: dict[int, Thread] = {}
    ending: set[int] = set()
    try:
        while new := [tid for tid in _threads_of(pid) if tid not in threads and tid not in ending]:
            for tid in sorted(new, key=lambda tid: tid != pid):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError(errno.ETIMEDOUT, f"process {pid} makes threads faster than they can be stopped")
                try:
                    threads[tid] = Thread.seize(tid, pid, options, remaining)
                except (ProcessLookupError, PermissionError):
                    if not _is_ending(pid, tid):
                        raise
                    ending.add(tid)
        if pid not in threads:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended, or its main thread has")
        if any(thread.registers.cs != 0x33 for thread in threads.values()):
            raise MoveRefused(pid, "it is a 32-bit program")
        return Frozen(pid, threads)
    except BaseException:
        for thread in threads.values():
            try:
                thread.restore()
                thread.detach()
            except OSError:
                continue
        raise


def arguments_of(registers: Registers) -> tuple[int, int, int, int, int, int]:
    """Of the call that a stop interrupted."""
    r = registers
    return r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9


def syscall_at(registers: Registers) -> tuple[int, int] | None:
    """(number, restart code) of the call that a stop interrupted, or None."""
    number, code = signed(registers.orig_rax), signed(registers.rax)
    if number >= 0 and (code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP)):
        return number, code
    return None


__all__ = [
    "NAMES",
    "SYS",
    "Frozen",
    "Registers",
    "RseqConfiguration",
    "Thread",
    "arguments_of",
    "carry_restart",
    "check",
    "find_instruction",
    "normalise_restart",
    "seize",
    "signed",
    "syscall_at",
]  # fmt: skip
