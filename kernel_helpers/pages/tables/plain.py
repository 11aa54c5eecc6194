"""Python face of plain.c and plain_calls.c: tables of plain mappings, private memory that has no file and no name."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_helpers.common import library
from kernel_helpers.pages.pages import Span
from kernel_helpers.process.batches import Calls, as_calls

FLAGS = ("gd", "nr", "ac", "dc", "dd", "wf", "hg", "nh", "mg", "sr", "rr", "lo", "lf", "dp")
"""VmFlags that `kind` has, behind the three bits of PROT_*, in the order of plain.h."""
BIT = {name: 1 << 3 + number for number, name in enumerate(FLAGS)}
WATCHED = 1 << 31
_RECORD = struct.Struct("<3Q2I")
SIZE = _RECORD.size


class _Plan(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("create", "protect", "advise", "lock", "spans", "left")],
        *[(name, ctypes.c_uint64) for name in ("creates", "protects", "advises", "locks", "span_count", "lefts")],
    ]


@functools.cache
def _native() -> ctypes.CDLL:
    i, pointer, size, u32, u64 = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64
    return library.functions(
        ("farhome_plain_take", size, [pointer, size, pointer, size, pointer]),
        ("farhome_plain_own", i, [i, pointer, size]),
        ("farhome_plain_large", size, [pointer, size, pointer]),
        ("farhome_plain_spans", size, [pointer, size, u32, u32, i, pointer]),
        ("farhome_plain_unfit", size, [pointer, size]),
        ("farhome_plain_forget", None, [pointer, size]),
        ("farhome_plain_at", size, [pointer, size, u64]),
        ("farhome_plain_plan", None, [pointer, size, pointer, size, pointer, size, pointer]),
    )


@dataclass(frozen=True)
class Plan:
    """How mappings are made: calls that create them, that protect them when their pages are there, advise and lock; where those are which
    these calls make, those that touch as one; and which (by number) the caller has to see to."""

    create: Calls
    protect: Calls
    advise: Calls
    lock: Calls
    spans: tuple[Span, ...]
    left: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Calls that are made one after the other, at most."""
        return max(len(calls) for calls in (self.create, self.protect, self.advise, self.lock))


class Table:
    """Plain mappings, sorted and apart."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._data = ctypes.create_string_buffer(max(1, count * SIZE))

    @classmethod
    def of(cls, records: Sequence[tuple[int, int, int, int]]) -> Table:
        """Start, end, own and kind of each."""
        table = cls(len(records))
        for number, record in enumerate(records):
            _RECORD.pack_into(table._data, number * SIZE, *record, 0)
        return table

    @classmethod
    def from_bytes(cls, data: bytes) -> Table:
        """As bytes() gives them, of which nothing is believed. Errors: ValueError: no such table."""
        if len(data) % SIZE:
            raise ValueError("a table of mappings has another size")
        table = cls(len(data) // SIZE)
        ctypes.memmove(table._data, data, len(data))
        unfit = _native().farhome_plain_unfit(table._data, len(table))
        if unfit < len(table):
            start, end, own, kind = table[unfit]
            raise ValueError(f"mapping {start:x}-{end:x} (kind {kind:#x}, {own} bytes of its own) cannot be, or is out of order")
        return table

    @classmethod
    def taken(cls, vmas: ctypes.Array[ctypes.c_uint64], count: int, bits: Sequence[tuple[int, int]]) -> Table:
        """Return those of `count` mappings (vmas.c) that are plain; the others stay, at the beginning. bits: pairs of a bit of the kernel's
        flags and one of `kind`."""
        table = cls(count)
        pairs = (ctypes.c_uint8 * (2 * len(bits)))(*[number for pair in bits for number in pair])
        table._count = _native().farhome_plain_take(vmas, count, pairs, len(bits), table._data)
        return table

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        for start, end, own, kind, _ in _RECORD.iter_unpack(memoryview(self._data)[: self._count * SIZE]):
            yield start, end, own, kind

    def __getitem__(self, number: int) -> tuple[int, int, int, int]:
        start, end, own, kind, _ = _RECORD.unpack_from(self._data, number * SIZE)
        return start, end, own, kind

    def __bytes__(self) -> bytes:
        """For another node, where nothing is watched."""
        copied = ctypes.create_string_buffer(self._data.raw, len(self._data))
        _native().farhome_plain_forget(copied, self._count)
        return copied.raw[: self._count * SIZE]

    def count_own(self, pid: int) -> bool:
        """`own` becomes a page where the process has pages, else nothing. Returns whether those that are not large() may have guards.
        Errors: OSError."""
        if not self._count:
            return False
        result = _native().farhome_plain_own(pid, self._data, self._count)
        if result < 0:
            raise OSError(-result, f"pages of process {pid}")
        return bool(result)

    def large(self) -> list[Span]:
        """Return where those are that have more than a few pages; those that touch as one."""
        found = (ctypes.c_uint64 * (2 * self._count))()
        return _pairs(found, _native().farhome_plain_large(self._data, self._count, found))

    def spans(self, having: int = 0, lacking: int = 0, own: bool = False) -> list[Span]:
        """Return where those are whose kind has one of the bits `having` (0: any), and none of `lacking`, and, with `own`, that have pages;
        those that touch as one."""
        found = (ctypes.c_uint64 * (2 * self._count))()
        count = _native().farhome_plain_spans(self._data, self._count, having, lacking, own, found)
        return _pairs(found, count)

    def at(self, address: int) -> int:
        """Number of the first that ends behind the address."""
        return int(_native().farhome_plain_at(self._data, self._count, address))

    def plan(self, filled: Sequence[Span], apart: Sequence[Span]) -> Plan:
        """Return how they are made. filled (sorted, apart): memory that is there, readable and writable, with its pages; apart (as sorted):
        where the caller has to look at each."""
        plan, places = _Plan(), (_spans(filled), len(filled), _spans(apart), len(apart))
        _native().farhome_plain_plan(self._data, self._count, *places, ctypes.byref(plan))  # counts
        counts = (plan.creates, plan.protects, plan.advises, plan.locks)
        create, protect, advise, lock = map(as_calls, counts)
        spans, left = (ctypes.c_uint64 * (2 * plan.span_count))(), (ctypes.c_uint32 * plan.lefts)()
        plan.create, plan.protect, plan.advise, plan.lock, plan.spans, plan.left = map(
            ctypes.addressof, (create, protect, advise, lock, spans, left)
        )
        _native().farhome_plain_plan(self._data, self._count, *places, ctypes.byref(plan))
        return Plan(create, protect, advise, lock, tuple(_pairs(spans, plan.span_count)), tuple(left))


def _spans(spans: Sequence[Span]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * (2 * len(spans)))(*[edge for span in spans for edge in span])


def _pairs(numbers: ctypes.Array[ctypes.c_uint64], count: int) -> list[Span]:
    return list(zip(numbers[0 : 2 * count : 2], numbers[1 : 2 * count : 2], strict=True))
