"""Memory that goes ahead of a process which still runs (pre-copy), so that little is left to send when it stands still.

    the source                                            the target
    watches the areas (a userfaultfd, Linux 6.7)
    precopy {areas} ---------------------------------->   makes mappings there, in the process that is to become it
    <----------------------------------------- precopy {areas}: those that it could make
    round, pages: all of them, then what was written -->  writes them
    <------------------------------------------- round    (until little is left, or it does not become less)
    (or, if it does not:
    stale, what is written again and again ----------->  gives it up again
    <----------------------------------------- stale)
    the process stands still
    context {kept: what of the areas is still the same memory, owed}, pages: what was written, what is gone, and all else

What is owed (nothing, as a rule) follows when the process runs already: postcopy.py.

Areas are private memory without a file that is, or was, writable: heaps and big blocks. What the process does to its mappings
meanwhile needs no watching: memory that is mapped anew is watched no more, is not among `kept`, and goes whole at the end.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from engine.context.capture import send_pages
from engine.context.context import Context
from engine.files.handover import take_descriptor
from engine.mappings.address_space import Maps
from engine.mappings.layout import Span, common, merge, page_ranges, subtract, subtract_all
from engine.mappings.mappings import MAP_PRIVATE, PAGE, PROT_WRITE, Mapping, read_mappings
from engine.memory import alone
from engine.memory.splicing import splicer
from engine.pour import postcopy
from kernel_helpers.pages.pages import (
    History,
    Meter,
    PageRange,
    PageTotals,
    page_runs,
    receive_own_pages,
    send_own_pages,
    unwatch,
    watch,
    watch_begin,
    written_bytes,
)  # fmt: skip
from kernel_helpers.pages.tables.plain import BIT, WATCHED
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread
from kernel_helpers.stream.stream import splices
from wire import steps
from wire.channel import Channel
from wire.frames import WireError

WORTH = 4 << 20
"""Bytes: less is sent quicker than it is watched."""
AREA_LEAST = 256 << 10
"""Bytes of pages in an area."""
MOST_AREAS = 4096
MOST_SPANS = 65536
ENOUGH = 2 << 20
"""Bytes that a round has found written: the rest can wait for the end."""
MOST_ROUNDS = 20
SHRINKS = 0.75
"""If more than this part of what a round has sent is written again meanwhile, another round is of no use."""
ROUND_TIMEOUT = 30.0
"""Seconds without progress."""

MODES = ("auto", "precopy", "postcopy")
"""When memory goes: ahead of the process, and after it what it writes too fast; all of it ahead; all of it after."""

_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | 1  # UFFD_USER_MODE_ONLY: it needs no privilege, and we answer nothing
_UNFIT = frozenset({"gd", "dp", "wf"})
"""VmFlags that a mapping has from its creation, or that make pages vanish by themselves."""
_UNFIT_BITS = sum(BIT[name] for name in _UNFIT)
_WRITABLE = BIT["ac"] | PROT_WRITE
"""It is, or was."""

log = logging.getLogger("engine.precopy")


@dataclass(frozen=True)
class Area:
    """Memory [start, end) that goes ahead: one mapping, or several that touch, and that the kernel may make one again. own: bytes of
    pages."""

    start: int
    end: int
    own: int
    unreserved: bool
    """not accounted for (MAP_NORESERVE)"""


def _may_go(m: Mapping) -> bool:
    """Whether that mapping's pages may go ahead. One that is not writable now may be a part of one that is again in a moment."""
    was_writable = "ac" in m.vmflags or m.prot & PROT_WRITE
    return bool(m.private and not m.is_file and not m.special and not m.name and not m.vmflags & _UNFIT and was_writable)


def areas(maps: Iterable[Mapping]) -> list[Area]:
    """Return what of a process's memory is worth it; nothing when all together is not.

    Mappings that touch go as one: watched in part, or made in parts on the other side, the kernel would never join them again, and a
    program that moves them as one (mremap(2)) would fail.
    """
    runs: list[Area] = []
    for m in maps:
        if not _may_go(m):
            continue
        unreserved = "nr" in m.vmflags
        if runs and runs[-1].end == m.start and runs[-1].unreserved == unreserved:
            runs[-1] = Area(runs[-1].start, m.end, runs[-1].own + m.own, unreserved)
        else:
            runs.append(Area(m.start, m.end, m.own, unreserved))
    found = [run for run in runs if run.own >= AREA_LEAST][:MOST_AREAS]
    return found if sum(run.own for run in found) >= WORTH else []


def userfaultfd(pid: int, thread: Thread) -> int:
    """Return a userfaultfd of a process, of which `thread` is stopped for injected calls: ours alone. Errors: OSError, also when this
    kernel cannot watch writes."""
    number = check(thread.call(SYS.userfaultfd, _FLAGS), f"userfaultfd in {pid}")
    try:
        taken = take_descriptor(pid, number)
    finally:
        thread.call(SYS.close, number)
    try:
        watch_begin(taken)
    except OSError:
        os.close(taken)
        raise
    return taken


def userfaultfd_or_none(frozen: Frozen) -> int:
    """Return the same for a process all of whose threads are stopped; -1, said in the log, if it cannot be."""
    try:
        return userfaultfd(frozen.pid, frozen.leader)
    except OSError as error:
        log.info("nothing of process %d can go ahead of it: %s", frozen.pid, error)
        return -1


def writes_past_us(pid: int) -> bool:
    """Return whether its memory may be written in ways that nobody notices: devices write straight into it for files that are open with
    O_DIRECT. Errors: OSError."""
    directory = f"/proc/{pid}/fdinfo"
    for name in os.listdir(directory):
        try:
            with open(f"{directory}/{name}", encoding="ascii", errors="replace") as lines:
                flags = next((line for line in lines if line.startswith("flags:")), "flags: 0")
        except FileNotFoundError:
            continue
        if int(flags.split()[1], 8) & os.O_DIRECT:
            return True
    return False


@dataclass
class Progress:
    """How far the memory of a process has come that goes ahead of it; read by other threads. Bytes of pages: `total` that its areas had at
    the begin, `left` that have been written since the round before, or all of them; what has been sent in this round is in `meter`."""

    total: int = 0
    round: int = 0
    before: int = 0
    """sent in the rounds before"""
    left: int = 0
    meter: Meter = field(default_factory=Meter)
    seconds: float = 0.0
    """that the rounds took which are over"""

    @property
    def sent(self) -> int:
        """In all rounds."""
        return self.before + self.meter.bytes

    def begin_round(self, left: int) -> Meter:
        """Another round begins; returns what counts it."""
        self.round, self.before, self.left, self.meter = self.round + 1, self.sent, left, Meter()
        return self.meter


class Ahead:
    """The source's side. `userfaultfd`: of the process, -1 if its writes cannot be noted; it is closed in the end. mode: of MODES."""

    def __init__(self, pid: int, userfaultfd: int, wanted: Sequence[Area], mode: str = "auto") -> None:
        self.pid = pid
        self._userfaultfd = userfaultfd
        self._mode = mode
        self.progress = Progress(total=sum(area.own for area in wanted))
        self._wanted = list(wanted)
        self._areas: list[Span] = []
        self._watched: list[Span] = []
        self._history: History | None = None
        self._follows = False
        self._stale: list[Span] = []
        self.owed = 0
        """bytes that are to follow, at most"""
        self._lock = threading.Lock()
        self._is_running = self._is_over = False

    def run(self, channel: Channel, reported: Callable[[], None] = lambda: None) -> None:
        """Offers the areas and sends rounds, while the process runs; `reported` is called after each. May be closed meanwhile by another
        thread. Errors: WireError, OSError."""
        with self._lock:
            if self._is_over:
                return
            self._is_running = True
        try:
            offered = [[area.start, area.end, area.unreserved] for area in self._wanted]
            may_follow = self._mode != "precopy"
            channel.send("precopy", areas=offered, total=self.progress.total, postcopy=may_follow)
            answer = channel.expect("precopy", timeout=ROUND_TIMEOUT)
            self._areas = areas = self._accepted(spans(answer.get("areas")))
            may_follow = may_follow and bool(answer.get("postcopy"))
            if may_follow and (self._mode == "postcopy" or self._userfaultfd < 0):
                self._follows = True
                return
            self._watch(areas)
            if self._watched:
                left = self._rounds(channel, reported)
                if may_follow and left > postcopy.LEAST and not self._is_over:
                    self._give_back(channel)
        finally:
            with self._lock:
                self._is_running = False
                if self._is_over:
                    self._end()

    def _accepted(self, reported: Sequence[Span]) -> list[Span]:
        mine = merge((area.start, area.end) for area in self._wanted)
        return [part for span in reported for part in common(span, mine)]

    def _give_back(self, channel: Channel) -> None:
        """What is written again and again will follow; until then the other side need not have it."""
        assert self._history is not None
        self._stale = page_runs(self.pid, self._watched, postcopy.MOST_RUNS, self._history)
        channel.send("stale", spans=self._stale)
        channel.expect("stale", timeout=ROUND_TIMEOUT)
        self._follows = True

    def _watch(self, areas: Sequence[Span]) -> None:
        if self._userfaultfd < 0:
            return
        for part in areas:
            try:
                watch(self._userfaultfd, part)
            except OSError as error:
                log.debug("%x-%x does not go ahead: %s", *part, error)  # it has been unmapped meanwhile
            else:
                self._watched.append(part)

    def _rounds(self, channel: Channel, reported: Callable[[], None]) -> int:
        """Returns how many bytes are written again when they are over."""
        self._history = History(self._watched)
        ranges = [PageRange(*span, written=True) for span in self._watched]
        left = self.progress.total
        for number in range(1, MOST_ROUNDS + 1):
            begun, meter = time.monotonic(), self.progress.begin_round(left)
            channel.send("round", left=left)
            send_own_pages(self.pid, ranges, channel.connection, ROUND_TIMEOUT, self._history, last=False, meter=meter)
            channel.expect("round", timeout=ROUND_TIMEOUT)
            took = time.monotonic() - begun
            self.progress.seconds += took
            log.debug("process %d, round %d: %d bytes in %.3f s", self.pid, number, meter.bytes, took)
            reported()
            steps.reached("round")
            left, before = written_bytes(self.pid, ranges, self._history), left
            if self._is_over or left <= ENOUGH or left > SHRINKS * before:
                break
        return left

    def kept(self, maps: Iterable[Mapping], spoilt: Sequence[Span] = ()) -> list[Span]:
        """Return what the other side has of the process, which stands still with these mappings now, and of which only the rest must be
        sent. spoilt: what it has no more as it came (sorted, apart)."""
        if (self._history is None and not self._follows) or writes_past_us(self.pid):
            return []
        watches, areas = self._history is not None, self._areas if self._history is None else self._history.areas
        whole = Maps.of(maps)
        rest = [m for m in whole.others if (m.watched and m.flags == MAP_PRIVATE and not m.is_file if watches else _may_go(m))]
        plain = whole.table.spans(WATCHED) if watches else whole.table.spans(_WRITABLE, _UNFIT_BITS)
        runs = merge([*plain, *((m.start, m.end) for m in rest)])
        return subtract_all(merge(part for run in runs for part in common(run, areas)), spoilt)

    def owes(self, context: Context, kept: Sequence[Span]) -> list[Span]:
        """Return what of `kept` is to follow. The process stands still. Errors: OSError."""
        if not self._follows:
            return []
        pieces = merge([*page_runs(self.pid, kept, postcopy.MOST_RUNS, self._history), *self._stale])
        owed = postcopy.owed(pieces, kept, context)
        self.owed = sum(end - start for start, end in owed)
        return owed

    def send_rest(
        self, maps: Sequence[Mapping], kept: Sequence[Span], owed: Sequence[Span], channel: Channel, timeout: float
    ) -> PageTotals:
        """Send the pages of the process, which stands still, but what the other side has of `kept`, and what is owed. Errors: OSError."""
        ranges: list[PageRange] = []
        for part in subtract_all(kept, owed):  # it is in mappings that are kept
            given_back = [part] if self._history is None else common(part, self._stale)
            ranges += [PageRange(*piece) for piece in given_back]
            ranges += [PageRange(*piece, written=True) for piece in subtract(part, given_back)]
        for own in page_ranges(maps):
            ranges += [replace(own, start=start, end=end) for start, end in subtract_all([(own.start, own.end)], kept)]
        ranges.sort(key=lambda one: one.start)
        return send_own_pages(self.pid, ranges, channel.connection, timeout, self._history)

    def close(self) -> None:
        """The process is watched no more, as soon as run() has ended. Twice is no error."""
        with self._lock:
            self._is_over = True
            if not self._is_running:
                self._end()

    def _end(self) -> None:
        if self._userfaultfd >= 0:
            for span in self._watched:
                unwatch(self._userfaultfd, span)
            os.close(self._userfaultfd)
            self._userfaultfd = -1
        if self._history is not None:
            self._history.close()
            self._history = None


def receive_round(
    pid: int, areas: Sequence[Span], channel: Channel, meter: Meter | None = None, taker: postcopy.Taker | None = None
) -> None:
    """A round into the process that is to become the one that runs. taker: who guards the areas. Errors: WireError, OSError."""
    ranges = [PageRange(*span, missing=taker is not None) for span in merge(areas)]
    with taker.descriptor() if taker is not None else nullcontext(-1) as userfaultfd:
        receive_own_pages(pid, ranges, channel.connection, ROUND_TIMEOUT, meter, userfaultfd)
    channel.send("round")


def spans(reported: Any) -> list[Span]:
    """Spans as a message has them. Errors: WireError."""
    try:
        found = [(int(start), int(end)) for start, end, *_ in reported]
    except (TypeError, ValueError):
        raise WireError("areas of memory are no list of spans") from None
    if len(found) > MOST_SPANS or any(start % PAGE or end % PAGE or not 0 < start < end < 1 << 47 for start, end in found):
        raise WireError("areas of memory that cannot be")
    if any(before[1] > after[0] for before, after in itertools.pairwise(found)):
        raise WireError("areas of memory that overlap or are out of order")
    return found


def areas_of(pid: int) -> list[Area]:
    """areas() of a process that runs. Errors: OSError."""
    return [] if writes_past_us(pid) else areas(read_mappings(pid))


def send_context(
    frozen: Frozen, context: Context, channel: Channel, ahead: Ahead | None, timeout: float = 30.0, spoilt: Sequence[Span] = ()
) -> int:
    """A process that stands still: its context, and its pages but for what has gone ahead and is not spoilt. Returns the bytes of all its
    pages that were sent. Errors: WireError, OSError."""
    kept = ahead.kept(context.maps, spoilt) if ahead is not None else []
    owed = ahead.owes(context, kept) if ahead is not None else []
    channel.send("context", kept=kept, owed=owed)
    channel.send_block(context.to_wire())
    shared = alone.send(frozen.pid, context.maps, context.objects, channel.connection, timeout).bytes if context.objects else 0
    if ahead is None:
        with splicer(frozen) if splices(channel.connection) and not context.keys else nullcontext() as by_itself:
            return shared + send_pages(frozen.pid, context.maps, channel.connection, timeout, by_itself).bytes
    return shared + ahead.progress.sent + ahead.send_rest(context.maps, kept, owed, channel, timeout).bytes
