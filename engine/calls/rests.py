"""Writes that a stop of ours has ended in the middle, as a signal would: the rest of them is made before the program sees a result.

What is left of a call is known by its registers. A process that goes on at home makes it there (finishing.py); anyone who is its stub's
has home's side of the link make it (kernel_helpers/link/home/rests.c).
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from dataclasses import dataclass

from engine.calls import writing
from kernel_helpers.common import library
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS, U64, Registers, signed
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import SignalState

_BYTES = {SYS.write: (1, 2), SYS.sendto: (1, 2), SYS.recvfrom: (1, 2), SYS.getrandom: (0, 1)}
"""Which of their arguments are where the bytes are and how many."""
_COUNTED = {SYS.sendfile: 3, SYS.splice: 4, SYS.copy_file_range: 4}
"""How many; where, the kernel writes down itself."""
_KINDS = frozenset({*_BYTES, *_COUNTED, SYS.writev, SYS.sendmsg})
_OFFSETS = {SYS.sendfile: (2,), SYS.splice: (1, 3)}
_FLAGS = {SYS.recvfrom: 3, SYS.sendto: 3, SYS.sendmsg: 2}
"""Which argument has the flags."""
_MSG_DONTWAIT, _MSG_WAITALL = 0x40, 0x100
_SPLICE_F_NONBLOCK = 2
_PART = struct.Struct("<QQ")
"""struct iovec."""
_SYSCALL = b"\x0f\x05"
_MESSAGE_PARTS = 16
"""Where in a struct msghdr the vector is: address and number."""
_MESSAGE_CONTROL = 40
"""Where the length of the ancillary data stands, which go with the first bytes."""
_PARTS_MOST = 1024
_LINK_MOST = 16 << 20
"""Bytes: greater writes are no single call on the link."""

Step = tuple[int, int, tuple[int, ...]]
"""Number of a call, how many bytes of it are wanted, its arguments."""


@functools.cache
def _native() -> ctypes.CDLL:
    return library.functions(("rests_shorten", None, [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]))


def _vector(pid: int, registers: Registers) -> tuple[int, int]:
    """Address and number of the parts of a call that has such."""
    if signed(registers.orig_rax) == SYS.writev:
        return registers.rsi, registers.rdx
    head = native.read_memory(pid, registers.rsi + _MESSAGE_PARTS, _PART.size)
    return _PART.unpack(head) if head is not None else (0, 0)


def _parts_left(pid: int, registers: Registers, done: int) -> tuple[int, bytes]:
    """Where the vector of a call is, and what is to stand there when so much of it is done; nothing if it cannot be read."""
    address, count = _vector(pid, registers)
    count = min(count, _PARTS_MOST)
    data = (native.read_memory(pid, address, count * _PART.size) if count else None) or b""
    room = ctypes.create_string_buffer(data, len(data))
    _native().rests_shorten(room, len(data) // _PART.size, done)
    return address, room.raw


def parts(pid: int, registers: Registers, done: int = 0) -> list[tuple[int, int]]:
    """Return address and length of the parts of a call that has such, when so much of it is done: 0 of those that are."""
    return list(_PART.iter_unpack(_parts_left(pid, registers, done)[1]))


def shorten(pid: int, registers: Registers, done: int) -> None:
    """Has a call, of which so much is done, be its rest: its registers, and its vector in the process. Errors: OSError."""
    number = signed(registers.orig_rax)
    where, length = _BYTES.get(number, (None, _COUNTED.get(number)))
    for argument, by in ((where, done), (length, -done)):
        if argument is not None:
            name = syscalls.ARGUMENTS[argument]
            setattr(registers, name, getattr(registers, name) + by)
    if length is None:
        _write(pid, *_parts_left(pid, registers, done))
    if number == SYS.sendmsg:
        _write(pid, registers.rsi + _MESSAGE_CONTROL, bytes(8))


def _write(pid: int, address: int, data: bytes) -> None:
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


def steps(pid: int, registers: Registers, done: int) -> list[Step]:
    """Returns the calls that make the rest of a call, one after the other, for a caller that leaves its memory alone."""
    number, rest = signed(registers.orig_rax), registers.copy()
    if number in _BYTES or number in _COUNTED:
        shorten(pid, rest, done)
        wanted = _wanted(number, syscalls.arguments_of(rest))
        return [(number, wanted, syscalls.arguments_of(rest))] if wanted > 0 else []
    call, flags = (SYS.write, 0) if number == SYS.writev else (SYS.sendto, syscalls.arguments_of(registers)[_FLAGS[number]])
    return [(call, size, (registers.rdi, at, size, flags, 0, 0)) for at, size in parts(pid, registers, done) if size]


def _wanted(number: int, arguments: tuple[int, ...]) -> int:
    """How many bytes a call without a vector is to make."""
    return arguments[_BYTES[number][1] if number in _BYTES else _COUNTED[number]]


def bytes_left(pid: int, registers: Registers) -> int:
    """Return how many bytes are left of the call that a thread comes out of with a part; 0: it has made all of it, or has no rest."""
    done = signed(registers.rax)
    if done <= 0 or (number := signed(registers.orig_rax)) not in _KINDS:
        return 0
    arguments = syscalls.arguments_of(registers)
    if number == SYS.recvfrom and not arguments[_FLAGS[number]] & _MSG_WAITALL:
        return 0
    if number in (SYS.writev, SYS.sendmsg):
        return sum(length for _, length in parts(pid, registers, done))
    return max(0, _wanted(number, arguments) - done)


def waits_for_room(pid: int, number: int, arguments: tuple[int, ...]) -> bool:
    """Return whether only a stop or a signal ends such a call with a part: it waits for somebody else, and may."""
    if number == SYS.getrandom:
        return True
    if (number in _FLAGS and arguments[_FLAGS[number]] & _MSG_DONTWAIT) or (number == SYS.splice and arguments[5] & _SPLICE_F_NONBLOCK):
        return False
    ends = {SYS.sendfile: (0,), SYS.splice: (0, 2), SYS.copy_file_range: ()}.get(number, (0,))
    return any(writing.is_waited_for(pid, arguments[end] & 0xFFFFFFFF) for end in ends)


def is_for_link(number: int, arguments: tuple[int, ...]) -> bool:
    """Return whether home's side of the link can make the rest of such a call: it takes no place in a file that is recorded in memory."""
    if number in _OFFSETS:
        return not any(arguments[offset] for offset in _OFFSETS[number])
    return number in (SYS.writev, SYS.sendmsg) or (number in (SYS.write, SYS.sendto) and arguments[2] <= _LINK_MOST)


@dataclass
class Cut:
    """A call that a thread has come out of in the middle, and how much of it is done. registers: as it has come out."""

    registers: Registers
    done: int

    @property
    def number(self) -> int:
        """Of the call."""
        return signed(self.registers.orig_rax)

    @property
    def arguments(self) -> tuple[int, ...]:
        """Of the call."""
        return tuple(syscalls.arguments_of(self.registers))


def find(frozen: Frozen) -> dict[int, Cut]:
    """By thread, what the stop has ended so. Nothing has been made of the process yet."""
    found = {}
    for tid, thread in frozen.threads.items():
        registers = thread.registers
        if thread.group_stop or not bytes_left(frozen.pid, registers):
            continue
        cut = Cut(registers.copy(), signed(registers.rax))
        if waits_for_room(frozen.pid, cut.number, cut.arguments) and not hears(tracing.signal_state(frozen.pid, tid), thread):
            found[tid] = cut
    return found


def is_cut(pid: int, tid: int, registers: Registers) -> bool:
    """Return whether the mere stop has ended the call that a thread comes out of, with bytes left. A signal that comes decides that."""
    if not bytes_left(pid, registers):
        return False
    waits = waits_for_room(pid, signed(registers.orig_rax), tuple(syscalls.arguments_of(registers)))
    return waits and not hears(tracing.signal_state(pid, tid))


def go_on(pid: int, tid: int, registers: Registers) -> int:
    """Has a thread in a stop, with these registers, make the rest of the call that it comes out of. Returns how much is done; 0: nothing
    more can be made of it."""
    done = signed(registers.rax)
    try:
        shorten(pid, registers, done)
    except OSError:
        return 0
    begin_again(tid, registers)
    return done


def begin_again(tid: int, registers: Registers) -> None:
    """Has a thread in a stop make the call, with these registers, behind which it stands."""
    registers.rax, registers.orig_rax = registers.orig_rax, U64
    registers.rip -= len(_SYSCALL)
    tracing.set_registers(tid, registers)


def make_again(frozen: Frozen, cuts: dict[int, Cut]) -> None:
    """These threads stand in their calls, which are made again where they go on: who makes them there knows what is done."""
    for tid in cuts:
        frozen.threads[tid].registers.rax = ERESTARTNOINTR & U64


def has_come(thread: Thread, number: int, done: int) -> Cut | None:
    """Return the same of a thread that has come from elsewhere and stands in, or before, the call of which so much is done. None: it does
    not."""
    registers = behind(thread.pid, thread.registers, number)
    if registers is None:
        return None
    registers.rax = done
    return Cut(registers, done)


def behind(pid: int, registers: Registers, number: int) -> Registers | None:
    """Return those of a thread that stands in, or before, that call, as it comes out of it; what the call returns is to be reported. None:
    it does not stand there."""
    at, found = syscalls.syscall_at(registers), registers.copy()
    if at is None and registers.rax == number and native.read_memory(pid, registers.rip, len(_SYSCALL)) == _SYSCALL:
        found.rip, found.orig_rax = registers.rip + len(_SYSCALL), number
    elif at is None or at[0] != number:
        return None
    return found


def hears(state: SignalState, thread: Thread | None = None) -> bool:
    """Return whether a signal is there that ends the call natively as well."""
    pending = (state.pending | state.shared_pending) & ~state.blocked
    for info in thread.in_hand if thread is not None else ():
        pending |= 1 << tracing.signal_number(info) - 1
    return any(pending >> number - 1 & 1 and not state.is_ignored(number) for number in range(1, 65))
