"""What of a process's memory its stub gives up, what it keeps, and where there is room for its loop and slots."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from engine.files.files import anonymous_spans, is_free, named_mappings, spans
from engine.leaving.remains import BASES, GRID
from engine.mappings.layout import Span, merge, subtract, subtract_all
from engine.mappings.mappings import PAGE
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread

_MADV_DONTNEED, _MADV_REMOVE, _MADV_DONTNEED_LOCKED = 4, 9, 24
LOWEST, HIGHEST = 1 << 32, 0x7FFF_0000_0000
"""Between them a program has no use of its own for addresses that it has not asked for."""


def overlap(a: Span, b: Span) -> bool:
    """Return whether two address ranges have an address in common."""
    return a[0] < b[1] and b[0] < a[1]


def free_base(pid: int, size: int, avoid: Iterable[Span] = ()) -> int:
    """Return where `size` bytes have room, a page away from all that the process has and from `avoid`; in the middle of the greatest gap
    where nothing else is left, as beside the shadow memory of a sanitizer. Errors: FarhomeError, OSError."""
    avoid = list(avoid)
    for base in BASES:
        wanted = (base - PAGE, base + size + PAGE)
        if not any(overlap(wanted, span) for span in avoid) and is_free(pid, *wanted):
            return base
    taken = merge([*spans(pid), *avoid])
    free = subtract((LOWEST, HIGHEST), taken)
    start, end = max(free, key=lambda span: span[1] - span[0], default=(0, 0))
    base = (start + end - size) // 2 & -GRID
    if base - PAGE >= start and base + size + PAGE <= end:
        return base
    raise FarhomeError("its mappings leave no room in its address space for the part of farhome that makes its calls at home")


def give_up(thread: Thread, reserved: Sequence[Span], kept: Sequence[Span], objects: Set[str] = frozenset()) -> None:
    """Lets go of a process's own memory, by calls that its stopped `thread` makes: anonymous mappings go, private file mappings
    lose their pages and stay, and so do `objects` (identities of what it alone has mapped shared). What is `reserved` or `kept` (both
    sorted) stays as it is, and so do the arguments on the stack, for ps. Nothing of it is locked any more, nor what it maps later: the
    guest's memory is. Errors: OSError."""
    thread.call(SYS.munlockall)
    staying = merge([*reserved, *kept, _arguments(thread.pid)])
    for start, end in subtract_all(merge(anonymous_spans(thread.pid)), staying):
        thread.call(SYS.munmap, start, end - start)
    for mapping in named_mappings(thread.pid):
        if mapping.permissions[3] == "s" and f"{mapping.device} {mapping.inode}" in objects:
            for start, end in subtract((mapping.start, mapping.end), kept):
                thread.call(SYS.madvise, start, end - start, _MADV_REMOVE)
        if not mapping.inode or mapping.permissions[3] != "p":
            continue
        for start, end in subtract((mapping.start, mapping.end), kept):
            if thread.call(SYS.madvise, start, end - start, _MADV_DONTNEED) == -errno.EINVAL:
                thread.call(SYS.madvise, start, end - start, _MADV_DONTNEED_LOCKED)


def _arguments(pid: int) -> Span:
    """Where the command line and environment are: whole pages."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    numbers = [int(fields[at - 3]) for at in (48, 49, 50, 51)]  # arg_start, arg_end, env_start, env_end: proc(5)
    known = [number for number in numbers if number]
    if not known:
        return (0, 0)
    return (min(known) & ~(PAGE - 1), (max(known) + PAGE - 1) & ~(PAGE - 1))
