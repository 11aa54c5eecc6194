"""Values that came from another node: what each has to be, or BadContext."""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Callable
from typing import Any, TypeVar

from engine.context import confinement
from engine.mappings.address_space import Maps
from engine.mappings.mappings import CARRIED_FLAGS, HIGHEST_ADDRESS, MAP_PRIVATE, MAP_SHARED, PAGE, Mapping
from engine.memory.alone import MOST, SharedObject, may_be
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.pages.pages import MOST_GUARDS
from kernel_helpers.pages.tables.plain import Table

SIGNALS = 64
SIGINFO_BYTES = 128
ACTION_BYTES = 32
_MAPS_MOST = 1 << 20
_FLAGS_MOST = 256
"""characters: all names that are carried take less"""
_PATHS = range(8192)
_T = TypeVar("_T")

Keyed = tuple[int, int, int]
"""Start, end, protection key of memory."""


class BadContext(FarhomeError):
    """A context from outside that is not one."""


def number(value: Any, least: int, most: int, what: str) -> int:
    """Return an integer in these bounds. Errors: BadContext."""
    if type(value) is not int or not least <= value <= most:
        raise BadContext(f"{what} is {reprlib.repr(value)}")
    return value


def address(value: Any, what: str) -> int:
    """Return an address that a process can have. Errors: BadContext."""
    return number(value, 0, HIGHEST_ADDRESS, what)


def word(value: Any, what: str) -> int:
    """Return 64 bits. Errors: BadContext."""
    return number(value, 0, (1 << 64) - 1, what)


def octets(value: Any, sizes: tuple[int, ...] | range, what: str) -> bytes:
    """Return bytes of one of these sizes. Errors: BadContext."""
    if not isinstance(value, bytes) or len(value) not in sizes:
        raise BadContext(f"{what} is {type(value).__name__} of another size")
    return value


def truth(value: Any, what: str) -> bool:
    """Return a truth value. Errors: BadContext."""
    if not isinstance(value, bool):
        raise BadContext(f"{what} is {reprlib.repr(value)}")
    return value


def row(value: Any, size: int | None, what: str) -> list[Any]:
    """Return a list of that size; of any but none without one. Errors: BadContext."""
    if not isinstance(value, list) or not value or (size is not None and len(value) != size):
        raise BadContext(f"{what} is not a list of that size")
    return value


def each(value: Any, most: int, make: Callable[[Any], _T], what: str) -> tuple[_T, ...]:
    """Return what `make` makes of each of at most so many. Errors: BadContext."""
    if not isinstance(value, list) or len(value) > most:
        raise BadContext(f"{what} is not a list of at most {most}")
    return tuple(make(item) for item in value)


def ids(value: Any, what: str) -> tuple[int, int, int]:
    real, effective, saved = (number(item, 0, 2**32 - 2, what) for item in row(value, 3, what))
    return real, effective, saved


@functools.lru_cache(1024)
def words(vmflags: frozenset[str]) -> str:
    """Return them as one text, in order."""
    return " ".join(sorted(vmflags))


@functools.lru_cache(1024)
def flags(words: str) -> frozenset[str] | None:
    """None: there is one among them that is not carried."""
    found = frozenset(words.split())
    return found if CARRIED_FLAGS.issuperset(found) else None


def mapping(item: Any) -> Mapping:
    """Return one mapping. Errors: BadContext."""
    start, end, prot, sharing, offset, path, is_file, vmflags, own = row(item, 9, "mapping")
    start, end = address(start, "mapping's edge"), address(end, "mapping's edge")
    if (start | end) % PAGE or start >= end:
        raise BadContext(f"mapping {start:x}-{end:x}")
    if sharing not in (MAP_SHARED, MAP_PRIVATE):
        raise BadContext(f"mapping's flags are {reprlib.repr(sharing)}")
    carried = flags(vmflags) if isinstance(vmflags, str) and len(vmflags) < _FLAGS_MOST else None
    if carried is None:
        raise BadContext(f"mapping's VmFlags are {reprlib.repr(vmflags)}")
    return Mapping(
        start=start,
        end=end,
        prot=number(prot, 0, 7, "mapping's prot"),
        flags=int(sharing),
        offset=number(offset, 0, (1 << 63) - 1, "mapping's offset"),
        path=octets(path, _PATHS, "mapping's path").decode("utf-8", "surrogateescape"),
        is_file=truth(is_file, "mapping's kind"),
        vmflags=carried,
        own=number(own, 0, 1 << 50, "mapping's own bytes"),
    )


def maps(value: Any) -> Maps:
    """Return the table of plain ones, and all others."""
    table, reported = row(value, 2, "maps")
    if not isinstance(table, bytes):
        raise BadContext("a table of mappings is none")
    try:
        plain = Table.from_bytes(table)
    except ValueError as error:
        raise BadContext(str(error)) from None
    others = each(reported, _MAPS_MOST - min(len(plain), _MAPS_MOST), mapping, "maps")
    if len(plain) > _MAPS_MOST:
        raise BadContext(f"{len(plain)} mappings")
    for before, after in itertools.pairwise(others):
        if before.end > after.start:
            raise BadContext(f"mappings {before.start:x} and {after.start:x} overlap or are out of order")
    for m in others:
        at = plain.at(m.start)
        if at < len(plain) and plain[at][0] < m.end:
            raise BadContext(f"mappings {m.start:x} and {plain[at][0]:x} overlap")
    return Maps(plain, others)


def objects(value: Any) -> tuple[SharedObject, ...]:
    """Return shared objects, in order and apart. Errors: BadContext."""

    def one(item: Any) -> SharedObject:
        name, label, size, at = row(item, 4, "shared object")
        made = SharedObject(
            name=octets(name, range(1, 8192), "object's name").decode("utf-8", "surrogateescape"),
            label=octets(label, range(256), "object's label").decode("utf-8", "surrogateescape"),
            size=number(size, 0, 1 << 46, "object's size"),
            at=number(at, PAGE, 1 << 46, "object's address"),
        )
        if at % PAGE or "\0" in made.label or not may_be(made.name):
            raise BadContext(f"a shared object {made.name!r:.60} at {at:x}")
        return made

    objects = each(value, MOST, one, "shared objects")
    if any(before.span[1] > after.at for before, after in itertools.pairwise(objects)):
        raise BadContext("shared objects overlap or are out of order")
    if len({made.name for made in objects}) != len(objects):
        raise BadContext("two shared objects with one name")
    return objects


def guards(value: Any) -> tuple[tuple[int, int], ...]:
    """Return guards, in order and apart. Errors: BadContext."""

    def span(item: Any) -> tuple[int, int]:
        start, end = (address(edge, "guard") for edge in row(item, 2, "guard"))
        if start % PAGE or end % PAGE or start >= end:
            raise BadContext(f"guard {start:x}-{end:x}")
        return start, end

    guards = each(value, MOST_GUARDS, span, "guards")
    if any(before[1] > after[0] for before, after in itertools.pairwise(guards)):
        raise BadContext("guards overlap or are out of order")
    return guards


def protection(value: Any) -> tuple[int, tuple[Keyed, ...]]:
    """Return the protection keys that are allocated, one bit each, and the memory that has one, in order and apart. Errors: BadContext."""
    keys, memory = row(value, 2, "protection keys")
    if number(keys, 0, 0xFFFE, "protection keys") & 1:
        raise BadContext("protection key 0 is everybody's")

    def one(item: Any) -> Keyed:
        start, end, key = row(item, 3, "memory with a protection key")
        start, end = address(start, "its edge"), address(end, "its edge")
        if (start | end) % PAGE or start >= end or not keys >> number(key, 1, 15, "protection key") & 1:
            raise BadContext(f"protection key {key} of {start:x}-{end:x}")
        return start, end, key

    found = each(memory, _MAPS_MOST, one, "memory with protection keys")
    if any(before[1] > after[0] for before, after in itertools.pairwise(found)):
        raise BadContext("memory with protection keys overlaps or is out of order")
    return keys, found


def actions(value: Any) -> dict[int, bytes]:
    """Return signal actions, by signal. Errors: BadContext."""

    def action(item: Any) -> tuple[int, bytes]:
        signal, data = row(item, 2, "signal action")
        return number(signal, 1, SIGNALS, "signal"), octets(data, (ACTION_BYTES,), "signal action")

    return dict(each(value, SIGNALS, action, "signal actions"))


def signals(value: Any) -> tuple[bytes, ...]:
    """Return pending signals, as siginfo. Errors: BadContext."""

    def info(item: Any) -> bytes:
        data = octets(item, (SIGINFO_BYTES,), "siginfo")
        number(int.from_bytes(data[:4], "little", signed=True), 1, SIGNALS, "pending signal")
        return data

    return each(value, 1 << 16, info, "pending signals")


def filters(value: Any) -> confinement.Chain:
    """Return seccomp filters. Errors: BadContext."""
    size = confinement.INSTRUCTION

    def program(item: Any) -> bytes:
        found = octets(item, range(size, confinement.LONGEST * size + 1, size), "filter")
        if (reason := confinement.unfit(found)) is not None:
            raise BadContext(reason)
        return found

    return each(value, confinement.MOST, program, "filters")
