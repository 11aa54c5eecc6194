"""A marshalled call: its CALL frame, and the REPLY into the guest's memory; the reference for kernel_helpers/link/marshal/frame.c."""

from __future__ import annotations

import signal
import struct
from dataclasses import dataclass, field

from kernel_helpers.calls.table import Records, Writes

SLOT_DATA = (64 << 20) - 4096
NO_PLACE = 6
BEHIND = 1 << 31
_CALL = struct.Struct("<QiI6QIIQIIIIIIIiq")
_PLAIN = (0, 0, 0, 0, 0)
"""flags and effect: replies to this interceptor carry nothing."""
BLOCKS_REPORTED = 1 << 29
_BLOCKS = {signal.SIGTTIN: 1 << 30, signal.SIGTTOU: 1 << 31}
"""link.h, BLOCKS_*"""
_OUT = struct.Struct("<IIHHI")
_REPLY = struct.Struct("<QqII")
REPLY_SUSPENDED = 1
REPLY_ASKS = 2
REPLY_PART = 4


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

    def report_blocked(self, blocked: int) -> None:
        """Says what the caller blocks (bit n-1: signal n)."""
        self.offsets |= BLOCKS_REPORTED | sum(bit for number, bit in _BLOCKS.items() if blocked >> (number - 1) & 1)

    def frame(self, sequence: int) -> bytes:
        """Return the body of the CALL."""
        base = (len(self.image) + 511) & ~511
        area = base + self.behind
        if area > SLOT_DATA:
            raise TooBig

        def settle(offset: int) -> int:
            return (offset & ~BEHIND) + base if offset & BEHIND else offset

        arguments = [settle(a) if self.offsets >> i & 1 else a for i, a in enumerate(self.arguments)]
        for at in self.relocations:
            struct.pack_into("<Q", self.image, at, settle(struct.unpack_from("<Q", self.image, at)[0]))
        address, place, length = self.place
        self.kept = {i: bytes(self.image[at : at + size]) for i, (at, size, *_) in enumerate(self.outs) if not at & BEHIND}
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
            *_PLAIN,
        )
        relocations = struct.pack(f"<{len(self.relocations)}I", *self.relocations)
        outs = b"".join(_OUT.pack(settle(out[0]), *out[1:]) for out in self.outs)
        return head + relocations + outs + bytes(self.image)

    def string(self, argument: int) -> bytes:
        """Return the string that an argument points to; empty if it could not be read."""
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
