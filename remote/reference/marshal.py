"""A guest's call into a CALL frame, in Python: the reference for kernel_helpers/link/marshal/marshal.c.

The data area of a slot at home has two parts: the image, which is sent, and behind it what the kernel at home only writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kernel_helpers.calls.table import Argument, Row, Rule, Shape, SizeKind, Variant
from kernel_helpers.process.syscalls import U64
from remote.reference.call import BEHIND, SLOT_DATA, Call, Segment, TooBig

FAULT_ADDRESS = 16
"""Nothing is mapped there: home gets it for a pointer that the guest cannot read."""
PATH_ROOM, VECTOR_LIMIT, PAGE = 4096, 1024, 4096
_IOVEC = struct.Struct("<QQ")
_MSGHDR = struct.Struct("<QI4xQQQQi4x")
_MMSGHDR_SIZE, _MESSAGE_LENGTH_AT = 64, 56
_XATTR_ROOM = 65536  # XATTR_SIZE_MAX
_NOTIFY_COOKIE = 32  # NOTIFY_COOKIE_LEN, mq_notify(2)
_SIGEVENT_SIZE, _SIGEV_THREAD = 64, 2

_BOTH_WAYS = (Shape.MSG_PART, Shape.MMSG_PART)
_SENT = (Shape.IOV_IN, Shape.MSG_IN, Shape.MMSG_IN)

Read = Callable[[int, int], bytes]
"""(address, size) -> bytes of the guest. Errors: OSError."""


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

    def _allocate(self, length: int, alignment: int = 16) -> int:
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
        at = self._allocate(length, _alignment(address, length))
        self.call.image[at : at + length] = data
        return at

    def _allocate_behind(self, address: int, length: int) -> int:
        at = self.call.behind + -self.call.behind % _alignment(address, length)
        if length > SLOT_DATA - at:
            raise TooBig
        self.call.behind = at + length
        return at | BEHIND

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
            self._set(index, address, None if wanted is None else self._allocate(8))
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
            at: int | None = self._allocate_behind(address, size)
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
            value = self._allocate_behind(address, length)
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
        offset = self._allocate(len(text))
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
        data = self._allocate(total, _alignment(first, total)) if send else self._allocate_behind(first, total)
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
    """Returns the alignment for direct I/O: a buffer that is aligned to sectors here is aligned at home."""
    return 512 if length >= 512 and not address % 512 else 16


def _fault(address: int) -> int:
    """What home gets for a pointer that cannot be read: outside user space it fails the same way there."""
    return address if address >> 47 else FAULT_ADDRESS
