"""Marks of a process's memory that are no pages: guards (MADV_GUARD_INSTALL, Linux 6.13), on which each access faults, and the lock of
later mappings (mlockall(2), MCL_FUTURE).

Guards are in the page tables alone, of any mapping: installed after all pages have come, before anything is locked, for neither a guard
nor a page can be put where the other is meant to stay. Locks of the future begin when nothing of ours is mapped any more.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress

from engine.context import keys, registers
from engine.context.context import Context
from engine.mappings.address_space import Maps, exceptional
from engine.mappings.layout import Span, common, merge
from engine.mappings.mappings import HIGHEST_ADDRESS, PAGE, Mapping, read_mappings
from engine.memory import alone
from kernel_helpers.common.errors import FarhomeError, MoveRefused
from kernel_helpers.pages.pages import GUARD_INSTALL, GUARD_REMOVE, MOST_GUARDS, guards, knows_guards
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64

MCL_FUTURE, MCL_ONFAULT = 2, 4
MLOCK_ONFAULT = 1
_PRIVATE_ANONYMOUS = 0x22
_CALL_BYTES = 64
"""Bytes for each call of a batch (Thread.calls)."""
OLD_KERNEL = "it has guards in its memory (madvise, MADV_GUARD_INSTALL), and the other node's kernel knows none (Linux 6.13)"
IN_IMAGES = "it has guards in its memory (madvise, MADV_GUARD_INSTALL), which CRIU's images do not hold"
FUTURE_IN_IMAGES = "it locks memory that it is yet to map (mlockall, MCL_FUTURE), which CRIU's images do not hold"
TOO_LITTLE = "it has memory locked (mlock, mlockall), and the other node lets guests lock less (RLIMIT_MEMLOCK of its mosd)"


class MarksMissing(FarhomeError):
    """Marks of memory cannot be made here."""


def guards_of(pid: int, maps: Sequence[Mapping]) -> tuple[Span, ...]:
    """Return all guards of a process that stands still. maps: its mappings. Errors: MoveRefused: they are too many; OSError."""
    if isinstance(maps, Maps) and not maps.may_have_guards:
        found = guards(pid, merge([*maps.table.large(), *((m.start, m.end) for m in maps.others if m.end <= HIGHEST_ADDRESS)]))
    else:
        found = guards(pid)
    if len(found) >= MOST_GUARDS:
        raise MoveRefused(pid, f"it has {MOST_GUARDS} guards in its memory, or more (madvise, MADV_GUARD_INSTALL)")
    return tuple(found)


def holding(maps: Iterable[Mapping], spans: Sequence[Span]) -> list[Span]:
    """Return the mappings, whole, that hold a part of the spans (sorted, apart), as of guards; in no order."""
    whole = Maps.of(maps)
    found = [(m.start, m.end) for m in whole.others if common((m.start, m.end), spans)]
    for start, end in spans:
        number = whole.table.at(start)
        while number < len(whole.table) and (row := whole.table[number])[0] < end:
            found.append((row[0], row[1]))
            number += 1
    return found


def remove(frozen: Frozen, areas: Sequence[Span], scratch: Span) -> None:
    """Takes away the guards in the areas (sorted, apart) of a process that stands still. scratch: memory in it. Errors: OSError."""
    if areas and knows_guards():
        _advise(frozen, guards(frozen.pid, areas), GUARD_REMOVE, scratch)


def install(frozen: Frozen, wanted: Sequence[Span], maps: Iterable[Mapping], scratch: Span) -> None:
    """Installs guards in a process that stands still, and has its pages. maps: its mappings; none is locked afterwards that has a guard.
    Errors: MarksMissing, OSError."""
    if not wanted:
        return
    if not knows_guards():
        raise MarksMissing(OLD_KERNEL)
    locked = merge(Maps.of(maps).locked())
    for span in wanted:
        for start, end in common(span, locked):
            frozen.call(SYS.munlock, start, end - start)
    _advise(frozen, wanted, GUARD_INSTALL, scratch)


def _advise(frozen: Frozen, spans: Sequence[Span], advice: int, scratch: Span) -> None:
    most = (scratch[1] - scratch[0]) // _CALL_BYTES
    for first in range(0, len(spans), most):
        calls = [(SYS.madvise, start, end - start, advice) for start, end in spans[first : first + most]]
        for (_, start, size, _), result in zip(calls, frozen.leader.calls(calls, scratch[0]), strict=True):
            check(result, f"guards at {start:x}-{start + size:x}")


def future_locks(frozen: Frozen, maps: Sequence[Mapping]) -> int:
    """Return how what it maps from now on is locked: flags of mlockall(2), 0: not at all. The kernel shows it on such a mapping alone.
    maps: its mappings. Errors: OSError."""
    before = locked_bytes(frozen.pid)
    try:
        page = frozen.call(SYS.mmap, 0, PAGE, 0, _PRIVATE_ANONYMOUS, U64, 0)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            return 0
        waits = all("lf" in m.vmflags for m in maps if "lo" in m.vmflags)  # it has locked all that it may
        return MCL_FUTURE | (MCL_ONFAULT if waits else 0)
    flags = 0
    if locked_bytes(frozen.pid) > before:
        now = next((m.vmflags for m in read_mappings(frozen.pid) if m.start <= page < m.end), frozenset())
        flags = MCL_FUTURE | (MCL_ONFAULT if "lf" in now else 0)
    frozen.call(SYS.munmap, page, PAGE)
    return flags


def unlock(frozen: Frozen, context: Context) -> None:
    """Nothing of a process that stands still is locked any more, if what it maps later would be. Errors: OSError."""
    if context.future_locks:
        frozen.call(SYS.munlockall)


def lock(frozen: Frozen, context: Context) -> None:
    """What unlock() has made of it is undone, but for what it had locked beyond its limit."""
    if not context.future_locks:
        return
    with suppress(OSError):
        for m in context.maps:
            if "lo" in m.vmflags:
                frozen.leader.call(SYS.mlock2, m.start, m.length, MLOCK_ONFAULT if "lf" in m.vmflags else 0)
        lock_future(frozen, context.future_locks)


def lock_future(frozen: Frozen, flags: int) -> None:
    """What the process maps from now on is locked. Errors: OSError."""
    if flags:
        frozen.call(SYS.mlockall, flags)


def locked_bytes(pid: int) -> int:
    """Of a process, by mlock(2) and its like. Errors: OSError."""
    return _size(pid, b"VmLck:")


def mapped_bytes(pid: int) -> int:
    """Of a process, in all. Errors: OSError."""
    return _size(pid, b"VmSize:")


def _size(pid: int, name: bytes) -> int:
    with open(f"/proc/{pid}/status", "rb") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith(name)), 0)


def check_locks(pid: int, context: Context) -> None:
    """Of a process that was made anew, and its memory locked. Errors: MarksMissing: less of it than was, or what it locks later would not
    be; OSError."""
    if locked_bytes(pid) < _locked(context) or (context.future_locks and lock_limit(pid) < _wanted(context)):
        raise MarksMissing(TOO_LITTLE)


def can_lock(context: Context, lockable: int) -> bool:
    """Return whether a node that lets a guest lock so many bytes, at most, lets it lock what it has locked, and what it is yet to map."""
    return lockable >= _locked(context) and (not context.future_locks or lockable >= _wanted(context))


def _locked(context: Context) -> int:
    return sum(end - start for start, end in Maps.of(context.maps).locked())


def _wanted(context: Context) -> int:
    """Bytes that it may lock where it was."""
    wanted, _ = context.identity.limits.get(resource.RLIMIT_MEMLOCK, (0, 0))
    return min(wanted, U64)


def lockable(pid: int) -> int:
    """Return how many bytes a process that is to become a guest here may lock at most; it may from now on. Errors: OSError."""
    raise_lock_limit(pid, U64)
    return lock_limit(pid, is_hard=True)


def raise_lock_limit(pid: int, wanted: int) -> None:
    """So many bytes may a guest lock, if the node has the right to say so; what bounds its memory bounds that, too."""
    limit = resource.RLIM_INFINITY if wanted >= U64 else wanted
    with suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (limit, limit))


def lock_limit(pid: int, is_hard: bool = False) -> int:
    """Return how many bytes a process without the right to lock more may lock, or may allow itself to. Errors: OSError."""
    limit = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)[is_hard]
    return limit if limit != resource.RLIM_INFINITY else U64


def not_in_images(frozen: Frozen, maps: Sequence[Mapping]) -> str | None:
    """Return which mark of its memory, or use of registers, CRIU's images do not hold, or None. Errors: OSError."""
    if any(registers.not_held(thread.extended_state()) for thread in frozen.threads.values()):
        return registers.IN_IMAGES
    if guards(frozen.pid, most=1):
        return IN_IMAGES
    if any(m.is_file and not m.private and alone.may_be(m.path) for m in exceptional(maps)):
        return alone.IN_IMAGES
    if keys.exist():
        with frozen.scratch(keys.ROOM) as room:
            if keys.allocated(frozen, Maps.of(maps).spans, room):
                return keys.IN_IMAGES
    return FUTURE_IN_IMAGES if future_locks(frozen, maps) else None
