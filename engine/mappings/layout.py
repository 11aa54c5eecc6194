"""What has to be done to the mappings of a stub so that they become those of a context: pure, nothing is touched."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass, replace

from engine.mappings.address_space import Maps, exceptional
from engine.mappings.mappings import PAGE, PROT_READ, PROT_WRITE, Mapping
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.pages.pages import PageRange
from kernel_helpers.pages.tables import plain

Span = tuple[int, int]

# VmFlags -> (madvise that sets it, madvise that clears it; 0: cannot be cleared)
ADVICE = {
    "dc": (10, 11),  # DONTFORK
    "dd": (16, 17),  # DONTDUMP
    "wf": (18, 19),  # WIPEONFORK
    "hg": (14, 0),  # HUGEPAGE
    "nh": (15, 0),  # NOHUGEPAGE
    "mg": (12, 13),  # MERGEABLE
    "sr": (2, 0),  # SEQUENTIAL
    "rr": (1, 0),  # RANDOM
}


class LayoutImpossible(FarhomeError):
    """The stub cannot take these mappings; it was not touched."""


class ReservedOverlap(LayoutImpossible):
    """A wanted mapping lies where the stub has its resident pages: these have to go elsewhere first."""

    def __init__(self, wanted: Mapping, reserved: Span) -> None:
        super().__init__(f"{wanted.start:x}-{wanted.end:x} is wanted, the stub uses {reserved[0]:x}-{reserved[1]:x}")


@dataclass(frozen=True)
class Duplicate:
    """A piece of a file mapping that the program had moved or copied with mremap: source (in the stub, length bytes),
    its last page extended by `grow` bytes, to destination. With `grow`, the source is one page that lies just before
    what is wanted and does not itself go to the destination."""

    source: int
    length: int
    destination: int
    grow: int = 0


@dataclass(frozen=True)
class Plan:
    """In the order in which it is carried out."""

    duplicates: tuple[Duplicate, ...]
    stale: tuple[Span, ...]
    """private file mappings that stay, but have pages of their own, of which nothing is to stay"""
    remove: tuple[Span, ...]
    create: tuple[Mapping, ...]
    """anonymous ones; those that were once writable, have pages and are to be read-only, are writable here"""
    advise: tuple[tuple[int, int, int], ...]
    """start, end, madvise"""
    protect: tuple[tuple[int, int, int], ...]
    """start, end, prot: before any page comes"""
    protect_filled: tuple[tuple[int, int, int], ...]
    """start, end, prot: after the pages"""
    lock: tuple[tuple[int, int, bool], ...]
    """start, end, on fault only"""
    pages: tuple[PageRange, ...]
    """where pages may come"""
    plain: plain.Plan | None = None
    """besides, for memory without a file or a name that came as a table: what it takes to make it, and to advise, protect and lock it"""

    @property
    def created(self) -> list[Span]:
        """Where memory is made, or (of a table) has come."""
        return [*((m.start, m.end) for m in self.create), *(self.plain.spans if self.plain is not None else ())]


def page_ranges(maps: Iterable[Mapping]) -> list[PageRange]:
    """Return what of a process's mappings is sent: its private ones that have pages of their own."""
    found = [PageRange(m.start, m.end, keep_zeros=m.is_file) for m in exceptional(maps) if m.private and not m.special and m.own]
    found += [PageRange(*span) for span in maps.table.spans(own=True)] if isinstance(maps, Maps) else []
    return sorted(found, key=lambda one: one.start)


def subtract(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of span outside all of the (sorted, disjoint) holes."""
    at, parts = span[0], []
    for start, end in holes:
        if end <= at or start >= span[1]:
            continue
        if at < start:
            parts.append((at, start))
        at = max(at, end)
    if at < span[1]:
        parts.append((at, span[1]))
    return parts


def subtract_all(spans: Iterable[Span], holes: Sequence[Span]) -> list[Span]:
    """subtract() of each; holes are sorted and disjoint."""
    ends = [end for _, end in holes]
    parts = []
    for span in spans:
        first = bisect.bisect_right(ends, span[0])
        last = first
        while last < len(holes) and holes[last][0] < span[1]:
            last += 1
        parts += subtract(span, holes[first:last])
    return parts


def common(span: Span, others: Sequence[Span]) -> list[Span]:
    """Return the parts of span that are in one of the others, which are sorted and disjoint."""
    first = bisect.bisect_right(others, span[0], key=lambda other: other[1])
    parts = []
    for start, end in others[first:]:
        if start >= span[1]:
            break
        parts.append((max(span[0], start), min(span[1], end)))
    return parts


class Spans:
    """Spans, sorted and disjoint, of which is asked again and again whether they hold another one."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._ends = [end for _, end in spans]

    def hold(self, start: int, end: int) -> bool | None:
        """Return whether one of them holds all of [start, end), or (False) all of them nothing of it. None: neither."""
        at = bisect.bisect_right(self._ends, start)
        if at == len(self.spans) or self.spans[at][0] >= end:
            return False
        first, last = self.spans[at]
        return True if first <= start and end <= last else None


def merge(spans: Iterable[Span]) -> list[Span]:
    """Sorted and disjoint, touching ones joined."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class _Files:
    """Reports whether a mapping of the stub and one of the context show the same file.

    Paths of both are those of home; but a file may have been renamed at home meanwhile, which the stub's path shows
    and the context's does not. A caller that knows the stub's files passes their names to refill(). Without that, a pair of
    paths each unknown to the other side is such a file.
    """

    def __init__(self, stub: Sequence[Mapping], wanted: Sequence[Mapping]) -> None:
        self._stub = {m.file for m in stub if m.is_file}
        self._wanted = {m.file for m in wanted if m.is_file}

    def same(self, stub: Mapping, wanted: Mapping) -> bool:
        """At the same address and offset."""
        if stub.flags != wanted.flags or not stub.is_file:
            return False
        return stub.file == wanted.file or (stub.file not in self._wanted and wanted.file not in self._stub)


def make_plan(stub: Sequence[Mapping], wanted: Sequence[Mapping], reserved: Sequence[Span], filled: Sequence[Span] = ()) -> Plan:
    """Return how `stub` (its mappings now) become `wanted` with `reserved` (the stub's own, sorted) left alone. `filled`: of `wanted`,
    memory without a file that is there already, readable and writable, with its pages (engine/pour/precopy.py).

    Errors: ReservedOverlap, LayoutImpossible.
    """
    special = [(m.start, m.end) for m in stub if m.special]
    ours = merge([*special, *reserved])
    here = [m for m in stub if not m.special and not any(r[0] <= m.start and m.end <= r[1] for r in reserved)]
    made_by_table = wanted.table.plan(merge(filled), ours) if isinstance(wanted, Maps) else None
    theirs = [m for m in exceptional(wanted) if not m.special]
    if isinstance(wanted, Maps) and made_by_table is not None:
        theirs = sorted([*theirs, *map(wanted.mapping, made_by_table.left)], key=lambda m: m.start)
    in_table = made_by_table.spans if made_by_table is not None else ()
    hidden, target = _seen(theirs, special, ours)
    steps = _Steps(_Files(here, target), [m for m in here if m.is_file], filled)
    for m in target:
        steps.add(m)
    steps.fetch()
    staying = merge([*steps.kept, *reserved, *filled])
    gone = subtract_all([(m.start, m.end) for m in here], staying)
    taken = merge([*staying, *ours, *in_table, *((m.start, m.end) for m in target)])
    ranges = [PageRange(m.start, m.end) for m in target if m.private] + [PageRange(*span) for span in in_table]
    ranges += [PageRange(m.start, m.end, discard=True) for m in hidden if m.private]
    return Plan(
        duplicates=tuple(steps.duplicates),
        stale=tuple(steps.stale),
        remove=tuple(_gaps_bridged(gone, taken)),
        create=tuple(steps.create),
        advise=tuple(steps.advise),
        protect=tuple(steps.protect),
        protect_filled=tuple(steps.protect_filled),
        lock=tuple((m.start, m.end, "lf" in m.vmflags) for m in target if "lo" in m.vmflags),
        pages=tuple(sorted(ranges, key=lambda r: r.start)),
        plain=made_by_table,
    )


def _seen(theirs: Sequence[Mapping], special: list[Span], ours: Sequence[Span]) -> tuple[list[Mapping], list[Mapping]]:
    """What is wanted, parted: mappings that lie behind this kernel's own pages, and all others. Errors: as make_plan()."""
    # Of tens of thousands few lie where the kernel or the stub has something: no other is looked at again.
    beside = {m.start for start, end in ours for m in _within(theirs, start, end)}
    hidden = [m for m in theirs if m.start in beside and not subtract((m.start, m.end), special)]
    unseen = {m.start for m in hidden}
    target = [m for m in theirs if m.start not in unseen]
    for m in target:
        if m.start not in beside:
            continue
        span = next(span for span in ours if m.start < span[1] and span[0] < m.end)
        if span in special:
            raise LayoutImpossible(f"{m.start:x}-{m.end:x} is wanted where this kernel has its own pages")
        raise ReservedOverlap(m, span)
    return hidden, target


class _Steps:
    """What a plan does, mapping by mapping; see Plan. kept: of the stub's files, what stays where it is."""

    def __init__(self, files: _Files, pieces: list[Mapping], filled: Sequence[Span]) -> None:
        """pieces: the stub's mappings of files."""
        self.kept: list[Span] = []
        self.stale: list[Span] = []
        self.duplicates: list[Duplicate] = []
        self.advise: list[tuple[int, int, int]] = []
        self.protect: list[tuple[int, int, int]] = []
        self.protect_filled: list[tuple[int, int, int]] = []
        self.create: list[Mapping] = []
        self._missing: list[tuple[Mapping, Span]] = []
        self._files = files
        self._pieces = sorted(pieces, key=lambda m: m.start)
        self._starts = [m.start for m in self._pieces]
        self._sources: dict[tuple[str, int], list[Mapping]] = {}
        for piece in self._pieces:
            self._sources.setdefault((piece.file, piece.flags), []).append(piece)
        self._filled = filled
        self._has_come = Spans(filled)

    def add(self, m: Mapping) -> None:
        """A mapping that is wanted. Errors: LayoutImpossible."""
        if m.is_file:
            self._add_file(m)
        else:
            self._add_memory(m)

    def _add_memory(self, m: Mapping) -> None:
        if not m.private:
            raise LayoutImpossible(f"{m.start:x}-{m.end:x} is shared memory without a file")
        held = self._has_come.hold(m.start, m.end)
        here_now = [] if held is False else [(m.start, m.end)] if held else common((m.start, m.end), self._filled)
        if m.prot != PROT_READ | PROT_WRITE:
            self.protect_filled += [(*part, m.prot) for part in here_now]
        for start, end in () if held else subtract((m.start, m.end), here_now) if here_now else ((m.start, m.end),):
            part = m if not here_now else replace(m, start=start, end=end)
            if "ac" in m.vmflags and not m.prot & PROT_WRITE and m.own:
                self.create.append(replace(part, prot=m.prot | PROT_WRITE))
                self.protect_filled.append((start, end, m.prot))
            else:
                self.create.append(part)
        self.advise += [(m.start, m.end, advice) for advice in _advised(m.vmflags)]

    def _add_file(self, m: Mapping) -> None:
        mine: list[Span] = []
        for s in _touching(self._pieces, self._starts, m):
            start, end = max(s.start, m.start), min(s.end, m.end)
            if s.offset - s.start == m.offset - m.start and self._files.same(s, m):
                mine.append((start, end))
                if s.own and s.private:
                    self.stale.append((start, end))
                if s.prot != m.prot:
                    self.protect.append((start, end, m.prot))
                self.advise += [(start, end, advice) for advice in _advice(s, m)]
        for span in subtract((m.start, m.end), mine):
            self._missing.append((m, span))
            self.advise += [(*span, advice) for advice in _advised(m.vmflags)]
        self.kept += mine

    def fetch(self) -> None:
        """All wanted mappings are known: where what is not there comes from. Errors: LayoutImpossible."""
        for run in _runs(self._missing):
            made = _duplicates(self._sources, run)
            self.duplicates += [d for d, _ in made]
            for start, end, prot, once in _protections(run, made):
                self.protect.append((start, end, once))
                if once != prot:
                    self.protect_filled.append((start, end, prot))


@functools.lru_cache(1024)
def _advised(vmflags: frozenset[str]) -> tuple[int, ...]:
    """What gives a new mapping these flags."""
    return tuple(ADVICE[flag][0] for flag in sorted(vmflags & ADVICE.keys()))


def _advice(stub: Mapping, wanted: Mapping) -> list[int]:
    """What makes the stub's mapping's flags the wanted ones."""
    set_them = [ADVICE[flag][0] for flag in sorted((wanted.vmflags - stub.vmflags) & ADVICE.keys())]
    cleared = (stub.vmflags - wanted.vmflags) & ADVICE.keys()
    clear_them = [ADVICE[flag][1] for flag in sorted(cleared) if ADVICE[flag][1]]
    if cleared & {"sr", "rr"} and not wanted.vmflags & {"sr", "rr"}:
        clear_them.append(0)  # MADV_NORMAL
    return clear_them + set_them


def _within(maps: Sequence[Mapping], start: int, end: int) -> Sequence[Mapping]:
    """Those of these (sorted, apart) that lie in [start, end), or partly."""
    first = bisect.bisect_right(maps, start, key=lambda m: m.end)
    return maps[first : bisect.bisect_left(maps, end, key=lambda m: m.start)]


def _touching(pieces: Sequence[Mapping], starts: Sequence[int], wanted: Mapping) -> Sequence[Mapping]:
    """Those of the pieces, which begin at `starts`, that lie where `wanted` is to."""
    first = bisect.bisect_right(starts, wanted.start)
    if first and pieces[first - 1].end > wanted.start:
        first -= 1
    return pieces[first : bisect.bisect_left(starts, wanted.end)]


def _runs(missing: Sequence[tuple[Mapping, Span]]) -> list[list[tuple[Mapping, Span]]]:
    """Parts of one file that follow one another in memory as they do in the file, together."""
    runs: list[list[tuple[Mapping, Span]]] = []
    for m, span in missing:
        if runs:
            before, end = runs[-1][-1][0], runs[-1][-1][1][1]
            follows = end == span[0] and before.offset - before.start == m.offset - m.start
            if follows and (before.file, before.flags) == (m.file, m.flags):
                runs[-1].append((m, span))
                continue
        runs.append([(m, span)])
    return runs


def _protections(run: Sequence[tuple[Mapping, Span]], made: Sequence[tuple[Duplicate, int]]) -> list[tuple[int, int, int, int]]:
    """What of duplicates, each with the protection of its source, has to be given another one: start, end, what is wanted, and what
    has to be there before (what once was writable counts as memory)."""
    found = []
    for m, (start, end) in run:
        was_writable = "ac" in m.vmflags and m.private
        for d, prot in made:
            first, last = max(start, d.destination), min(end, d.destination + (d.grow or d.length))
            if first < last and (prot != m.prot or was_writable):
                found.append((first, last, m.prot, m.prot | PROT_WRITE if was_writable else m.prot))
    return found


def _gaps_bridged(spans: Iterable[Span], taken: Sequence[Span]) -> list[Span]:
    """Spans to be unmapped, one behind the other joined if nothing but a page lies between and that is nobody's. In so small a
    gap nothing is put meanwhile (free_address)."""
    starts = [start for start, _ in taken]
    joined: list[Span] = []
    for start, end in merge(spans):
        if joined and start - joined[-1][1] == PAGE:
            at = bisect.bisect_right(starts, joined[-1][1])
            if not (at and taken[at - 1][1] > joined[-1][1]) and not (at < len(starts) and starts[at] < start):
                joined[-1] = (joined[-1][0], end)
                continue
        joined.append((start, end))
    return joined


def _duplicates(known: Dictionary[tuple[str, int], list[Mapping]], run: Sequence[tuple[Mapping, Span]]) -> list[tuple[Duplicate, int]]:
    """Where in the stub's own mappings of the same file the bytes of the run are to be had, and how these are protected."""
    wanted = run[0][0]
    sources = known.get((wanted.file, wanted.flags), [])
    made = []
    at, end = run[0][1][0], run[-1][1][1]
    while at < end:
        offset = wanted.offset + at - wanted.start
        source = next((s for s in sources if s.offset <= offset < s.offset + s.length), None)
        if source is not None:
            length = min(end - at, source.offset + source.length - offset)
            made.append((Duplicate(source.start + offset - source.offset, length, at), source.prot))
            at += length
            continue
        # Beyond what the stub maps: the program grew a mapping.
        before = next((s for s in sources if s.offset + s.length == offset), None)
        if before is None:
            raise LayoutImpossible(f"{at:x} is wanted as byte {offset} of {wanted.path}, which the stub has not mapped")
        made.append((Duplicate(before.end - PAGE, PAGE, at, grow=end - at), before.prot))
        at = end
    return made
