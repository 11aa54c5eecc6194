"""Engine `pour`, the arriving side: the vessel becomes the process whose context has come.

The kernel's pages go where the program knows them, its files are mapped, its threads made, and then engine.pour.refill pours the rest, as
it does into a stub that comes home.
"""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Sequence

from engine.context.capture import scratch_page
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.context.marks import raise_lock_limit
from engine.criu.clone import CLONE_ARGUMENTS, CLONE_OF_THREAD, clone_arguments, clone_task
from engine.mappings.address_space import Maps, exceptional
from engine.mappings.layout import Span, merge, subtract_all
from engine.mappings.mappings import MAP_PRIVATE, PAGE, PROT_WRITE, Mapping, free_address, read_places
from engine.memory import alone
from engine.pour.refill import Refilled, Source, refill
from engine.pour.threads import set_memory_layout
from engine.pour.vessel import Vessel, obstacle
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many, many_calls
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.syscalls import SYS, U64
from kernel_helpers.process.thread import Thread
from kernel_helpers.stream.stream import Connection

_MAP_FIXED_NOREPLACE = 0x100000
_MREMAP_MOVE = 1 | 2  # MAYMOVE | FIXED
_AT_FDCWD = U64 - 99
_SCRATCH = 4 * PAGE
"""Bytes of scratch memory: the longest path."""


class Filling:
    """Of one vessel."""

    def __init__(self, vessel: Vessel) -> None:
        self.vessel = vessel
        self.frozen = vessel.frozen

    def fill(
        self, context: Context, stream: int | Connection | Source, timeout: float = 30.0, filled: Sequence[Span] = (), follows: bool = False
    ) -> Refilled:
        """The vessel becomes the process of `context`; its pages come from `stream`, but those of `filled`, in the areas that were
        made, and, if memory `follows`, what is owed of these. It keeps the user and the capabilities that it has.

        Errors: FarhomeError (it cannot be here), OSError; the vessel is of no use then.
        """
        vessel, frozen = self.vessel, self.frozen
        if subtract_all(filled, merge(vessel.areas)):
            raise BadContext("memory counts as sent that was not")
        for start, end in subtract_all(merge(vessel.areas), filled):
            frozen.call(SYS.munmap, start, end - start)
        maps = read_places(frozen.pid)
        reason = obstacle(context, vessel.kernel_pages)
        if reason is not None:
            raise FarhomeError(reason)
        wanted = [*Maps.of(context.maps).spans, *(one.span for one in context.objects)]
        taken = merge([*((m.start, m.end) for m in maps), *wanted])
        if any(start < vessel.reserved[1] and vessel.reserved[0] < end for start, end in wanted):
            old = vessel.reserved
            vessel.reserve(free_address(taken, PAGE))
            frozen.call(SYS.munmap, old[0], PAGE)
            taken = merge([*taken, vessel.reserved])
        self._move_kernel_pages([m for m in maps if m.special], [m for m in exceptional(context.maps) if m.special], taken)
        taken = merge([*wanted, vessel.reserved])
        with scratch_page(frozen, free_address(taken, _SCRATCH), _SCRATCH) as scratch:
            self._settle(context, scratch)
            objects = {one.name for one in context.objects}
            self._map_files([m for m in exceptional(context.maps) if m.private or m.path not in objects], scratch)
            self._make_threads(context, scratch)
            with alone.unlimited(frozen.pid, context.objects):
                vessel.objects = alone.make(frozen, context.objects, scratch, alone.unreserved(context.maps))
        if context.objects and not callable(stream):
            alone.take(frozen.pid, context.objects, stream, timeout)
        with alone.unlimited(frozen.pid, context.objects):
            return refill(
                frozen, context, stream, [vessel.reserved], timeout, names=vessel.objects, has_run=False, filled=filled,
                taker=vessel.taker, has_all=(lambda: None) if follows else vessel.forgo,  # which costs something for each mapping
            )  # fmt: skip

    def _move_kernel_pages(self, here: Sequence[Mapping], wanted: Sequence[Mapping], taken: Sequence[Span]) -> None:
        """The vdso and its data to where the program knows them: side by side first, as one may lie where another is to go."""
        moves = [(ours.start, theirs.start, ours.length) for ours, theirs in zip(here, wanted, strict=True)]
        if all(source == target for source, target, _ in moves):
            return
        targets = [(m.start, m.end) for m in wanted]
        crossing = any(m.start < end and start < m.end for m in here for start, end in targets)
        if crossing:
            at = free_address(taken, sum(size + PAGE for _, _, size in moves))
            aside = []
            for source, target, size in moves:
                self.frozen.call(SYS.mremap, source, size, size, _MREMAP_MOVE, at)
                aside.append((at, target, size))
                at += size + PAGE
            moves = aside
        for source, target, size in moves:
            self.frozen.call(SYS.mremap, source, size, size, _MREMAP_MOVE, target)

    def _settle(self, context: Context, scratch: int) -> None:
        """What the memory is built upon: personality, limits, and the addresses and program that the kernel shows for it."""
        frozen, identity = self.frozen, context.identity
        frozen.call(SYS.personality, identity.personality)
        raise_lock_limit(frozen.pid, identity.limits.get(resource.RLIMIT_MEMLOCK, (0, 0))[1])
        half = _SCRATCH // 2  # calls, and behind them what these read and write
        limits = [(number, scratch + half + 16 * number, *wanted) for number, wanted in identity.limits.items()]
        frozen.calls([(SYS.prlimit64, 0, number, 0, at) for number, at, _, _ in limits], scratch, half)
        for _, at, soft, hard in limits:
            _, most = struct.unpack("<QQ", frozen.read(at, 16))
            frozen.write(at, struct.pack("<QQ", min(soft, most), min(hard, most)))
        frozen.calls([(SYS.prlimit64, 0, number, at, 0) for number, at, _, _ in limits], scratch, half)
        self._show_program(context, scratch)

    def _show_program(self, context: Context, scratch: int) -> None:
        """Which program it is, and where its parts are."""
        program = self._open(context.identity.program, scratch)
        set_memory_layout(self.frozen, context.memory, scratch, program)
        self.frozen.call(SYS.close, program)

    def _open(self, path: str, scratch: int) -> int:
        self.frozen.write(scratch, os.fsencode(path) + b"\0")
        return self.frozen.call(SYS.openat, _AT_FDCWD, scratch, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _map_files(self, maps: Sequence[Mapping], scratch: int) -> None:
        descriptors: dict[str, int] = {}
        calls: list[tuple[int, ...]] = []
        for m in maps:
            if not m.is_file:
                continue
            path = m.path.replace("\\012", "\n")
            if path not in descriptors:
                descriptors[path] = self._open(path, scratch)
            flags = m.flags | _MAP_FIXED_NOREPLACE
            if m.flags == MAP_PRIVATE and "nr" in m.vmflags:
                flags |= 0x4000  # MAP_NORESERVE
            # Memory that was writable once stays accounted for, and a mapping of its own (VM_ACCOUNT): it is made as it was.
            was_writable = m.private and "ac" in m.vmflags and not m.prot & PROT_WRITE
            prot = m.prot | (PROT_WRITE if was_writable else 0)
            calls.append((SYS.mmap, m.start, m.length, prot, flags, descriptors[path], m.offset))
            if was_writable:
                calls.append((SYS.mprotect, m.start, m.length, m.prot))
        calls += [(SYS.close, descriptor) for descriptor in descriptors.values()]
        self.frozen.calls(calls, scratch, _SCRATCH)

    def _make_threads(self, context: Context, scratch: int) -> None:
        frozen = self.frozen
        listing = f"/proc/{frozen.pid}/task"
        wanted = [thread.tid for thread in context.threads if thread.tid != context.pid]
        if len(wanted) < many.FEW:
            for tid in wanted:
                made = self._make_thread(tid, scratch, listing)
                frozen.threads[made.tid] = made
        else:
            self._make_many(wanted, scratch)
        for thread in frozen.threads.values():
            thread.instruction = frozen.instruction

    def _make_many(self, wanted: Sequence[int], scratch: int) -> None:
        """Threads with these ids, without a stop of the one that makes them. Errors: OSError."""
        frozen, each = self.frozen, CLONE_ARGUMENTS + 8
        at_once = _SCRATCH // (each + many_calls.CALL_BYTES)
        data = scratch + at_once * many_calls.CALL_BYTES
        for first in range(0, len(wanted), at_once):
            some = wanted[first : first + at_once]
            places = [data + index * each for index in range(len(some))]
            frozen.write(data, b"".join(clone_arguments(place, CLONE_OF_THREAD, tid) for place, tid in zip(places, some, strict=True)))
            made = frozen.leader.batch([(SYS.clone3, place, CLONE_ARGUMENTS) for place in places], frozen.batch_code, scratch)
            for result in made:
                check(result, f"clone3 in {frozen.pid}")
            for newborn in many.adopt(frozen.pid, tasks.outer_tids(frozen.pid, made)):
                frozen.threads[newborn.tid] = newborn

    def _make_thread(self, wanted: int, scratch: int, listing: str) -> Thread:
        """A thread with that id. Errors: OSError."""
        frozen = self.frozen
        tid, _ = clone_task(frozen.leader, frozen, scratch, CLONE_OF_THREAD, set(frozen.threads), listing, wanted)
        return Thread.adopt(tid, frozen.pid)


__all__ = ["Filling"]
