"""The context of a process out of its checkpoint: CRIU's images of it, and what they lack (record.py)."""

from __future__ import annotations

import bisect
import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

from checkpoint.directory import Opened
from checkpoint.errors import BadCheckpoint
from checkpoint.record import CAPABILITIES, Record, Region
from engine.context import registers
from engine.context.capture import limits_in_force
from engine.context.checked import SIGNALS, BadContext
from engine.context.context import ADDRESS_NAMES, Context, Identity, MemoryLayout, Rseq, ThreadContext
from engine.criu import images
from engine.leaving.processor import own_processor
from engine.mappings.mappings import MAP_PRIVATE, MAP_SHARED, PAGE, PROT_READ, SPECIAL, Mapping
from kernel_helpers.common import library
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.pages.pages import PageRange, PageTotals
from kernel_helpers.process.syscalls import Registers

IMAGE_MOST = 256 << 20
"""Bytes of an image other than the one of pages."""
_VSYSCALL, _FILE = 1 << 2, (1 << 6) | (1 << 7)
"""Of a mapping's status, as criu/include/image.h has it."""
_PRESENT = 1 << 2
"""Of a run of pages: they are in the image."""
_UNCATCHABLE = (9, 19)
_LIMITS_OF_MEMORY = (2, 3, 8, 9)
"""RLIMIT_DATA, STACK, MEMLOCK, AS"""
_SS_ONSTACK = 1
_CHUNK = 1 << 20
_LEGACY = 576
"""Bytes of what XSAVE writes before the first component: x87, SSE, header."""


class Pages:
    """The pages of the images. Errors: FarhomeError."""

    def __init__(self, opened: Opened, pid: int) -> None:
        entries = _load(opened, f"pagemap-{pid}.img", "PAGEMAP")
        if not entries:
            raise BadCheckpoint("its memory is missing")
        file = opened.files.get(f"pages-{entries[0].pages_id}.img")
        if file is None:
            raise BadCheckpoint("its memory is missing")
        self._file = file
        self.runs: list[tuple[int, int]] = []
        """address and length in bytes, in order, apart"""
        end = 0
        for entry in entries[1:]:
            start, length = int(entry.vaddr), int(entry.nr_pages) * PAGE
            is_there = not entry.HasField("flags") or bool(entry.flags & _PRESENT)
            if entry.in_parent or not is_there or start < end or start % PAGE or not length or start + length > 1 << 56:
                raise BadCheckpoint("its memory is not whole")
            self.runs.append((start, length))
            end = start + length
        if os.fstat(file).st_size != sum(length for _, length in self.runs):
            raise BadCheckpoint("its memory is not whole")
        self._starts = [start for start, _ in self.runs]
        self.kernels: list[PageRange] = []
        """where the kernel has its own, of which nothing is written"""

    def has_any(self, start: int, end: int) -> bool:
        """Return whether any page lies there."""
        at = bisect.bisect_left(self._starts, end) - 1
        return at >= 0 and self.runs[at][0] + self.runs[at][1] > start

    def write(self, pid: int, ranges: Sequence[PageRange]) -> PageTotals:
        """Into a process. Errors: OSError, BadCheckpoint: pages lie outside of all ranges."""
        ranges = sorted([*ranges, *self.kernels], key=lambda one: one.start)
        starts = [one.start for one in ranges]
        done = offset = 0
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            for start, length in self.runs:
                at, last = start, start + length
                while at < last:
                    index = bisect.bisect_right(starts, at) - 1
                    if index < 0 or ranges[index].end <= at:
                        raise OSError(f"memory at {at:x} belongs to no mapping")
                    size = min(last, ranges[index].end) - at
                    if not ranges[index].discard:
                        self._copy(memory, offset + at - start, at, size)
                        done += size
                    at += size
                offset += length
        finally:
            os.close(memory)
        return PageTotals(len(self.runs), done, 0, 0)

    def _copy(self, memory: int, offset: int, address: int, size: int) -> None:
        while size:
            data = os.pread(self._file, min(size, _CHUNK), offset)
            if not data:
                raise OSError("its memory ends early")
            view = memoryview(data)
            while view:
                written = os.pwrite(memory, view, address)
                view, address = view[written:], address + written
            offset, size = offset + len(data), size - len(data)


def read(opened: Opened, record: Record) -> tuple[Context, Pages]:
    """Everything of the images that a restart needs. Errors: FarhomeError: they are none, or not of this process.

    Names in images are text for protobuf, and bytes where they are no UTF-8, as names of files and threads may be.
    """
    tree = _load(opened, "pstree.img", "PSTREE")
    if len(tree) != 1 or tree[0].pid != record.pid or sorted(tree[0].threads) != sorted(record.tids):
        raise BadCheckpoint("its images are those of another process")
    memory = _one(opened, f"mm-{record.pid}.img", "MM")
    cores = {tid: _one(opened, f"core-{tid}.img", "CORE") for tid in record.tids}
    files = {entry.id: os.fsdecode(entry.reg.name) for entry in _load(opened, "files.img", "FILES") if entry.HasField("reg")}
    leader = cores[record.pid]
    if not leader.HasField("tc"):
        raise BadCheckpoint("its images are not whole")
    pages = Pages(opened, record.pid)
    ordered = [record.pid, *(tid for tid in record.tids if tid != record.pid)]
    try:
        context = Context(
            pid=record.pid,
            maps=_maps(memory, files, _Regions(record.regions), pages.has_any),
            memory=MemoryLayout(
                **{name: int(getattr(memory, f"mm_{name}")) for name in ADDRESS_NAMES},
                auxv=_auxiliary_vector(list(memory.mm_saved_auxv)),
            ),
            identity=Identity(
                program=record.program, uids=_three(record.uids), gids=_three(record.gids), groups=record.groups,
                personality=int(leader.tc.personality),
                limits=limits_in_force(
                    {number: record.limits[number] for number in _LIMITS_OF_MEMORY}, record.capabilities[CAPABILITIES.index("CapEff")]
                ),
            ),
            signal_actions=_actions(leader.tc.sigactions),
            threads=tuple(_thread(tid, cores[tid], leader, record) for tid in ordered),
            pending=tuple(bytes.fromhex(info) for tid, info in record.pending if not tid),
            kernel_code=bytes.fromhex(record.kernel_code),
            barriers=int(leader.tc.membarrier_registration_mask),
        )  # fmt: skip
        pages.kernels = [PageRange(m.start, m.end, discard=True) for m in context.maps if m.special]
        return Context.from_wire(context.to_wire()), pages
    except (BadContext, ValueError, struct.error, UnicodeEncodeError, OverflowError) as error:
        raise BadCheckpoint(f"its images make no sense: {error}") from None


def _load(opened: Opened, name: str, kind: str) -> list[Any]:
    return images.parse(opened.read(name, IMAGE_MOST), kind, name)


def _one(opened: Opened, name: str, kind: str) -> Any:
    entries = _load(opened, name, kind)
    if len(entries) != 1:
        raise BadCheckpoint(f"its {name} is not whole")
    return entries[0]


def _auxiliary_vector(words: list[int]) -> bytes:
    """As /proc/PID/auxv has it: with its end (AT_NULL), which images lack."""
    last = next((at for at in range(0, len(words), 2) if not words[at]), len(words))
    return struct.pack(f"<{last + 2}Q", *words[:last], 0, 0)


def _three(ids: tuple[int, ...]) -> tuple[int, int, int]:
    real, effective, saved = ids
    return real, effective, saved


class _Regions:
    """The addresses in the record."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.all = sorted(regions, key=lambda region: region.start)
        self._starts = [region.start for region in self.all]

    def at(self, address: int) -> Region | None:
        index = bisect.bisect_right(self._starts, address) - 1
        return self.all[index] if index >= 0 and address < self.all[index].end else None


def _maps(memory: Any, files: dict[int, str], regions: _Regions, has_pages: Callable[[int, int], bool]) -> tuple[Mapping, ...]:
    # The images do not distinguish all of the kernel's own.
    found = [
        Mapping(one.start, one.end, PROT_READ, MAP_PRIVATE, 0, one.name, False, frozenset(one.flags.split()))
        for one in regions.all if one.name in SPECIAL
    ]  # fmt: skip
    for vma in memory.vmas:
        start, end = int(vma.start), int(vma.end)
        region = regions.at(start)
        if vma.status & _VSYSCALL or (region is not None and region.name in SPECIAL):
            continue
        is_file = bool(vma.status & _FILE)
        if is_file and vma.shmid not in files:
            raise BadCheckpoint("its images do not name a file that it has mapped")
        kind = int(vma.flags) & (MAP_SHARED | MAP_PRIVATE)
        name = files[vma.shmid] if is_file else region.name if region is not None else ""
        found.append(
            Mapping(
                start=start, end=end, prot=int(vma.prot) & 7, flags=kind, offset=int(vma.pgoff) if is_file else 0,
                path=name, is_file=is_file, vmflags=frozenset(region.flags.split() if region is not None else ()),
                own=PAGE if has_pages(start, end) else 0,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda m: m.start))


def _actions(entries: Sequence[Any]) -> dict[int, bytes]:
    numbers = [number for number in range(1, SIGNALS + 1) if number not in _UNCATCHABLE]
    if len(entries) != len(numbers):
        raise BadCheckpoint("its images do not say what it does on signals")
    return {
        number: struct.pack("<QQQQ", entry.sigaction, entry.flags, entry.restorer, entry.mask)
        for number, entry in zip(numbers, entries, strict=True)
    }


def _thread(tid: int, core: Any, leader: Any, record: Record) -> ThreadContext:
    own, machine = core.thread_core, core.thread_info
    if not (core.HasField("thread_core") and core.HasField("thread_info")):
        raise BadCheckpoint("its images do not have all its threads")
    mask = own.blk_sigset if own.HasField("blk_sigset") else leader.tc.blk_sigset
    comm = own.comm if own.HasField("comm") else leader.tc.comm
    rseq = Rseq()
    if own.HasField("rseq_entry") and own.rseq_entry.rseq_abi_pointer:
        rseq = Rseq(int(own.rseq_entry.rseq_abi_pointer), int(own.rseq_entry.rseq_abi_size), int(own.rseq_entry.signature))
    stack = struct.pack("<QIIQ", own.sas.ss_sp, own.sas.ss_flags & ~_SS_ONSTACK, 0, own.sas.ss_size)
    return ThreadContext(
        tid=tid, registers=_registers(machine.gpregs), extended_state=_extended_state(machine.fpregs), signal_mask=int(mask),
        robust_list=(int(own.futex_rla), int(own.futex_rla_len)), clear_tid=int(machine.clear_tid_addr), rseq=rseq,
        sigaltstack=stack, comm=os.fsencode(comm)[:15],
        pending=tuple(bytes.fromhex(info) for number, info in record.pending if number == tid),
    )  # fmt: skip


def _registers(reported: Any) -> bytes:
    names = {"rbp": "bp", "rbx": "bx", "rax": "ax", "rcx": "cx", "rdx": "dx", "rsi": "si", "rdi": "di", "orig_rax": "orig_ax",
             "rip": "ip", "eflags": "flags", "rsp": "sp"}  # fmt: skip
    registers = Registers()
    for name in (field[0] for field in Registers._fields_):
        setattr(registers, name, int(getattr(reported, names.get(name, name))))
    return bytes(registers)


def _component(bit: int) -> tuple[int, int]:
    """Offset and bytes of a component in what XSAVE writes here; zeros: it is not there."""
    offset, size = ctypes.c_uint32(), ctypes.c_uint32()
    library.load().processor_component(bit, ctypes.byref(offset), ctypes.byref(size))
    return offset.value, size.value


def _extended_state(reported: Any) -> bytes:
    """What XSAVE would write, in the layout of this processor, which the images do not have. Errors: FarhomeError."""
    processor = own_processor()
    area = bytearray(max(processor.xsave, _LEGACY))
    struct.pack_into(
        "<HHHHQQII",
        area,
        0,
        reported.cwd,
        reported.swd,
        reported.twd,
        reported.fop,
        reported.rip,
        reported.rdp,
        reported.mxcsr,
        reported.mxcsr_mask,
    )
    struct.pack_into("<32I", area, 32, *reported.st_space)
    struct.pack_into("<64I", area, 160, *reported.xmm_space)
    struct.pack_into("<Q", area, 464, processor.xcr0)
    used = 3
    if reported.HasField("xsave"):
        used = int(reported.xsave.xstate_bv)
        if used & ~processor.xcr0:
            raise FarhomeError(f"the processor here lacks register sets {used & ~processor.xcr0:#x} that the process uses")
        for name, bit, kind in registers.COMPONENTS:
            values = getattr(reported.xsave, name)
            values = values if isinstance(values, Sequence) or hasattr(values, "__len__") else [values]
            offset, size = _component(bit)
            if not used >> bit & 1 or not values:
                continue
            data = struct.pack(f"<{len(values)}{kind}", *values)
            if offset + size > len(area) or len(data) < size:
                raise BadCheckpoint("its registers are not whole")
            area[offset : offset + size] = data[:size]
    struct.pack_into("<Q", area, 512, used)
    return bytes(area)
