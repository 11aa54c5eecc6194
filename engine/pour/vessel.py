"""Engine `pour`, the arriving side: an empty process with the right pid becomes the one whose context comes.

made before the freeze     seized, nothing mapped but the kernel's own pages and one of ours with a system-call instruction
as soon as the context is here   the kernel's pages where the program knows them, its files mapped, its threads made,
                           and then engine.pour.refill pours the rest, as it does into a stub that comes home
"""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Sequence, Set

from engine.context.capture import kernel_code, scratch_page
from engine.context.context import BadContext, Context, Identity
from engine.context.crowd import have_called
from engine.context.marks import raise_lock_limit
from engine.criu.forkcopy import CLONE_ARGUMENTS, CLONE_OF_THREAD, clone_arguments, clone_task
from engine.mappings.address_space import Maps, exceptional
from engine.mappings.layout import Span, merge, subtract_all
from engine.mappings.mappings import MAP_PRIVATE, PAGE, PROT_EXEC, PROT_READ, PROT_WRITE, Mapping, free_address, read_mappings, read_places
from engine.memory import alone
from engine.pour import postcopy
from engine.pour.arrival import NO_CAPABILITIES, no_capabilities, seccomp_suspended
from engine.pour.precopy_room import make_room
from engine.pour.refill import Refilled, Source, drop_pages, refill, set_memory_layout
from kernel_helpers.errors import FarhomeError
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many, refuge, tracing
from kernel_helpers.process.inject import Thread, check
from kernel_helpers.process.seizing import Frozen, find_instruction, seize
from kernel_helpers.process.syscalls import SYS, U64
from kernel_helpers.stream.stream import Connection

_INSTRUCTION = b"\x0f\x05"
_BATCH_AT = 64
"""bytes behind it: where many calls are made at once"""
_RESERVED = 0x3A00_0000_0000
"""Between where the kernel puts position-independent programs (0x55...) and libraries (0x7f...)."""
_MAP_PRIVATE_ANONYMOUS, _MAP_FIXED_NOREPLACE = 0x22, 0x100000
_MREMAP_MOVE = 1 | 2  # MAYMOVE | FIXED
_LOWEST, _HIGHEST = 1 << 16, (1 << 47) - PAGE
_RSEQ_UNREGISTER = 1
_PR_SET_DUMPABLE = 4
_AT_FDCWD = U64 - 99
_ROOM = 4 * PAGE
"""Bytes of scratch memory: the longest path, or all groups but those beyond 4096."""


def obstacle(context: Context, kernel: str) -> str | None:
    """Why a process cannot be poured into a vessel whose kernel_pages are `kernel`, or None."""
    if kernel_pages(context.maps, context.kernel_code) != kernel:
        return "the node that it goes to has another kernel"
    objects = {one.name for one in context.objects}
    for m in exceptional(context.maps):
        if (m.flags == MAP_PRIVATE and not m.is_file) or (not m.private and m.path in objects):
            continue
        if m.is_file and (not m.path.startswith("/") or m.path.startswith(("/memfd:", "/dev/zero")) or m.path.endswith(" (deleted)")):
            return f"it has {m.path or 'memory'} mapped, which has no name to be found by"
        if not m.is_file and not m.private:
            return "it shares memory that has no file"
    return None


def kernel_pages(maps: Sequence[Mapping], code: bytes) -> str:
    """What tells one kernel's own pages in a process from another's: their kinds, sizes and code."""
    return ",".join([f"{m.path}:{m.length}" for m in exceptional(maps) if m.special] + [code.hex()])


class Vessel:
    """The empty process. `frozen`: it, seized by this thread and dying with it."""

    def __init__(self, frozen: Frozen) -> None:
        self.frozen = frozen
        self.reserved: Span = (0, 0)
        self.kernel_pages = ""
        self.room: list[Span] = []
        self.objects: dict[str, str] = {}
        """by identity: what its shared memory is called"""
        self.taker: postcopy.Taker | None = None
        """who guards the room; None: there is none, or the kernel does not let us"""

    @classmethod
    def board(cls, host_pid: int) -> Vessel:
        """Empties the process that waits in a sandbox (sandbox.vessel()). Errors: OSError."""
        return cls.empty(seize(host_pid, tracing.PTRACE_O_EXITKILL))

    @classmethod
    def empty(cls, frozen: Frozen) -> Vessel:
        """Makes a vessel of a process that stands still, of one thread. Errors: OSError."""
        vessel, host_pid = cls(frozen), frozen.pid
        maps = read_mappings(host_pid)
        vessel.kernel_pages = kernel_pages(maps, kernel_code(frozen, maps))
        leader = frozen.leader
        rseq = leader.rseq()
        if rseq.pointer:
            check(leader.call(SYS.rseq, rseq.pointer, rseq.size, _RSEQ_UNREGISTER, rseq.signature), f"rseq in {host_pid}")
        leader.rseq_section = None
        vessel._reserve(_RESERVED)
        special = [(m.start, m.end) for m in maps if m.special]
        for start, end in _between(merge([*special, vessel.reserved])):
            frozen.call(SYS.munmap, start, end - start)
        return vessel

    def _reserve(self, address: int) -> None:
        """A page with the instruction that injected calls are made by."""
        frozen = self.frozen
        frozen.call(SYS.mmap, address, PAGE, PROT_READ | PROT_WRITE, _MAP_PRIVATE_ANONYMOUS | _MAP_FIXED_NOREPLACE, U64, 0)
        frozen.write(address, _INSTRUCTION.ljust(_BATCH_AT, b"\xcc") + refuge.CODE)
        frozen.call(SYS.mprotect, address, PAGE, PROT_READ | PROT_EXEC)
        self.reserved = (address, address + PAGE)
        frozen.instruction = address
        frozen.batch_code = address + _BATCH_AT

    def make_room(self, wanted: Sequence[Span], unreserved: Set[Span] = frozenset()) -> list[Span]:
        """Mappings for pages that come before the context does (engine/pour/precopy.py); returns those that could be made. unreserved: of
        these, those that are not accounted for (MAP_NORESERVE)."""
        made = make_room(self.frozen.leader, wanted, unreserved)
        self.room += made
        userfaultfd = postcopy.userfaultfd_or_none(self.frozen) if made and self.taker is None else -1
        if userfaultfd >= 0:
            self.taker = postcopy.Taker(self.frozen.pid, userfaultfd)
            self.taker.guard(made)
        return made

    def give_back(self, spans: Sequence[Span]) -> None:
        """Pages in the room that are stale. Errors: BadContext, OSError."""
        if subtract_all(spans, merge(self.room)):
            raise BadContext("memory is stale that has not come")
        drop_pages(self.frozen, spans)

    def await_rest(self, areas: Sequence[Span], owed: Sequence[Span]) -> postcopy.Taker:
        """The vessel is filled but for what is owed, in `areas`. Returns who takes that. Errors: BadContext, OSError; the vessel is of no
        use then."""
        if subtract_all(owed, areas) or self.taker is None:
            raise BadContext("memory is to follow that cannot")
        self.taker.owe(self.frozen, owed)
        taker, self.taker = self.taker, None
        return taker

    def fill(self, context: Context, stream: int | Connection | Source, timeout: float = 30.0, filled: Sequence[Span] = ()) -> Refilled:
        """The vessel becomes the process of `context`; its pages come from `stream`, but those of `filled`, in the room that was
        made. It keeps the user and the capabilities that it has.

        Errors: FarhomeError (it cannot be here), OSError; the vessel is of no use then.
        """
        frozen = self.frozen
        if subtract_all(filled, merge(self.room)):
            raise BadContext("memory counts as sent that was not")
        for start, end in subtract_all(merge(self.room), filled):
            frozen.call(SYS.munmap, start, end - start)
        maps = read_places(frozen.pid)
        reason = obstacle(context, self.kernel_pages)
        if reason is not None:
            raise FarhomeError(reason)
        wanted = [*Maps.of(context.maps).spans, *(one.span for one in context.objects)]
        taken = merge([*((m.start, m.end) for m in maps), *wanted])
        if any(start < self.reserved[1] and self.reserved[0] < end for start, end in wanted):
            old = self.reserved
            self._reserve(free_address(taken, PAGE))
            frozen.call(SYS.munmap, old[0], PAGE)
            taken = merge([*taken, self.reserved])
        self._move_kernel_pages([m for m in maps if m.special], [m for m in exceptional(context.maps) if m.special], taken)
        taken = merge([*wanted, self.reserved])
        with scratch_page(frozen, free_address(taken, _ROOM), _ROOM) as scratch:
            self._settle(context, scratch)
            objects = {one.name for one in context.objects}
            self._map_files([m for m in exceptional(context.maps) if m.private or m.path not in objects], scratch)
            self._make_threads(context, scratch)
            with alone.unlimited(frozen.pid, context.objects):
                self.objects = alone.make(frozen, context.objects, scratch, alone.unreserved(context.maps))
        if context.objects and not callable(stream):
            alone.take(frozen.pid, context.objects, stream, timeout)
        with alone.unlimited(frozen.pid, context.objects):
            return refill(
                frozen, context, stream, [self.reserved], timeout, names=self.objects, has_run=False, filled=filled, taker=self.taker
            )

    def leave(self) -> Frozen:
        """Takes our page out of the filled vessel, which is the process now."""
        self.forgo()
        self.frozen.instruction, self.frozen.batch_code = find_instruction(self.frozen.pid), 0
        self.frozen.call(SYS.munmap, self.reserved[0], PAGE)
        return self.frozen

    def forgo(self) -> None:
        """Nothing follows it."""
        if self.taker is not None:
            self.taker.close()
            self.taker = None

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
        for number, (soft, hard) in identity.limits.items():
            frozen.call(SYS.prlimit64, 0, number, 0, scratch)
            _, most = struct.unpack("<QQ", frozen.read(scratch, 16))
            frozen.write(scratch, struct.pack("<QQ", min(soft, most), min(hard, most)))
            frozen.call(SYS.prlimit64, 0, number, scratch, 0)
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
            self.frozen.call(SYS.mmap, m.start, m.length, prot, flags, descriptors[path], m.offset)
            if was_writable:
                self.frozen.call(SYS.mprotect, m.start, m.length, m.prot)
        for descriptor in descriptors.values():
            self.frozen.call(SYS.close, descriptor)

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
        at_once = _ROOM // (each + many.CALL_ROOM)
        data = scratch + at_once * many.CALL_ROOM
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


def become(frozen: Frozen, identity: Identity) -> None:
    """Every thread of a filled vessel gets the user and groups of the process, and loses all capabilities that it has on this node.
    Errors: OSError."""
    with seccomp_suspended(frozen), frozen.scratch(_ROOM) as scratch:
        if 4 * len(identity.groups) > _ROOM:
            raise BadContext(f"{len(identity.groups)} groups are too many")
        frozen.write(scratch, struct.pack(f"<{len(identity.groups)}I", *identity.groups))
        calls = [(SYS.setgroups, len(identity.groups), scratch), (SYS.setresgid, *identity.gids), (SYS.setresuid, *identity.uids)]
        threads = list(frozen.threads.values())
        given = [NO_CAPABILITIES] * len(threads)
        have_called(frozen, threads, lambda _, address: [*calls, *no_capabilities(address)], 5, given, alike=True)
        frozen.call(SYS.prctl, _PR_SET_DUMPABLE, 1, 0, 0, 0)


def _between(spans: Sequence[Span]) -> list[Span]:
    """All of user space but these (sorted, disjoint)."""
    edges = [_LOWEST, *(edge for span in spans for edge in span), _HIGHEST]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


__all__ = ["Vessel", "become", "kernel_pages", "obstacle"]
