"""A guest's call into a CALL frame and a REPLY into its memory, in Python: the reference for kernel_helpers/link/marshal/marshal.c.

The data area of a slot at home has two parts: the image, which is sent, and behind it what the kernel at home only writes.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kernel_helpers.calls.table import Argument, Records, Row, Rule, Shape, SizeKind, Variant, Writes
from kernel_helpers.process.syscalls import U64

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
REPLY_PART = 4

_BOTH_WAYS = (Shape.MSG_PART, Shape.MMSG_PART)
_SENT = (Shape.IOV_IN, Shape.MSG_IN, Shape.MMSG_IN)

Read = Callable[[int, int], bytes]
"""(address, size) -> bytes of the guest. Errors: OSError."""


@dataclass(frozen=True)
class Segment:
    """Where in the guest a part of an out goes, and how it is written."""

    address: int
    length: int
    out: int
    writes: Writes = Writes.AFTER
    records: Records = Records.NONE


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
    segments: list[Segment] = field(default_factory=list)
    kept: dict[int, bytes] = field(default_factory=dict)
    """What was sent of outs that lie in the image, by their index: by that it is known what home's kernel has changed."""
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
        self.kept = {i: bytes(self.image[at : at + size]) for i, (at, size, *_) in enumerate(self.outs) if not at & _BEHIND}
        head = _CALL.pack(
            sequence,
            self.number,
            self.offsets,
            *arguments,
            len(self.image),
            area,
            address,
            place,
            length,
            len(self.relocations),
            len(self.outs),
        )
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

    def results(self, body: bytes) -> tuple[int, int, int, list[tuple[int, bytes, bool]]]:
        """(sequence, value, flags, what goes where in the guest, and whether it must) of a REPLY's body. Errors: ValueError."""
        sequence, value, flags, count = _REPLY.unpack_from(body)
        if count > len(self.outs):
            raise ValueError("a reply that fits no call")
        lengths = struct.unpack_from(f"<{count}I", body, _REPLY.size)
        at = _REPLY.size + 4 * count
        writes: list[tuple[int, bytes, bool]] = []
        for index, length in enumerate(lengths):
            data = body[at : at + length]
            at += length
            done = 0
            for segment in self.segments:
                if segment.out == index and done < length:
                    runs = self._runs(segment, data[done : done + segment.length], done)
                    writes += [(segment.address + at, run, segment.writes is not Writes.QUIET) for at, run in runs]
                    done += segment.length
        if at != len(body):
            raise ValueError("a reply of wrong length")
        return sequence, value, flags, writes

    def _runs(self, segment: Segment, data: bytes, begin: int) -> list[tuple[int, bytes]]:
        """What of a segment's bytes is written, and where in it: of memory that was sent, what is not as it was; else what the kernel
        has written."""
        sent = self.kept.get(segment.out)
        if sent is not None:
            sent = sent[begin : begin + len(data)]
            edges = [i for i in range(len(data) + 1) if _differs(data, sent, i) != _differs(data, sent, i - 1)] if sent != data else []
            return [(first, data[first:end]) for first, end in zip(edges[::2], edges[1::2], strict=True)]
        return _records(data, segment.records) if segment.records else [(0, data)]


def _differs(data: bytes, sent: bytes, i: int) -> bool:
    return 0 <= i < len(data) and data[i] != sent[i]


def _records(data: bytes, kind: Records) -> list[tuple[int, bytes]]:
    """Directory entries: between the end of a name and the next entry the kernel writes nothing, but for the type that getdents has in
    the last byte."""
    runs: list[tuple[int, bytes]] = []
    name, at = 19 if kind is Records.DIRENT64 else 18, 0
    while at + name < len(data):
        (size,) = struct.unpack_from("<H", data, at + 16)
        if size <= name or size > len(data) - at:
            break
        end = data.find(0, at + name, at + size)
        runs.append((at, data[at : end + 1 if end >= 0 else at + size]))
        if kind is Records.DIRENT:
            runs.append((at + size - 1, data[at + size - 1 : at + size]))
        at += size
    return runs


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
        self.call.segments += [Segment(address, room, len(self.call.outs) - 1) for address, room in segments]

    def _written(self, at: int, address: int, size: int, argument: Argument) -> None:
        """A result that the table describes."""
        self.call.outs.append([at, size, argument.rule, argument.rule_scale, argument.rule_add])
        self.call.segments.append(Segment(address, size, len(self.call.outs) - 1, argument.writes, argument.records))

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
        size = min(max(size, argument.size_least), argument.size_most or size)
        if size > SLOT_DATA and argument.shape not in (Shape.IOV_IN, Shape.IOV_OUT):
            raise TooBig
        return size

    def _argument(self, index: int, argument: Argument) -> None:
        address, shape = self._arguments[index], argument.shape
        if shape in (Shape.NUMBER, Shape.TERMINAL):
            return
        if shape is Shape.ZERO:
            self.call.arguments[index] = 0
        if shape is Shape.ZERO or not address:
            return
        if shape is Shape.MASK:
            self.call.sigmask = self._sigmask(address, self._arguments[index + 1])
            self.call.arguments[index] = 0 if self.call.sigmask is not None else _fault(address)
            return
        if shape is Shape.SIGNALS:
            wanted = self._sigmask(address, self._arguments[3])
            self.call.sigmask = None if wanted is None else wanted ^ U64
            self._set(index, address, None if wanted is None else self._room(8))
            return
        if shape is Shape.MASK6:
            self._set(index, address, at := self._copy(address, 16))
            if at is not None:
                mask, size = struct.unpack_from("<QQ", self.call.image, at)
                self.call.sigmask = self._sigmask(mask, size) if mask else None
                struct.pack_into("<Q", self.call.image, at, _fault(mask) if mask and self.call.sigmask is None else 0)
            return
        if shape in (Shape.STRING, Shape.TEXT):
            self._set(index, address, self._string(address, argument.size_add or PATH_ROOM, whole=shape is Shape.TEXT))
        elif shape is Shape.EVENT:
            at = self._copy(address, _SIGEVENT_SIZE)
            self._set(index, address, at)
            if at is not None and struct.unpack_from("<i", self.call.image, at + 12)[0] == _SIGEV_THREAD:
                self._nested(at, _NOTIFY_COOKIE, back=False)
        elif shape in (Shape.MSG_IN, Shape.MSG_OUT, Shape.MSG_PART):
            at = self._copy(address, _MSGHDR.size)
            self._set(index, address, at)
            if at is None and self._begins(address):
                raise TooBig
            if at is not None:
                self._message(at, address, shape, (Rule.RETURNED, 1, 0))
        else:
            try:
                size = self._size(argument)
            except OSError:
                self.call.arguments[index] = _fault(address)
                return
            self._sized(index, argument, address, size)

    def _sized(self, index: int, argument: Argument, address: int, size: int) -> None:
        shape = argument.shape
        if not size and address >> 47 and shape not in (Shape.IOV_IN, Shape.IOV_OUT):
            return  # of no bytes, and yet the kernel may say EFAULT: that no program has memory there is enough
        if shape is Shape.OUT:
            at: int | None = self._behind_room(address, size)
        elif shape in (Shape.IOV_IN, Shape.IOV_OUT):
            if size > VECTOR_LIMIT:  # EINVAL by its count, before the kernel looks
                self.call.arguments[index] = FAULT_ADDRESS
                return
            at = self._copy(address, size * _IOVEC.size)
            if at is not None:
                self._vector(at, size, shape, (Rule.RETURNED, 1, 0))
        elif shape in (Shape.MMSG_IN, Shape.MMSG_OUT, Shape.MMSG_PART):
            at = self._messages(address, min(size, VECTOR_LIMIT), shape)
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
        if size and shape in (Shape.OUT, Shape.PART, Shape.INOUT, Shape.INPLACE, Shape.TIMEX):
            self._written(at, address, size, argument)
            if shape is Shape.INPLACE:
                self.call.place = (address, index, size)

    def _sigmask(self, address: int, size: int) -> int | None:
        """None: EINVAL by its length, or EFAULT, says home's kernel of an address where nothing is."""
        try:
            return int(struct.unpack("<Q", self._read(address, 8))[0]) if size == 8 else None
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

    def _vector(self, at: int, count: int, shape: Shape, rule: tuple[Rule, int, int]) -> None:
        """The buffers of the iovec array at `at` of the image, in one piece as the kernel fills it."""
        entries = [_IOVEC.unpack_from(self.call.image, at + i * _IOVEC.size) for i in range(count)]
        total = sum(length for _, length in entries)
        if total > SLOT_DATA:
            raise TooBig
        if not count:
            return
        first = entries[0][0]
        send, back = shape in _SENT or shape in _BOTH_WAYS, shape not in _SENT
        data = self._room(total, _alignment(first, total)) if send else self._behind_room(first, total)
        if back:
            self._out(data, total, *entries, rule=rule[0], scale=rule[1], add=rule[2])
        for i, (address, length) in enumerate(entries):
            try:
                if send and length:
                    self.call.image[data : data + length] = self._read(address, length)
                if not length and address >> 47:
                    self._fault(at + i * _IOVEC.size, address)
                else:
                    self._point(at + i * _IOVEC.size, data)
            except OSError:
                if self._begins(address):
                    raise TooBig from None
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
            self._out(at, length, (address, length), rule=Rule.ALWAYS)

    def _message(self, at: int, address: int, shape: Shape, rule: tuple[Rule, int, int]) -> None:
        """The struct msghdr at `at` of the image, which the guest has at `address`. `rule`: how much of its buffers comes back."""
        out = shape not in _SENT
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
        self._vector(copied, count, shape, rule)
        if out:
            for offset, length in ((8, 4), (40, 8), (48, 4)):  # msg_namelen, msg_controllen, msg_flags
                self._out(at + offset, length, (address + offset, length), rule=Rule.ALWAYS)

    def _messages(self, address: int, count: int, shape: Shape) -> int | None:
        at = self._copy(address, count * _MMSGHDR_SIZE)
        if at is None and self._begins(address):
            raise TooBig  # those that can be read are sent, or filled
        for i in range(count if at is not None else 0):
            assert at is not None
            here, there = at + i * _MMSGHDR_SIZE, address + i * _MMSGHDR_SIZE
            self._message(here, there, shape, (Rule.MESSAGE, i, here + _MESSAGE_LENGTH_AT))
            self._out(here + _MESSAGE_LENGTH_AT, 4, (there + _MESSAGE_LENGTH_AT, 4))
        return at


def _alignment(address: int, length: int) -> int:
    """Direct I/O wants sectors: whoever aligned a buffer to them finds it aligned at home."""
    return 512 if length >= 512 and not address % 512 else 16


def _fault(address: int) -> int:
    """What home gets for a pointer that cannot be read: outside user space it fails the same way there."""
    return address if address >> 47 else FAULT_ADDRESS
