"""All mappings of a process. Of private memory without a file or a name there may be tens of thousands: that is kept as a table
(kernel_helpers/pages/tables/plain.py), and only the others are objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import overload

from engine.mappings.mappings import (
    CARRIED_FLAGS,
    MAP_PRIVATE,
    MAP_SHARED,
    NO_FLAGS,
    PAGE,
    PROT_EXEC,
    PROT_READ,
    PROT_WRITE,
    Mapping,
    made,
    read_mappings,
)  # fmt: skip
from kernel_helpers.inspection import places
from kernel_helpers.pages.tables import vmas
from kernel_helpers.pages.tables.plain import BIT, WATCHED, Table

Span = tuple[int, int]
_PROT = PROT_READ | PROT_WRITE | PROT_EXEC


class Maps(Sequence[Mapping]):
    """The mappings of a process, by address: those of `table`, and `others`. As far as is known, `may_be_sealed`: one of them;
    `may_have_guards`: those of the table that are not large."""

    def __init__(self, table: Table, others: Sequence[Mapping], may_be_sealed: bool = True, may_have_guards: bool = True) -> None:
        self.table = table
        self.others = tuple(others)
        self.may_be_sealed = may_be_sealed
        self.may_have_guards = may_have_guards

    @classmethod
    def of(cls, maps: Iterable[Mapping]) -> Maps:
        """Return the same mappings."""
        if isinstance(maps, Maps):
            return maps
        plain: list[Mapping] = []
        others: list[Mapping] = []
        for m in maps:
            (others if m.is_file or m.path or not m.private or m.offset or not m.vmflags <= BIT.keys() else plain).append(m)
        return cls(Table.of([(m.start, m.end, m.own, _kind(m.prot, m.vmflags, m.watched)) for m in plain]), others)

    @cached_property
    def all(self) -> tuple[Mapping, ...]:
        """Each as an object: for a look at few."""
        return tuple(sorted([*map(_as_mapping, self.table), *self.others], key=lambda m: m.start))

    @property
    def spans(self) -> list[Span]:
        """Where they are; of the table, those that touch as one. In no order."""
        return [*self.table.spans(), *((m.start, m.end) for m in self.others)]

    def locked(self) -> list[Span]:
        """Return where memory is locked, by address, those of the table that touch as one."""
        found = [(m.start, m.end) for m in self.others if m.vmflags & {"lo", "lf"}]
        return sorted([*self.table.spans(BIT["lo"] | BIT["lf"]), *found])

    def mapping(self, number: int) -> Mapping:
        """One of the table."""
        return _as_mapping(self.table[number])

    def with_others(self, others: Sequence[Mapping]) -> Maps:
        """Return the same table beside those."""
        return Maps(self.table, others, self.may_be_sealed, self.may_have_guards)

    def __len__(self) -> int:
        return len(self.table) + len(self.others)

    @overload
    def __getitem__(self, index: int) -> Mapping: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping]: ...

    def __getitem__(self, index: int | slice) -> Mapping | Sequence[Mapping]:
        return self.all[index]

    def __iter__(self) -> Iterator[Mapping]:
        return iter(self.all)

    def __eq__(self, other: object) -> bool:
        return self.all == tuple(other) if isinstance(other, (Maps, tuple)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.all)


def _kind(prot: int, vmflags: frozenset[str], watched: bool) -> int:
    return prot | sum(BIT[name] for name in vmflags) | (WATCHED if watched else 0)


@lru_cache(1024)
def _words(kind: int) -> frozenset[str]:
    return frozenset(name for name, bit in BIT.items() if kind & bit)


def _as_mapping(record: tuple[int, int, int, int]) -> Mapping:
    start, end, own, kind = record
    return made(
        start=start, end=end, prot=kind & _PROT, flags=MAP_PRIVATE, offset=0, path="", is_file=False, vmflags=_words(kind), own=own,
        identity="", watched=bool(kind & WATCHED),
    )  # fmt: skip


def exceptional(maps: Iterable[Mapping]) -> Iterable[Mapping]:
    """Return those of a process's mappings that have a file or a name, and maybe others."""
    return maps.others if isinstance(maps, Maps) else maps


def renamed(maps: Sequence[Mapping], names: Dictionary[str, str]) -> Sequence[Mapping]:
    """Return the same mappings, files having the names that are known for their identities."""
    changed = [replace(m, path=names[m.identity]) if m.identity in names else m for m in exceptional(maps)]
    return maps.with_others(changed) if isinstance(maps, Maps) else tuple(changed)


def read_mappings_quickly(pid: int) -> Maps:
    """Return the same as read_mappings(), but `own` says only whether there are any pages: a page or nothing. In a moment, whatever their
    size, where the kernel can be asked (kernel_helpers/pages/tables/vmas.py)."""
    try:
        reported = vmas.table(pid)
    except OSError:
        reported = None
    others = _asked(pid, reported[1]) if reported is not None else None
    if reported is None or others is None:
        return Maps.of(read_mappings(pid))
    table, _, may_be_sealed = reported
    may_have_guards = table.count_own(pid)
    own = [m for m in others if m.private and not m.special]
    for m, has in zip(own, vmas.has_pages(pid, [(m.start, m.end) for m in own]), strict=True):
        if has:
            m.__dict__["own"] = PAGE  # it is ours alone still
    return Maps(table, others, may_be_sealed, may_have_guards)


def _asked(pid: int, reported: Sequence[tuple[int, int, int]]) -> list[Mapping] | None:
    """What has these starts, ends and flags of the kernel's; None: the kernel reports something else, or nothing."""
    found = places.of_addresses(pid, [start for start, _, _ in reported])
    if found is None:
        return None
    others = []
    for place, (start, end, bits) in zip(found, reported, strict=True):
        if place is None or (place.start, place.end) != (start, end):
            return None
        words, is_file = vmas.names(bits), place.inode != 0
        others.append(
            made(
                start=start,
                end=end,
                prot=bits & _PROT,
                flags=MAP_SHARED if place.permissions[3] == "s" else MAP_PRIVATE,
                offset=place.offset if is_file else 0,
                path=place.path.replace("\n", "\\012"),  # as /proc/PID/maps has it
                is_file=is_file,
                vmflags=CARRIED_FLAGS & words or NO_FLAGS,
                own=0,
                identity=f"{place.device} {place.inode}" if is_file else "",
                watched="uw" in words,
            )
        )
    return others
