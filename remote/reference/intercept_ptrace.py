"""The reference interceptor: calls of the guest are caught by ptrace (SECCOMP_RET_TRACE) instead of notifications.

Same table, same frames, same interface as kernel_helpers.link.ends.away.AwayLink; short and slow. It runs in the tracer's thread:
anyone who waits for the guest's threads gives every stop to stopped() first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kernel_helpers.calls.filter import RET_TRACE
from kernel_helpers.calls.table import Class, Shape, row_of
from kernel_helpers.common import library
from kernel_helpers.link.ends.events import Event, Kind, Parked, Part
from kernel_helpers.link.ends.own_proc import may_be_own
from kernel_helpers.link.ends.session import SessionLink
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import ERESTARTNOINTR, RESTART_CODES, SYS, U64, Registers, signed
from kernel_helpers.process.tracing import Cause, Stop
from kernel_helpers.usage.account import Account
from remote.reference.call import REPLY_ASKS, REPLY_PART, REPLY_SUSPENDED, Call, TooBig
from remote.reference.marshal import Marshaller

FILTER_VERDICT = RET_TRACE
"""What the filter has to return for caught calls: filter.program(FILTER_VERDICT)."""
PTRACE_O_TRACESECCOMP = 1 << 7
OPENS = (SYS.open, SYS.openat, SYS.openat2)
"""The tracer of the guest is asked about some of them (remote/requests/own_proc.py)."""
_FRAME_CALL, _FRAME_ABANDON = 3, 5
_RELAYED_REPLY = 15
_libc = ctypes.CDLL(None, use_errno=True)
_IOV = struct.Struct("<QQ")
_TIMESPEC_SIZE = 16


class _Caught:
    """A thread that stands at the entry of a call."""

    def __init__(self, host: int, registers: Registers) -> None:
        self.host = host
        self.registers = registers
        self.number = signed(registers.orig_rax)
        r = registers
        self.arguments = (r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9)
        self.entry = row_of(self.number).select(self.arguments)
        self.call: Call | None = None
        self.sequence = 0
        self.sent = False
        self.asked = False
        """the guest is asked what shall become of it; forward() or answer() comes"""
        self.renamed = False


class PtraceLink(SessionLink):
    """`threads`: tid as this process sees it -> tid as the program sees it."""

    trace_options: int = PTRACE_O_TRACESECCOMP
    """Options that the guest's threads need besides the tracer's own."""

    def __init__(self, guest_host_pid: int, threads: dict[int, int]) -> None:
        super().__init__()
        self._handle = _relay().relay_new(self.event_fd)
        self.guest_host_pid = guest_host_pid
        self._program = dict(threads)
        self._sequence = dict.fromkeys(threads.values(), 0)
        self._caught: dict[int, _Caught] = {}
        self._restarting: dict[int, tuple[int, _Caught]] = {}
        self._asked: set[int] = set()
        """threads of which home wants to know what they block"""
        self._parts: dict[int, Part] = {}
        self._paused = False
        self._kept: list[Event] = []
        self.account = Account(guest_host_pid, threads)
        """What the guest has used here, and where it was before."""

    def _session(self) -> int:
        return self.handle

    def _free(self, handle: int) -> None:
        _relay().session_free(handle)
        self.account.close()

    # -- calls leave

    def stopped(self, stop: Stop) -> bool:
        """Return a stop of a thread. True: it was a call, and is taken care of; False: the caller's affair."""
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self._caught.pop(self._program.get(stop.tid, 0), None)
            self._restarting.pop(stop.tid, None)
            return False
        if stop.cause is Cause.CALL:
            return False  # seen by remote/tracee/trace.py
        if stop.cause is not Cause.OTHER or not self._is_at_call(stop):
            self._restart(stop.tid)
            return False
        caught = _Caught(stop.tid, tracing.registers(stop.tid))
        self._restarting.pop(stop.tid, None)
        program = self._program[stop.tid]
        self._parts.pop(program, None)
        if caught.entry.class_ in (Class.LOCAL, Class.KEYS):
            tracing.proceed(stop.tid)
            return True
        self._caught[program] = caught
        if self._paused:
            return True  # it waits, unreceived, until unpause() or answer()
        self._take(program, caught)
        return True

    def _is_at_call(self, stop: Stop) -> bool:
        """The only event besides STOP that this link has switched on; the entry of a call shows -ENOSYS."""
        return signed(tracing.registers(stop.tid).rax) == -errno.ENOSYS

    def _take(self, program: int, caught: _Caught) -> None:
        if caught.entry.class_ in (Class.FORWARD, Class.BOTH, Class.END, Class.SUM, Class.BIND, Class.IDS):
            with suppress(TooBig):
                self._send(program, caught)
                return
        caught.asked = True
        self._ask(program, caught, struct.pack("<6Q", *caught.arguments))

    def _ask(self, program: int, caught: _Caught, arguments: bytes) -> None:
        self._kept.append(Event(Kind.GO_HOME_CALL, program, arguments, caught.number))
        os.eventfd_write(self.event_fd, 1)

    def _send(self, program: int, caught: _Caught, path: bytes | None = None) -> None:
        """Errors: TooBig."""
        call = Marshaller(self._read, caught.entry, caught.number, caught.arguments).call
        if caught.number in OPENS:
            argument = next(i for i, argument in enumerate(caught.entry.arguments) if argument.shape is Shape.STRING)
            if path is not None:
                call.rename(argument, path)
            elif not caught.asked and may_be_own(call.string(argument), lambda number: number in self._program.values()):
                raise TooBig("only the guest knows what is to be sent of it")
        if program in self._asked:
            self._asked.discard(program)
            call.report_blocked(tracing.signal_state(self.guest_host_pid, caught.host).blocked)
        if caught.entry.class_ is Class.END and (caught.number == SYS.exit_group or len(self._program) == 1):
            call.image += self.account.used_by_all()
        frame = call.frame(self._sequence[program] + 1)
        self._sequence[program] += 1
        caught.call, caught.sequence, caught.renamed = call, self._sequence[program], path is not None
        self._post(_FRAME_CALL, program, frame)
        caught.sent = True
        if self._lets_in(caught):
            self._kept.append(Event(Kind.LETS_IN, program, b"", caught.number))
            os.eventfd_write(self.event_fd, 1)

    def _lets_in(self, caught: _Caught) -> bool:
        """Whether a signal waits for the thread that its call lets in, which has a mask of its own."""
        mask = caught.call.sigmask if caught.call is not None else None
        try:
            return mask is not None and tracing.signal_state(self.guest_host_pid, caught.host).let_in(mask)
        except ProcessLookupError:
            return False

    def _is_overtaken(self, caught: _Caught, value: int) -> bool:
        """Whether such a signal has come before the time of a call was over that has ended by that."""
        ends = {SYS.rt_sigtimedwait: -errno.EAGAIN, SYS.ppoll: 0, SYS.pselect6: 0}
        return ends.get(caught.number) == value and self._lets_in(caught)

    def _post(self, kind: int, tid: int, data: bytes) -> None:
        if _relay().relay_post(self.handle, kind, tid, data, len(data)):
            raise MemoryError

    # -- results come

    def events(self) -> list[Event]:
        """As AwayLink's; replies are answered here."""
        kept, self._kept = self._kept, []
        for event in super().events():
            if event.kind != _RELAYED_REPLY:
                kept.append(event)
            elif (code := self._reply(event)) is not None:
                kept.append(Event(Kind.SUSPENDED, event.tid, b"", code))
        return kept

    def _reply(self, event: Event) -> int | None:
        """The restart code, if home took the call back."""
        caught = self._caught.get(event.tid)
        if caught is None or caught.call is None or not caught.sent:
            return None
        sequence, value, flags, writes = caught.call.results(event.data)
        if sequence != caught.sequence:
            return None
        overtaken = not flags & REPLY_SUSPENDED and self._is_overtaken(caught, value)
        for address, reported, must in writes:
            if overtaken and caught.number == SYS.pselect6 and not 0 <= address - caught.arguments[4] < _TIMESPEC_SIZE:
                continue  # interrupted, it writes its time alone
            adds = caught.entry.class_ is Class.SUM
            try:
                self._write(address, self.account.add(caught.host, caught.number, caught.arguments, reported) if adds else reported)
            except OSError:
                value = -errno.EFAULT if must else value
        if flags & REPLY_ASKS:
            self._asked.add(event.tid)
        if flags & REPLY_PART:
            self._parts[event.tid] = Part(event.tid, caught.number, value)
            value = ERESTARTNOINTR
        if flags & REPLY_SUSPENDED or overtaken:
            caught.sent = False
            return value
        if caught.renamed and -value in (errno.EACCES, errno.ENOENT, errno.EPERM, errno.ENOTDIR):
            caught.sent = False
            self._ask(event.tid, caught, b"")  # only home can know what it would see by its own path
            return None
        if caught.entry.class_ is Class.BIND and value >= 0:
            self._bind(caught)
        native = caught.entry.class_ is Class.BOTH and value >= 0
        self._finish(event.tid, value, native)
        return None

    def _bind(self, caught: _Caught) -> None:
        """A limit that home has set; the guest is not bound more loosely than its node binds us."""
        first = int(caught.number == SYS.prlimit64)
        which = caught.arguments[first]
        with suppress(OSError, ValueError):
            most = resource.getrlimit(which)[1] % (1 << 64)
            soft, hard = struct.unpack("<QQ", self._read(caught.arguments[first + 1], 16))
            resource.prlimit(caught.host, which, (signed(min(soft, most)), signed(min(hard, most))))

    def _finish(self, program: int, value: int, native: bool) -> None:
        """Ends the call with a value, or lets the node's kernel make it."""
        caught = self._caught.pop(program)
        registers = caught.registers
        if not native:
            registers.orig_rax = U64  # the kernel skips the call and takes rax for its result
            registers.rax = value & U64
            if value in RESTART_CODES:
                # Back to before the call: so it is frozen. When the kernel looks for signals, _restart() shows it the
                # interrupted call, and it decides by its own rules.
                registers.rax = caught.number & U64
                registers.rip -= 2
                self._restarting[caught.host] = (value, caught)
            tracing.set_registers(caught.host, registers)
        tracing.proceed(caught.host)

    def _restart(self, tid: int) -> None:
        code, caught = self._restarting.pop(tid, (0, None))
        if caught is None:
            return
        registers = tracing.registers(tid)
        if registers.rip == caught.registers.rip and signed(registers.orig_rax) < 0:
            registers.rip += 2
            registers.orig_rax, registers.rax = caught.number & U64, code & U64
            tracing.set_registers(tid, registers)

    # -- as AwayLink

    def pause(self) -> None:
        """Receives no calls from now on."""
        self._paused = True

    def unpause(self) -> None:
        """Receives calls again."""
        self._paused = False
        for program, caught in list(self._caught.items()):
            if caught.call is None and not caught.asked:
                self._take(program, caught)

    def parked(self) -> dict[int, Parked]:
        """tid -> the call that was caught and not answered."""
        return {program: Parked(c.sequence, c.number, c.sent, c.call.sigmask if c.call else None) for program, c in self._caught.items()}

    def answer(self, tid: int, value: int = 0, error: int = 0, proceed: bool = False) -> bool:
        """Answers a parked call. False: none parked."""
        if tid not in self._caught:
            return False
        self._finish(tid, error or value, proceed)
        return True

    def forward(self, tid: int, number: int, arguments: Sequence[int], path: bytes | None = None) -> bool:
        """Sends a call home that GO_HOME_CALL has reported, with `path` in place of the one that it names. False: none is parked. Errors:
        OSError E2BIG, it is too big."""
        caught = self._caught.get(tid)
        if caught is None or caught.sent or (caught.number, caught.arguments) != (number, tuple(arguments)):
            return False
        try:
            self._send(tid, caught, path)
        except TooBig:
            raise OSError(errno.E2BIG, f"call {number}") from None
        return True

    def expect_part(self, part: Part) -> None:
        """As AwayLink's."""
        self._parts[part.tid] = part

    def part(self, tid: int) -> Part | None:
        """As AwayLink's."""
        return self._parts.get(tid)

    def abandon(self, tid: int) -> None:
        """The guest will not make the suspended call of this thread again (a handler ran), nor the rest of one that is half done."""
        self._parts.pop(tid, None)
        self._post(_FRAME_ABANDON, tid, b"")

    @staticmethod
    def is_notified(number: int, arguments: tuple[int, ...] = ()) -> bool:
        """Return whether a signal can find an unreceived call: never, its entry is a ptrace stop."""
        return False

    # -- memory

    def _transfer(self, function: str, address: int, buffer: ctypes.Array[ctypes.c_char], size: int) -> None:
        here = _IOV.pack(ctypes.addressof(buffer), size)
        there = _IOV.pack(address, size)
        done = getattr(_libc, function)(self.guest_host_pid, here, ctypes.c_ulong(1), there, ctypes.c_ulong(1), ctypes.c_ulong(0))
        if done != size:
            raise OSError(errno.EFAULT, "the guest's memory")

    def _read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self._transfer("process_vm_readv", address, buffer, size)
        return buffer.raw

    def _write(self, address: int, data: bytes) -> None:
        self._transfer("process_vm_writev", address, ctypes.create_string_buffer(data, len(data)), len(data))


def set_options(tids: Iterable[int], options: int) -> None:
    """PTRACE_SETOPTIONS on stopped threads, the link's own added."""
    for tid in tids:
        tracing.set_options(tid, options | PtraceLink.trace_options)


def _relay() -> ctypes.CDLL:
    native = library.load()
    native.relay_new.restype, native.relay_new.argtypes = ctypes.c_void_p, [ctypes.c_int]
    native.relay_post.argtypes = [ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32]
    native.session_free.argtypes, native.session_free.restype = [ctypes.c_void_p], None
    return native
