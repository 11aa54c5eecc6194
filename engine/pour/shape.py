"""Mappings of a stub become those of the process, without and with pages, and what they were again."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.context.capture import NO_LIMIT
from engine.context.context import Context
from engine.context.marks import MLOCK_ONFAULT
from engine.mappings.address_space import read_mappings_quickly
from engine.mappings.layout import Plan, Span, subtract
from engine.mappings.mappings import PAGE, PROT_READ, Mapping, free_address
from engine.pour.threads import unregister_rseq
from kernel_helpers.process import batches
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

_MAP_PRIVATE_ANONYMOUS = 0x22
_MAP_DROPPABLE_ANONYMOUS = 0x28
_MAP_GROWSDOWN = 0x100
_MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000
_MREMAP_MOVE = 1 | 2  # MAYMOVE | FIXED
_MREMAP_DONTUNMAP = 4
_MADV_DONTNEED, _MADV_DONTNEED_LOCKED = 4, 24
_MADV_THAT_MATTERS = frozenset({10, 18})  # DONTFORK, WIPEONFORK: the others are advice
_PR_SET_VMA, _PR_SET_VMA_ANON_NAME = 0x53564D41, 0
_SCRATCH = 4 * PAGE
_SCRATCH_MOST = 64 * PAGE
_KEPT_MOST = 4 << 20  # bytes; arguments and environment are at most this, by default


@dataclass(frozen=True)
class Kept:
    """A little memory that the stub has besides its reserved pages (what ps shows), and what is in it."""

    mapping: Mapping
    content: bytes


def shape_mappings(stub: Frozen, plan: Plan, maps: Sequence[Mapping], scratch: Span, taken: Sequence[Span], notes: list[str]) -> None:
    """Mappings as wanted, without a page yet. scratch: memory that can be used."""
    room = scratch[0], scratch[1] - scratch[0]
    moves = []
    aside = sum(d.length + d.grow + PAGE for d in plan.duplicates)
    at = free_address(taken, aside) if aside else 0
    for d in plan.duplicates:
        # DONTUNMAP leaves the source mapped, so this is a second mapping of the same open file, without a descriptor and
        # whatever has become of the name. Not straight to the destination if that may be another one's source.
        end = d.destination + d.length
        if not d.grow and not any(m.start < end and d.destination < m.end for m in maps):
            stub.call(SYS.mremap, d.source, d.length, d.length, _MREMAP_MOVE | _MREMAP_DONTUNMAP, d.destination)
            continue
        stub.call(SYS.mremap, d.source, d.length, d.length, _MREMAP_MOVE | _MREMAP_DONTUNMAP, at)
        if d.grow:
            stub.call(SYS.mremap, at, d.length, d.length + d.grow, 0)
            stub.call(SYS.munmap, at, d.length)
            moves.append((at + d.length, d.grow, d.destination))
        else:
            moves.append((at, d.length, d.destination))
        at += d.length + d.grow + PAGE
    stub.calls([(SYS.munmap, start, end - start) for start, end in plan.remove], *room)
    for source, length, destination in moves:
        stub.call(SYS.mremap, source, length, length, _MREMAP_MOVE, destination)
    drop_pages(stub, plan.stale)
    stub.calls([call_to_map(m) for m in plan.create], *room)
    if plan.plain is not None:
        batches.make_all(stub, plan.plain.create, *room)
    stub.calls([(SYS.mprotect, start, end - start, prot) for start, end, prot in plan.protect], *room)
    advised = [(SYS.madvise, start, end - start, advice) for start, end, advice in plan.advise]
    for (_, start, _, advice), result in zip(advised, stub.results(advised, *room), strict=True):
        try:
            check(result, f"madvise at {start:x} in {stub.pid}")
        except OSError as error:
            if advice in _MADV_THAT_MATTERS:
                raise
            notes.append(str(error))
    if plan.plain is not None:
        batches.make(stub, plan.plain.advise, *room)
        for call, failure in batches.failed(stub, plan.plain.advise):
            if call.arguments[2] in _MADV_THAT_MATTERS:
                raise failure
            notes.append(str(failure))


def room_for(plan: Plan, context: Context) -> int:
    """Return bytes of scratch memory: more where many calls are made, unless the process may be at a limit of its memory."""
    count = plan.plain.longest if plan.plain is not None else 0
    limits = (context.identity.limits.get(number, (NO_LIMIT,))[0] for number in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if context.future_locks or any(limit != NO_LIMIT for limit in limits):
        return _SCRATCH
    return max(_SCRATCH, min(count * batches.SIZE, _SCRATCH_MOST) // PAGE * PAGE)


def finish_mappings(stub: Frozen, plan: Plan, room: Span, notes: list[str]) -> None:
    scratch, size = room[0], room[1] - room[0]
    stub.calls([(SYS.mprotect, start, end - start, prot) for start, end, prot in plan.protect_filled], scratch, size)
    if plan.plain is not None:
        batches.make_all(stub, plan.plain.protect, scratch, size)
        batches.make(stub, plan.plain.lock, scratch, size)
        notes += [str(error) for _, error in batches.failed(stub, plan.plain.lock)]
    for start, end, on_fault in plan.lock:
        try:
            stub.call(SYS.mlock2, start, end - start, MLOCK_ONFAULT if on_fault else 0)
        except OSError as error:
            notes.append(str(error))
    for m in plan.create:
        if m.name:
            stub.write(scratch, m.name.encode("utf-8", "surrogateescape") + b"\0")
            with suppress(OSError):  # a kernel without CONFIG_ANON_VMA_NAME
                stub.call(SYS.prctl, _PR_SET_VMA, _PR_SET_VMA_ANON_NAME, m.start, m.length, scratch)


def drop_pages(stub: Frozen, spans: Sequence[Span]) -> None:
    """A stopped process gives pages of its own up (MADV_DONTNEED). Errors: OSError."""
    for start, end in spans:
        try:
            stub.call(SYS.madvise, start, end - start, _MADV_DONTNEED_LOCKED)
        except OSError:
            stub.call(SYS.madvise, start, end - start, _MADV_DONTNEED)


def keep_own_memory(stub: Frozen, maps: Sequence[Mapping], reserved: Sequence[Span]) -> list[Kept]:
    """Return the stub's own little memory; a big one was not given up and is not worth a copy."""
    own = [m for m in maps if not m.is_file and not m.special and not any(start <= m.start < end for start, end in reserved)]
    return [Kept(m, stub.read(m.start, m.length)) for m in own if m.prot & PROT_READ and m.length <= _KEPT_MOST]


def empty_stub(stub: Frozen, created: Sequence[Span], kept: Sequence[Kept], reserved: Sequence[Span]) -> None:
    """The stub as before: without memory but what it kept, and without a restartable sequence that the kernel would
    look for there."""
    for thread in stub.threads.values():
        unregister_rseq(thread)
    for start, end in created:
        stub.call(SYS.munmap, start, end - start)
    files = [(m.start, m.end) for m in read_mappings_quickly(stub.pid) if m.is_file and m.private and m.own]
    drop_pages(stub, [part for span in files for part in subtract(span, reserved)])
    for item in kept:
        # Still there when it failed before anything was unmapped.
        stub.call(SYS.munmap, item.mapping.start, item.mapping.length)
        stub.call(*call_to_map(item.mapping))
        stub.write_forced(item.mapping.start, item.content)


def call_to_map(m: Mapping) -> tuple[int, ...]:
    """The call that makes it."""
    flags = (_MAP_DROPPABLE_ANONYMOUS if "dp" in m.vmflags else _MAP_PRIVATE_ANONYMOUS) | _MAP_FIXED_NOREPLACE
    flags |= _MAP_GROWSDOWN if "gd" in m.vmflags else 0
    flags |= _MAP_NORESERVE if "nr" in m.vmflags else 0
    return SYS.mmap, m.start, m.length, m.prot, flags, -1, 0
