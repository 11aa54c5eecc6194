"""Turning a stub back into the process that it was: mappings, pages, signal actions, threads.

Independent of where the context comes from; a prepared empty process takes the place of the stub in the other
direction.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dictionary
from contextlib import nullcontext
from dataclasses import dataclass, field

from engine.context import keys
from engine.context.capture import kernel_code, memory_layout, scratch_page
from engine.context.checked import BadContext
from engine.context.context import Context, fit_extended_state
from engine.context.marks import MarksMissing, check_locks, install, lock_future, remove
from engine.mappings.address_space import Maps, exceptional, read_mappings_quickly, renamed
from engine.mappings.layout import LayoutImpossible, Plan, Span, make_plan, merge
from engine.mappings.mappings import Mapping, free_address, read_places
from engine.pour.postcopy import Taker
from engine.pour.shape import Kept, drop_pages, empty_stub, finish_mappings, keep_own_memory, room_for, shape_mappings
from engine.pour.threads import load_registers, match_threads, set_memory_layout, set_signal_actions, set_threads
from engine.signals.queued import Queued
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.pages.pages import PageRange, PageTotals, receive_own_pages
from kernel_helpers.process import many
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, Registers
from kernel_helpers.process.thread import Thread
from kernel_helpers.stream.stream import Connection, Encrypted

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
    _kept: list[Kept] = field(repr=False, default_factory=list)
    _reserved: Sequence[Span] = ()

    def undo(self) -> None:
        """Gives memory up again and makes the registers the stub's. Errors: RefillFailed, the stub being lost."""
        try:
            for tid, (registers, mask) in self._before.items():
                thread = self.stub.threads[tid]
                thread.registers, thread.signal_mask = registers, mask
            empty_stub(self.stub, self.created, self._kept, self._reserved)
            if self._queued is not None:
                self._queued.undo()
        except OSError as error:
            raise RefillFailed(f"the stub could not be emptied again: {sentence(error)}", stub_usable=False) from error


def refill(
    stub: Frozen, context: Context, stream: int | Connection | Source, reserved: Sequence[Span], timeout: float = 30.0,
    names: Dictionary[str, str] | None = None, has_run: bool = True, filled: Sequence[Span] = (), taker: Taker | None = None,
    has_all: Callable[[], None] = lambda: None,
) -> Refilled:  # fmt: skip
    """Puts context into the stub and takes its pages from the socket `stream` (what capture.send_pages sends), not a byte
    more; or has `stream` write them.

    stub: all threads stopped, stub.instruction in one of `reserved`, the ranges that the stub has for itself and that
    the caller removes afterwards. The stub keeps its file mappings, all other memory of it counts as given up. When
    this returns, everything that can fail has been done. timeout: seconds without progress of the stream. names: by identity
    (see Mapping), how the context names files that the stub maps, whatever they are called by now. has_run: else its signals have the
    actions that a program begins with. filled: what is there already (engine/pour/precopy.py); taker: who guards it; has_all: is called
    when all pages are there, before mappings are split.

    Errors: layout.ReservedOverlap (the caller moves the reserved range and tries again), RefillFailed.
    """
    started = time.perf_counter()
    seconds: dict[str, float] = {}
    reserved = sorted(reserved)
    ready = _prepare(stub, context, reserved, names or {}, has_run, filled)
    notes: list[str] = []
    queued = Queued(stub, ready.threads)
    created = (*ready.plan.created, *filled)
    before = {tid: (t.registers.copy(), t.signal_mask) for tid, t in stub.threads.items()}
    taken = [*Maps.of(ready.maps).spans, *Maps.of(context.maps).spans, *reserved]
    size = room_for(ready.plan, context)
    try:
        with scratch_page(stub, free_address(taken, size), size) as scratch:
            room = (scratch, scratch + size)
            had_keys = keys.allocate(stub, context.keys, [*taken, room], scratch) if has_run or context.keys else 0
            if has_run:
                remove(stub, [(m.start, m.end) for m in ready.maps if m.is_file], room)
            shape_mappings(stub, ready.plan, ready.maps, room, [*taken, room], notes)
            started = _lap(seconds, "mappings", started)
            if isinstance(stream, (int, socket.socket, Encrypted)):
                pages = _from_socket(stub.pid, ready.plan.pages, stream, timeout, taker)
            else:
                pages = stream(stub.pid, ready.plan.pages)
            drop_pages(stub, pages.gone)
            has_all()
            started = _lap(seconds, "pages", started)
            _set_state(stub, context, ready, room, has_run, notes, had_keys != 0)
            queued.put(context, scratch)
        lock_future(stub, context.future_locks)
    except (MarksMissing, OSError) as error:
        reason = f"the process could not be put back together: {sentence(error)}"
        try:
            empty_stub(stub, created, ready.kept, reserved)
            queued.undo()
        except OSError as second:
            raise RefillFailed(f"{reason}; and the stub is lost: {sentence(second)}", stub_usable=False) from error
        raise RefillFailed(reason, stub_usable=not isinstance(error, ProcessLookupError)) from error
    for thread_context in context.threads:
        load_registers(ready.threads[thread_context.tid], thread_context)
    _lap(seconds, "state", started)
    return Refilled(stub, created, context, pages, notes, seconds, before, queued, ready.kept, reserved)


@dataclass(frozen=True)
class _Ready:
    """What is known before anything of the stub changes. maps: its mappings; threads: its own by the program's ids, `mine` in the order of
    the context, whose extended states and robust lists (those that they have) are in the same order."""

    maps: Sequence[Mapping]
    plan: Plan
    threads: dict[int, Thread]
    mine: list[Thread]
    states: list[bytes]
    robust: list[tuple[int, int]]
    kept: list[Kept]


def _prepare(
    stub: Frozen, context: Context, reserved: list[Span], names: Dictionary[str, str], has_run: bool, filled: Sequence[Span]
) -> _Ready:
    """Errors: as refill()."""
    if context.keys and not keys.exist():
        raise RefillFailed(keys.MISSING, stub_usable=True)
    try:
        maps = renamed(read_mappings_quickly(stub.pid) if has_run else read_places(stub.pid), names)
        plan = make_plan(maps, context.maps, reserved, filled)
        if any(start <= stub.instruction < end for start, end in plan.remove):
            raise LayoutImpossible("the stub's system-call instruction is not in its reserved pages")
        threads = match_threads(stub, context)
        mine = [threads[thread.tid] for thread in context.threads]
        ((template, _, _),), robust = many.states(mine[:1]), many.robust_lists(mine)
        states = [fit_extended_state(thread.extended_state, template) for thread in context.threads]
        _check_kernel_code(stub, maps, context)
        return _Ready(maps, plan, threads, mine, states, robust, keep_own_memory(stub, maps, merge([*reserved, *filled])))
    except (BadContext, OSError) as error:
        raise RefillFailed(sentence(error), stub_usable=not isinstance(error, ProcessLookupError)) from error
    except LayoutImpossible as error:
        if type(error) is not LayoutImpossible:
            raise
        raise RefillFailed(str(error), stub_usable=True) from error


def _set_state(stub: Frozen, context: Context, ready: _Ready, room: Span, has_run: bool, notes: list[str], had_keys: bool) -> None:
    """All but mappings and pages, which are there. room: memory that can be used; had_keys: of protection, before. Errors: MarksMissing,
    OSError."""
    scratch = room[0]
    install(stub, context.guards, context.maps, room)
    finish_mappings(stub, ready.plan, room, notes)
    if context.keyed or had_keys:
        keys.put(stub, context.keyed, context.maps, had_keys, room)
    if not has_run:
        check_locks(stub.pid, context)
    if memory_layout(stub.pid, stub.call(SYS.brk, 0)) != context.memory:
        set_memory_layout(stub, context.memory, scratch)
    set_signal_actions(stub, context, room, has_run)
    for bit in range(context.barriers.bit_length()):
        if context.barriers >> bit & 1:
            stub.call(SYS.membarrier, 1 << bit, 0, 0)
    set_threads(stub, ready.mine, context.threads, ready.robust, room)
    many.set_extended_states(ready.mine, ready.states)


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
