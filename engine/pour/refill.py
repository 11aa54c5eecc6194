"""Turning a stub back into the process that it was: mappings, pages, signal actions, threads.

Independent of where the context comes from; a prepared empty process takes the place of the stub in the other
direction.
"""

from __future__ import annotations

import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dictionary
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from engine.context import altstack
from engine.context.capture import NO_LIMIT, inner_tid, inner_tids, kernel_code, memory_layout, scratch_page
from engine.context.context import (
    ACTION_BYTES,
    SIGNALS,
    BadContext,
    Context,
    MemoryLayout,
    Rseq,
    ThreadContext,
    fit_extended_state,
)  # fmt: skip
from engine.context.crowd import call_in, have_called
from engine.context.marks import MLOCK_ONFAULT, MarksMissing, check_locks, install, lock_future, remove
from engine.mappings.address_space import Maps, exceptional, read_mappings_quickly, renamed
from engine.mappings.layout import LayoutImpossible, Plan, Span, make_plan, merge, subtract
from engine.mappings.mappings import PAGE, PROT_READ, Mapping, free_address, read_places
from engine.pour.postcopy import Taker
from engine.signals.queued import Queued
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.pages.pages import PageRange, PageTotals, receive_own_pages
from kernel_helpers.process import batches, many
from kernel_helpers.process.inject import Thread, check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import ERESTART_RESTARTBLOCK, SYS, U64, Registers
from kernel_helpers.process.tracing import signal_state
from kernel_helpers.stream.stream import Connection, Sealed

_MAP_PRIVATE_ANONYMOUS = 0x22
_MAP_DROPPABLE_ANONYMOUS = 0x28
_MAP_GROWSDOWN = 0x100
_MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000
_MREMAP_MOVE = 1 | 2  # MAYMOVE | FIXED
_MREMAP_DONTUNMAP = 4
_MADV_DONTNEED, _MADV_DONTNEED_LOCKED = 4, 24
_MADV_THAT_MATTERS = frozenset({10, 18})  # DONTFORK, WIPEONFORK: the others are advice
_PR_SET_NAME = 15
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_PR_SET_VMA, _PR_SET_VMA_ANON_NAME = 0x53564D41, 0
_RSEQ_UNREGISTER = 1
_SCRATCH = 4 * PAGE
_SCRATCH_MOST = 64 * PAGE
_KEPT_MOST = 4 << 20  # bytes; arguments and environment are at most this, by default
NO_DESCRIPTOR = (1 << 32) - 1

Source = Callable[[int, Sequence[PageRange]], PageTotals]
"""Writes pages into a process (its pid), and nowhere but in those ranges. Errors: OSError."""


class RefillFailed(FarhomeError):
    """The stub could not be refilled. stub_usable: it is as it was and may go on as a stub; otherwise it has lost
    something and can only be killed. again: nothing is wrong, only the moment was; let the guest run a little and
    try again."""

    def __init__(self, reason: str, stub_usable: bool, again: bool = False) -> None:
        super().__init__(reason)
        self.stub_usable = stub_usable
        self.again = again


@dataclass(frozen=True)
class _Kept:
    """A little memory that the stub has besides its reserved pages (what ps shows), and what is in it."""

    mapping: Mapping
    content: bytes


@dataclass
class Refilled:
    """A stub that holds the context; nothing of it runs yet. Registers and masks are set in stub.threads: letting go
    of the stub lets the program go on. undo() makes it the stub that it was, as long as it has not run.

    notes: what could not be set and changes no result (advice). seconds: by step.
    """

    stub: Frozen
    created: tuple[Span, ...]
    context: Context
    pages: PageTotals
    notes: list[str]
    seconds: dict[str, float]
    _before: dict[int, tuple[Registers, int]] = field(repr=False, default_factory=dict)
    _queued: Queued | None = None
    _kept: list[_Kept] = field(repr=False, default_factory=list)
    _reserved: Sequence[Span] = ()

    def undo(self) -> None:
        """Gives memory up again and makes the registers the stub's. Errors: RefillFailed, the stub being lost."""
        try:
            for tid, (registers, mask) in self._before.items():
                thread = self.stub.threads[tid]
                thread.registers, thread.signal_mask = registers, mask
            _empty(self.stub, self.created, self._kept, self._reserved)
            if self._queued is not None:
                self._queued.undo()
        except OSError as error:
            raise RefillFailed(f"the stub could not be emptied again: {sentence(error)}", stub_usable=False) from error


def refill(
    stub: Frozen,
    context: Context,
    stream: int | Connection | Source,
    reserved: Sequence[Span],
    timeout: float = 30.0,
    names: Dictionary[str, str] | None = None,
    has_run: bool = True,
    filled: Sequence[Span] = (),
    taker: Taker | None = None,
) -> Refilled:
    """Puts context into the stub and takes its pages from the socket `stream` (what capture.send_pages sends), not a byte
    more; or has `stream` write them.

    stub: all threads stopped, stub.instruction in one of `reserved`, the ranges that the stub has for itself and that
    the caller removes afterwards. The stub keeps its file mappings, all other memory of it counts as given up. When
    this returns, everything that can fail has been done. timeout: seconds without progress of the stream. names: by identity
    (see Mapping), how the context names files that the stub maps, whatever they are called by now. has_run: else its signals have the
    actions that a program begins with. filled: what is there already (engine/pour/precopy.py); taker: who guards it.

    Errors: layout.ReservedOverlap (the caller moves the reserved range and tries again), RefillFailed.
    """
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    reserved = sorted(reserved)
    try:
        maps = renamed(read_mappings_quickly(stub.pid) if has_run else read_places(stub.pid), names or {})
        plan = make_plan(maps, context.maps, reserved, filled)
        if any(start <= stub.instruction < end for start, end in plan.remove):
            raise LayoutImpossible("the stub's system-call instruction is not in its reserved pages")
        threads = _match_threads(stub, context)
        mine = [threads[thread.tid] for thread in context.threads]
        ((template, _, _),), robust = many.states(mine[:1]), many.robust_lists(mine)
        states = [fit_extended_state(thread.extended_state, template) for thread in context.threads]
        _check_kernel_code(stub, maps, context)
        kept = _keep(stub, maps, merge([*reserved, *filled]))
    except (BadContext, OSError) as error:
        raise RefillFailed(sentence(error), stub_usable=not isinstance(error, ProcessLookupError)) from error
    except LayoutImpossible as error:
        if type(error) is not LayoutImpossible:
            raise
        raise RefillFailed(str(error), stub_usable=True) from error
    notes: list[str] = []
    queued = Queued(stub, threads)
    created = (*plan.created, *filled)
    before = {tid: (t.registers.copy(), t.signal_mask) for tid, t in stub.threads.items()}
    taken = [*Maps.of(maps).spans, *Maps.of(context.maps).spans, *reserved]
    size = _room_for(plan, context)
    try:
        with scratch_page(stub, free_address(taken, size), size) as scratch:
            room = (scratch, scratch + size)
            if has_run:
                remove(stub, [(m.start, m.end) for m in maps if m.is_file], room)
            _shape(stub, plan, maps, room, [*taken, room], notes)
            started = _lap(seconds, "mappings", started)
            if isinstance(stream, (int, socket.socket, Sealed)):
                pages = _from_socket(stub.pid, plan.pages, stream, timeout, taker)
            else:
                pages = stream(stub.pid, plan.pages)
            drop_pages(stub, pages.gone)
            started = _lap(seconds, "pages", started)
            install(stub, context.guards, context.maps, room)
            _finish_mappings(stub, plan, room, notes)
            if not has_run:
                check_locks(stub.pid, context)
            if memory_layout(stub.pid, stub.call(SYS.brk, 0)) != context.memory:
                set_memory_layout(stub, context.memory, scratch)
            _set_signal_actions(stub, context, scratch, has_run)
            for bit in range(context.barriers.bit_length()):
                if context.barriers >> bit & 1:
                    stub.call(SYS.membarrier, 1 << bit, 0, 0)
            _set_threads(stub, mine, context.threads, robust, room)
            many.set_states(mine, states)
            queued.put(context, scratch)
        lock_future(stub, context.future_locks)
    except (MarksMissing, OSError) as error:
        reason = f"the process could not be put back together: {sentence(error)}"
        try:
            _empty(stub, created, kept, reserved)
            queued.undo()
        except OSError as second:
            raise RefillFailed(f"{reason}; and the stub is lost: {sentence(second)}", stub_usable=False) from error
        raise RefillFailed(reason, stub_usable=not isinstance(error, ProcessLookupError)) from error
    for thread_context in context.threads:
        _load(threads[thread_context.tid], thread_context)
    _lap(seconds, "state", started)
    return Refilled(stub, created, context, pages, notes, seconds, before, queued, kept, reserved)


def _from_socket(pid: int, ranges: Sequence[PageRange], stream: int | Connection, timeout: float, taker: Taker | None) -> PageTotals:
    missing = [PageRange(start, end, discard=discard, missing=taker is not None) for start, end, discard in _joined(ranges)]
    with taker.descriptor() if taker is not None else nullcontext(-1) as userfaultfd:
        return receive_own_pages(pid, missing, stream, timeout, userfaultfd=userfaultfd)


def _joined(ranges: Sequence[PageRange]) -> list[tuple[int, int, bool]]:
    """Start, end and `discard` of ranges (sorted), those that touch as one: where pages may come in a row."""
    joined: list[tuple[int, int, bool]] = []
    for pages in ranges:
        if joined and joined[-1][1] == pages.start and joined[-1][2] == pages.discard:
            joined[-1] = joined[-1][0], pages.end, pages.discard
        else:
            joined.append((pages.start, pages.end, pages.discard))
    return joined


def _lap(seconds: dict[str, float], step: str, started: float) -> float:
    now = time.perf_counter()
    seconds[step] = now - started
    return now


def _match_threads(stub: Frozen, context: Context) -> dict[int, Thread]:
    threads = {tid: stub.threads[ours] for ours, tid in inner_tids(stub.pid, list(stub.threads)).items()}
    wanted = {thread.tid for thread in context.threads}
    if inner_tid(stub.pid, stub.pid) != context.pid:
        raise BadContext(f"the context is that of process {context.pid}, not of {inner_tid(stub.pid, stub.pid)}")
    if threads.keys() != wanted:
        raise BadContext(f"the stub has threads {sorted(threads)}, the context {sorted(wanted)}")
    return threads


def _check_kernel_code(stub: Frozen, maps: Sequence[Mapping], context: Context) -> None:
    """No thread may stand in code that this kernel maps otherwise (the vdso of another build)."""
    special = [m for m in exceptional(maps) if m.special]
    foreign = [m for m in exceptional(context.maps) if m.special]
    same = (
        kernel_code(stub, maps) == context.kernel_code
        and special
        and {(m.start, m.end) for m in special if m.path == "[vdso]"} == {(m.start, m.end) for m in foreign if m.path == "[vdso]"}
    )
    if same:
        return
    for thread in context.threads:
        rip = Registers.from_buffer_copy(thread.registers).rip
        if any(m.start <= rip < m.end for m in (*special, *foreign)):
            raise RefillFailed(f"thread {thread.tid} is inside the other kernel's code", stub_usable=True, again=True)


def _shape(stub: Frozen, plan: Plan, maps: Sequence[Mapping], scratch: Span, taken: Sequence[Span], notes: list[str]) -> None:
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
    stub.calls([_creation(m) for m in plan.create], *room)
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


def _room_for(plan: Plan, context: Context) -> int:
    """Bytes of scratch memory: more where many calls are made, unless the process may be at a limit of its memory."""
    count = plan.plain.longest if plan.plain is not None else 0
    limits = (context.identity.limits.get(number, (NO_LIMIT,))[0] for number in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if context.future_locks or any(limit != NO_LIMIT for limit in limits):
        return _SCRATCH
    return max(_SCRATCH, min(count * batches.SIZE, _SCRATCH_MOST) // PAGE * PAGE)


def _finish_mappings(stub: Frozen, plan: Plan, room: Span, notes: list[str]) -> None:
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


def _keep(stub: Frozen, maps: Sequence[Mapping], reserved: Sequence[Span]) -> list[_Kept]:
    """The stub's own little memory; a big one was not given up and is not worth a copy."""
    own = [m for m in maps if not m.is_file and not m.special and not any(start <= m.start < end for start, end in reserved)]
    return [_Kept(m, stub.read(m.start, m.length)) for m in own if m.prot & PROT_READ and m.length <= _KEPT_MOST]


def _empty(stub: Frozen, created: Sequence[Span], kept: Sequence[_Kept], reserved: Sequence[Span]) -> None:
    """The stub as before: without memory but what it kept, and without a restartable sequence that the kernel would
    look for there."""
    for thread in stub.threads.values():
        _unregister_rseq(thread)
    for start, end in created:
        stub.call(SYS.munmap, start, end - start)
    files = [(m.start, m.end) for m in read_mappings_quickly(stub.pid) if m.is_file and m.private and m.own]
    drop_pages(stub, [part for span in files for part in subtract(span, reserved)])
    for item in kept:
        # Still there when it failed before anything was unmapped.
        stub.call(SYS.munmap, item.mapping.start, item.mapping.length)
        stub.call(*_creation(item.mapping))
        stub.write_forced(item.mapping.start, item.content)


def _creation(m: Mapping) -> tuple[int, ...]:
    """The call that makes it."""
    flags = (_MAP_DROPPABLE_ANONYMOUS if "dp" in m.vmflags else _MAP_PRIVATE_ANONYMOUS) | _MAP_FIXED_NOREPLACE
    flags |= _MAP_GROWSDOWN if "gd" in m.vmflags else 0
    flags |= _MAP_NORESERVE if "nr" in m.vmflags else 0
    return SYS.mmap, m.start, m.length, m.prot, flags, -1, 0


def set_memory_layout(stub: Frozen, wanted: MemoryLayout, scratch: int, program: int = NO_DESCRIPTOR) -> None:
    """What the kernel shows of a process's memory, and with `program`, a descriptor in it, what its program is; without one it needs
    no privilege. `scratch`: writable memory of two pages. Errors: OSError."""
    # struct prctl_mm_map
    request = struct.pack("<11Q", *wanted.addresses()) + struct.pack("<QII", scratch + 512, len(wanted.auxv), program)
    stub.write(scratch, request)
    stub.write(scratch + 512, wanted.auxv)
    stub.call(SYS.prctl, _PR_SET_MM, _PR_SET_MM_MAP, scratch, len(request), 0)


def _set_signal_actions(stub: Frozen, context: Context, scratch: int, has_run: bool) -> None:
    table = bytearray(SIGNALS * ACTION_BYTES)
    for number, action in context.signal_actions.items():
        table[(number - 1) * ACTION_BYTES : number * ACTION_BYTES] = action
    stub.write(scratch, bytes(table))
    state = signal_state(stub.pid, stub.pid)
    for number, action in context.signal_actions.items():
        is_default = not any(action) and not (state.ignored | state.caught) >> number - 1 & 1
        if is_default and (not has_run or number == signal.SIGCONT):
            continue  # it is so already; and what continues a process, and waits, would go (signal.c, do_sigaction)
        stub.call(SYS.rt_sigaction, number, scratch + (number - 1) * ACTION_BYTES, 0, 8)


def _unregister_rseq(thread: Thread) -> None:
    now = thread.rseq()
    if now.pointer:
        result = thread.call(SYS.rseq, now.pointer, now.size, _RSEQ_UNREGISTER, now.signature)
        check(result, f"unregistering rseq in {thread.tid}")


def _set_threads(
    stub: Frozen, threads: Sequence[Thread], wanted: Sequence[ThreadContext], robust: Sequence[tuple[int, int]], room: Span
) -> None:
    """What of threads is set from within. robust: the lists that they have; room: memory that can be used."""
    registered = many.rseqs(threads)

    def calls(index: int, address: int) -> list[tuple[int, ...]]:
        thread, now = wanted[index], registered[index]
        made: list[tuple[int, ...]] = [(SYS.set_tid_address, thread.clear_tid)]  # answers the tid
        if robust[index] != thread.robust_list:
            made.append((SYS.set_robust_list, *thread.robust_list))
        if Rseq(*now) != thread.rseq or not now[0]:
            if now[0]:
                made.append((SYS.rseq, now[0], now[1], _RSEQ_UNREGISTER, now[2]))
            if thread.rseq.address:
                made.append((SYS.rseq, thread.rseq.address, thread.rseq.size, 0, thread.rseq.signature))
        # Refused to a thread that stands on its alternate stack; where this one stands now means nothing.
        return [*made, (SYS.sigaltstack, address, 0), (SYS.prctl, _PR_SET_NAME, address + altstack.STACK.size)]

    given, spare = [thread.sigaltstack + thread.comm + b"\0" for thread in wanted], (room[0], room[1] - room[0])
    results, _ = call_in(stub, threads, calls, 6, given, aside=True, spare=spare)
    disabled = [index for index, some in enumerate(results) if altstack.was_never(wanted[index].sigaltstack, some[-2])]
    for index in disabled:
        results[index][-2] = 0
    if any(min(some) < 0 for some in results):
        many.check_all([(thread, calls(index, 0)) for index, thread in enumerate(threads)], results)
    if disabled:  # the nearest state that can be set: sigaltstack(2) reports the same for both
        some = [threads[index] for index in disabled]
        disables = [altstack.DISABLED] * len(some)
        have_called(stub, some, lambda _, address: [(SYS.sigaltstack, address, 0)], 1, disables, aside=True, spare=spare)


def _load(thread: Thread, wanted: ThreadContext) -> None:
    """Registers and mask that restore() writes when the thread is let go."""
    registers = Registers.from_buffer_copy(wanted.registers)
    if wanted.resume_with_restart_syscall:
        # Interrupted in the call, or put back to before it.
        registers.rax = SYS.restart_syscall if registers.orig_rax == U64 else ERESTART_RESTARTBLOCK & U64
    thread.registers, thread.signal_mask = registers, wanted.signal_mask
