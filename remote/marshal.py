"""A guest's call into a CALL frame and a REPLY into its memory, in Python: the reference for kernel_helpers/marshal.c.

The data area of a slot at home has two parts: the image, which is sent, and behind it what the kernel at home only writes.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kernel_helpers.table import Argument, Row, Rule, Shape, SizeKind, Variant

SLOT_DATA = (64 << 20) - 4096
FAULT_ADDRESS = 16
"""Nothing is mapped there: home gets it for a pointer that the guest cannot read."""
NO_PLACE = 6
PATH_ROOM, VECTOR_LIMIT, PAGE = 4096, 1024, 4096
_BEHIND = 1 << 31
_CALL = struct.Struct("<QiI6QIIQIIII")
BLOCKS_TOLD = 1 << 29
_BLOCKS = {signal.SIGTTIN: 1 << 30, signal.SIGTTOU: 1 << 31}
"""link.h, BLOCKS_*"""
_OUT = struct.Struct("<IIHHI")
_REPLY = struct.Struct("<QqII")
_IOVEC = struct.Struct("<QQ")
_MSGHDR = struct.Struct("<QI4xQQQQi4x")
_MMSGHDR_SIZE, _MESSAGE_LENGTH_AT = 64, 56
_XATTR_ROOM = 65536  # XATTR_SIZE_MAX
_NOTIFY_COOKIE = 32  # NOTIFY_COOKIE_LEN, mq_notify(2)
_SIGEVENT_SIZE, _SIGEV_THREAD = 64, 2
REPLY_SUSPENDED = 1
REPLY_ASKS = 2

Read = Callable[[int, int], bytes]
"""(address, size) -> bytes of the guest. Errors: OSError."""


class TooBig(Exception):
    """More than a slot holds, or a meaning that home's kernel knows alone: home can make the call natively."""


@dataclass
class Call:
    """A marshalled call: what is sent, and where in the guest the results go."""

    number: int
    arguments: list[int]
    offsets: int = 0
    image: bytearray = field(default_factory=bytearray)
    behind: int = 0
    relocations: list[int] = field(default_factory=list)
    outs: list[list[int]] = field(default_factory=list)
    """offset, length, rule, scale, add"""
    segments: list[tuple[int, int, int]] = field(default_factory=list)
    """guest address, length, index in outs"""
    place: tuple[int, int, int] = (0, NO_PLACE, 0)
    sigmask: int | None = None

    def tell_blocked(self, blocked: int) -> None:
        """Says what the caller blocks (bit n-1: signal n)."""
        self.offsets |= BLOCKS_TOLD | sum(bit for number, bit in _BLOCKS.items() if blocked >> (number - 1) & 1)

    def frame(self, sequence: int) -> bytes:
        """The body of the CALL."""
        base = (len(self.image) + 511) & ~511
        area = base + self.behind
        if area > SLOT_DATA:
            raise TooBig

        def settle(offset: int) -> int:
            return (offset & ~_BEHIND) + base if offset & _BEHIND else offset

        arguments = [settle(a) if self.offsets >> i & 1 else a for i, a in enumerate(self.arguments)]
        for at in self.relocations:
            struct.pack_into("<Q", self.image, at, settle(struct.unpack_from("<Q", self.image, at)[0]))
        address, place, length = self.place
        head = _CALL.pack(sequence, self.number, self.offsets, *arguments, len(self.image), area, address, place, length,
                          len(self.relocations), len(self.outs))
        relocations = struct.pack(f"<{len(self.relocations)}I", *self.relocations)
        outs = b"".join(_OUT.pack(settle(out[0]), *out[1:]) for out in self.outs)
        return head + relocations + outs + bytes(self.image)

    def string(self, argument: int) -> bytes:
        """The string that an argument points to; empty if it could not be read."""
        if not self.offsets >> argument & 1:
            return b""
        at = self.arguments[argument]
        return bytes(self.image[at : self.image.index(0, at)])

    def rename(self, argument: int, path: bytes) -> None:
        """Another path in place of the one that an argument names."""
        self.image += bytes(-len(self.image) % 16)
        self.arguments[argument] = len(self.image)
        self.offsets |= 1 << argument
        self.image += path + b"\0"

    def results(self, body: bytes) -> tuple[int, int, int, list[tuple[int, bytes]]]:
        """(sequence, value, flags, what goes where in the guest) of a REPLY's body. Errors: ValueError."""
        sequence, value, flags, count = _REPLY.unpack_from(body)
        if count > len(self.outs):
            raise ValueError("a reply that fits no call")
        lengths = struct.unpack_from(f"<{count}I", body, _REPLY.size)
        at = _REPLY.size + 4 * count
        writes: list[tuple[int, bytes]] = []
        for index, length in enumerate(lengths):
            data = body[at : at + length]
            at += length
            done = 0
            for address, room, out in self.segments:
                if out == index and done < length:
                    writes.append((address, data[done : done + room]))
                    done += room
        if at != len(body):
            raise ValueError("a reply of wrong length")
        return sequence, value, flags, writes


class Marshaller:
    """Builds one Call."""

    def __init__(self, read: Read, entry: Row | Variant, number: int, arguments: tuple[int, ...]) -> None:
        self._read = read
        self._arguments = arguments
        known = len(entry.arguments)
        self.call = Call(number, [*arguments[:known], *[0] * (6 - known)])
        for index, argument in enumerate(entry.arguments):
            self._argument(index, argument)

    # -- the data area

    def _room(self, length: int, alignment: int = 16) -> int:
        image = self.call.image
        if length > SLOT_DATA - len(image):
            raise TooBig
        image += bytes(-len(image) % alignment)
        at = len(image)
        image += bytes(length)
        return at

    def _copy(self, address: int, length: int) -> int | None:
        """Offset of a copy of the guest's buffer; None: it cannot be read."""
        if length > SLOT_DATA:
            raise TooBig
        try:
            data = self._read(address, length) if length else b""
        except OSError:
            return None
        at = self._room(length, _alignment(address, length))
        self.call.image[at : at + length] = data
        return at

    def _behind_room(self, address: int, length: int) -> int:
        at = self.call.behind + -self.call.behind % _alignment(address, length)
        if length > SLOT_DATA - at:
            raise TooBig
        self.call.behind = at + length
        return at | _BEHIND

    def _point(self, where: int, offset: int) -> None:
        struct.pack_into("<Q", self.call.image, where, offset)
        self.call.relocations.append(where)

    def _fault(self, where: int, address: int) -> None:
        struct.pack_into("<Q", self.call.image, where, _fault(address))

    def _out(self, offset: int, length: int, *segments: tuple[int, int], rule: Rule = Rule.FULL, scale: int = 1, add: int = 0) -> None:
        self.call.outs.append([offset, length, rule, scale, add])
        self.call.segments += [(address, room, len(self.call.outs) - 1) for address, room in segments]

    # -- shapes

    def _set(self, index: int, address: int, offset: int | None) -> None:
        if offset is None:
            self.call.arguments[index] = _fault(address)
        else:
            self.call.arguments[index] = offset
            self.call.offsets |= 1 << index

    def _size(self, argument: Argument) -> int:
        """Errors: OSError when the length itself cannot be read."""
        x = self._arguments[argument.size_argument]
        if argument.size_kind is SizeKind.FIXED:
            x = 0
        elif argument.size_kind is SizeKind.BEHIND:
            (x,) = struct.unpack("<I", self._read(x, 4))
            x = 0 if x > 0x7FFFFFFF else x
        elif argument.size_kind is SizeKind.BITS:
            x = ((x + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) + argument.size_add
            x = max(0, (x + 63) // 64 * 8)
        size = x if argument.size_kind is SizeKind.BITS else x * argument.size_scale + argument.size_add
        if size > SLOT_DATA and argument.shape not in (Shape.IOV_IN, Shape.IOV_OUT):
            raise TooBig
        return size

    def _argument(self, index: int, argument: Argument) -> None:
        address, shape = self._arguments[index], argument.shape
        if shape in (Shape.NUMBER, Shape.TERMINAL):
            return
        if shape in (Shape.ZERO, Shape.MASK, Shape.MASK6):
            self.call.arguments[index] = 0
            if address and shape is not Shape.ZERO:
                self.call.sigmask = self._sigmask(address, shape)
            return
        if not address:
            return
        if shape in (Shape.STRING, Shape.TEXT):
            self._set(index, address, self._string(address, argument.size_add or PATH_ROOM, whole=shape is Shape.TEXT))
        elif shape is Shape.EVENT:
            at = self._copy(address, _SIGEVENT_SIZE)
            self._set(index, address, at)
            if at is not None and struct.unpack_from("<i", self.call.image, at + 12)[0] == _SIGEV_THREAD:
                self._nested(at, _NOTIFY_COOKIE, back=False)
        elif shape in (Shape.MSG_IN, Shape.MSG_OUT):
            at = self._copy(address, _MSGHDR.size)
            self._set(index, address, at)
            if at is not None:
                self._message(at, address, out=shape is Shape.MSG_OUT, whole=False)
        else:
            try:
                size = self._size(argument)
            except OSError:
                self.call.arguments[index] = _fault(address)
                return
            self._sized(index, argument, address, size)

    def _sized(self, index: int, argument: Argument, address: int, size: int) -> None:
        shape = argument.shape
        rule = {"rule": argument.rule, "scale": argument.rule_scale, "add": argument.rule_add}
        if shape is Shape.OUT:
            at: int | None = self._behind_room(address, size)
        elif shape in (Shape.IOV_IN, Shape.IOV_OUT):
            if size > VECTOR_LIMIT:  # EINVAL by its count, before the kernel looks
                self.call.arguments[index] = FAULT_ADDRESS
                return
            at = self._copy(address, size * _IOVEC.size)
            if at is not None:
                self._vector(at, size, send=shape is Shape.IOV_IN, back=shape is Shape.IOV_OUT)
        elif shape in (Shape.MMSG_IN, Shape.MMSG_OUT):
            at = self._messages(address, min(size, VECTOR_LIMIT), out=shape is Shape.MMSG_OUT)
        else:
            at = self._copy(address, size)
            if at is None and self._begins(address):
                raise TooBig
        self._set(index, address, at)
        if at is None:
            return
        if shape is Shape.PROGRAM:
            if size == 16:  # else EINVAL by its size, or another level's option of this number
                self._nested(at + 8, 8 * struct.unpack_from("<H", self.call.image, at)[0], back=False)
        elif shape in (Shape.XATTR_IN, Shape.XATTR_OUT) and size >= 16:
            self._attribute(at, out=shape is Shape.XATTR_OUT)
        elif shape is Shape.TIMEX and any(self.call.image[at : at + 4]):
            raise TooBig
        if size and shape in (Shape.OUT, Shape.INOUT, Shape.INPLACE, Shape.TIMEX):
            self._out(at, size, (address, size), **rule)  # type: ignore[arg-type]
            if shape is Shape.INPLACE:
                self.call.place = (address, index, size)

    def _sigmask(self, address: int, shape: Shape) -> int | None:
        try:
            if shape is Shape.MASK6:
                (address,) = struct.unpack("<Q8x", self._read(address, 16))
            return struct.unpack("<Q", self._read(address, 8))[0] if address else None
        except OSError:
            return None

    def _begins(self, address: int) -> bool:
        """Whether a buffer that cannot be read as a whole has a beginning that can: how much of it the kernel would look at,
        and so whether it would fail, is not known here."""
        try:
            return len(self._read(address, 1)) == 1
        except OSError:
            return False

    def _attribute(self, at: int, *, out: bool) -> None:
        """The struct xattr_args at `at` of the image."""
        address, length = struct.unpack_from("<QI", self.call.image, at)
        length = min(length, _XATTR_ROOM)
        if not out:
            self._nested(at, length, back=False)
        elif address:
            value = self._behind_room(address, length)
            self._point(at, value)
            if length:
                self._out(value, length, (address, length), rule=Rule.RETURNED)

    def _string(self, address: int, room: int, *, whole: bool = False) -> int | None:
        text = b""
        while len(text) < room and 0 not in text:
            at = address + len(text)
            try:
                text += self._read(at, min(PAGE - at % PAGE, room - len(text)))
            except OSError:
                return None
        if whole and 0 not in text:
            raise TooBig
        text = text.split(b"\0")[0] + b"\0"
        offset = self._room(len(text))
        self.call.image[offset : offset + len(text)] = text
        return offset

    def _vector(self, at: int, count: int, *, send: bool, back: bool) -> None:
        """The buffers of the iovec array at `at` of the image, in one piece as the kernel fills it."""
        entries = [_IOVEC.unpack_from(self.call.image, at + i * _IOVEC.size) for i in range(count)]
        total = sum(length for _, length in entries)
        if total > SLOT_DATA:
            raise TooBig
        if not count:
            return
        first = entries[0][0]
        data = self._room(total, _alignment(first, total)) if send else self._behind_room(first, total)
        if back:
            rule = Rule.FULL if send else Rule.RETURNED
            self._out(data, total, *entries, rule=rule)
        for i, (address, length) in enumerate(entries):
            try:
                if send and length:
                    self.call.image[data : data + length] = self._read(address, length)
                self._point(at + i * _IOVEC.size, data)
            except OSError:
                self._fault(at + i * _IOVEC.size, address)
            data += length

    def _nested(self, where: int, length: int, back: bool) -> None:
        (address,) = struct.unpack_from("<Q", self.call.image, where)
        if not address:
            return
        at = self._copy(address, length)
        if at is None:
            self._fault(where, address)
            return
        self._point(where, at)
        if back and length:
            self._out(at, length, (address, length))

    def _message(self, at: int, address: int, *, out: bool, whole: bool) -> None:
        """The struct msghdr at `at` of the image, which the guest has at `address`."""
        _, names, vector, count, _, control, _ = _MSGHDR.unpack_from(self.call.image, at)
        if count > VECTOR_LIMIT:
            return
        if names > 0x7FFFFFFF or control > 0x7FFFFFFF:
            names = control = 0
        self._nested(at, min(names, 128), out)
        self._nested(at + 32, control, out)
        copied = self._copy(vector, count * _IOVEC.size)
        if copied is None:
            self._fault(at + 16, vector)
            return
        if count:
            self._point(at + 16, copied)
        self._vector(copied, count, send=not out or whole, back=out)
        if out:
            for offset, length in ((8, 4), (40, 8), (48, 4)):  # msg_namelen, msg_controllen, msg_flags
                self._out(at + offset, length, (address + offset, length))

    def _messages(self, address: int, count: int, *, out: bool) -> int | None:
        at = self._copy(address, count * _MMSGHDR_SIZE)
        for i in range(count if at is not None else 0):
            assert at is not None
            here, there = at + i * _MMSGHDR_SIZE, address + i * _MMSGHDR_SIZE
            self._message(here, there, out=out, whole=True)
            self._out(here + _MESSAGE_LENGTH_AT, 4, (there + _MESSAGE_LENGTH_AT, 4))
        return at


def _alignment(address: int, length: int) -> int:
    """Direct I/O wants sectors: whoever aligned a buffer to them finds it aligned at home."""
    return 512 if length >= 512 and not address % 512 else 16


def _fault(address: int) -> int:
    """What home gets for a pointer that cannot be read: outside user space it fails the same way there."""
    return address if address >> 47 else FAULT_ADDRESS
