"""Engine `pour`, the arriving side: the vessel becomes the process whose context has come.

The kernel's pages go where the program knows them, its files are mapped, its threads made, and then engine.pour.refill pours the rest, as
it does into a stub that comes home.
"""

from __future__ import annotations

import itertools
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
"""Bytes of scratch memory: calls, and several paths."""
_PATH_MOST = PAGE
"""Bytes of a path, with its NUL (PATH_MAX)."""


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
        limits = [(number, scratch + half + 16 * place, *wanted) for place, (number, wanted) in enumerate(identity.limits.items())]
        frozen.calls([(SYS.prlimit64, 0, number, 0, at) for number, at, _, _ in limits], scratch, half)
        most = [hard for _, hard in struct.iter_unpack("<QQ", frozen.read(scratch + half, 16 * len(limits)))]
        given = [struct.pack("<QQ", min(soft, top), min(hard, top)) for (_, _, soft, hard), top in zip(limits, most, strict=True)]
        frozen.write(scratch + half, b"".join(given))
        frozen.calls([(SYS.prlimit64, 0, number, at, 0) for number, at, _, _ in limits], scratch, half)
        self._show_program(context, scratch)

    def _show_program(self, context: Context, scratch: int) -> None:
        """Which program it is, and where its parts are."""
        (program,) = self._open([context.identity.program], scratch)
        set_memory_layout(self.frozen, context.memory, scratch, program)
        self.frozen.call(SYS.close, program)

    def _open(self, paths: Sequence[str], scratch: int) -> list[int]:
        """Descriptors of these files, opened as many at a time as there is memory for. Errors: BadContext, OSError."""
        room, flags, first, descriptors = PAGE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0, list[int]()
        texts = [os.fsencode(path) + b"\0" for path in paths]
        if any(len(text) > _PATH_MOST for text in texts):
            raise BadContext("the name of a file is too long")
        while first < len(texts):
            some = texts[first : first + room // many_calls.CALL_BYTES]
            places = [end - len(text) for text, end in zip(some, itertools.accumulate(map(len, some)), strict=True)]
            fitting = [place for place, text in zip(places, some, strict=True) if place + len(text) <= _SCRATCH - room]
            self.frozen.write(scratch + room, b"".join(some[: len(fitting)]))
            calls = [(SYS.openat, _AT_FDCWD, scratch + room + place, flags) for place in fitting]
            descriptors += [check(found, f"openat in {self.frozen.pid}") for found in self.frozen.results(calls, scratch, room)]
            first += len(fitting)
        return descriptors

    def _map_files(self, maps: Sequence[Mapping], scratch: int) -> None:
        calls: list[tuple[int, ...]] = []
        paths = list(dict.fromkeys(m.path for m in maps if m.is_file))
        opened = self._open([path.replace("\\012", "\n") for path in paths], scratch)
        descriptors = dict(zip(paths, opened, strict=True))
        for m in maps:
            if not m.is_file:
                continue
            flags = m.flags | _MAP_FIXED_NOREPLACE
            if m.flags == MAP_PRIVATE and "nr" in m.vmflags:
                flags |= 0x4000  # MAP_NORESERVE
            # Memory that was writable once stays accounted for, and a mapping of its own (VM_ACCOUNT): it is made as it was.
            was_writable = m.private and "ac" in m.vmflags and not m.prot & PROT_WRITE
            prot = m.prot | (PROT_WRITE if was_writable else 0)
            calls.append((SYS.mmap, m.start, m.length, prot, flags, descriptors[m.path], m.offset))
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
