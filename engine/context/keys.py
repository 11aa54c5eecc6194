"""Protection keys (pkeys(7)): which a process has allocated, and which of its mappings have one. What each thread may do by them (PKRU) is
in its extended state.

No file of /proc shows which are allocated. pkey_mprotect(2) of a page that is not mapped does: EINVAL for a key that is not, ENOMEM for
one that is (Linux, mm/mprotect.c, do_mprotect_pkey looks at the key first), and nothing changes by it. The key that a kernel takes by
itself for memory that can only be executed counts as not allocated.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import functools
import re
from collections.abc import Iterable, Sequence

from engine.context.checked import Keyed
from engine.mappings.layout import Span
from engine.mappings.mappings import PAGE, Mapping, free_address
from kernel_helpers.common import library
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

IN_IMAGES = "it has memory protection keys (pkey_alloc), which CRIU's images do not hold"
MISSING = "the process has memory protection keys, and the processor or the kernel here has none"
ROOM = PAGE
"""Bytes of memory that functions here need in a process, besides the one that it has mapped."""
_KEYS = range(1, 16)
"""That a process may allocate; everybody has key 0."""
_PKRU_BIT = 9
"""Of XCR0; where XSAVE has it, processor_component() reports it."""
_CALL_BYTES = 64
_EXECUTE = 4
_DISABLE_ACCESS = 1
_ROW = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ([r-])([w-])([x-])|^ProtectionKey: +([1-9][0-9]*)$", re.MULTILINE)


@functools.cache
def exist() -> bool:
    """Return whether programs can have keys here: by the processor, and its kernel."""
    offset, size = ctypes.c_uint32(), ctypes.c_uint32()
    library.load().processor_component(_PKRU_BIT, ctypes.byref(offset), ctypes.byref(size))
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return bool(size.value) and "ospke" in flags


def allocated(frozen: Frozen, taken: Iterable[Span], room: int) -> int:
    """Return the keys that a process, which stands still, has allocated: one bit each. taken: all that it has mapped; room: memory of it.
    Errors: OSError."""
    if not exist():
        return 0
    hole = free_address(taken, PAGE)
    results = frozen.leader.calls([(SYS.pkey_mprotect, hole, PAGE, 0, key) for key in _KEYS], room)
    return sum(1 << key for key, result in zip(_KEYS, results, strict=True) if result == -errno.ENOMEM)


def of(frozen: Frozen, taken: Iterable[Span], room: int) -> tuple[int, tuple[Keyed, ...]]:
    """Return what is allocated, and the memory that has one of these keys. Errors: OSError."""
    keys = allocated(frozen, taken, room)
    return keys, tuple((start, end, key) for start, end, _, key in _keyed(frozen.pid) if keys >> key & 1) if keys else ()


def allocate(stub: Frozen, wanted: int, taken: Iterable[Span], room: int) -> int:
    """Have exactly these allocated, and return those that were; the threads' PKRU is to be set afterwards. Before anything is mapped: the
    kernel takes a key for memory that can only be executed, the first that is free. Errors: OSError."""
    now = before = allocated(stub, taken, room)
    while wanted & ~now:
        now |= 1 << check(stub.leader.call(SYS.pkey_alloc, 0, _DISABLE_ACCESS), f"pkey_alloc in {stub.pid}")
    for key in _KEYS:
        if now & ~wanted & 1 << key:
            check(stub.leader.call(SYS.pkey_free, key), f"pkey_free in {stub.pid}")
    return before


def put(stub: Frozen, wanted: Sequence[Keyed], maps: Iterable[Mapping], had_keys: bool, room: Span) -> None:
    """Give memory its keys. maps: the mappings that are there, whose protection stays. had_keys: some of them may have one from before.
    Errors: OSError."""
    changes = [(start, end, prot, 0) for start, end, prot, _ in (_keyed(stub.pid) if had_keys else ()) if prot != _EXECUTE]
    ends = [end for _, end, _ in wanted]
    for m in maps if wanted else ():
        for start, end, key in wanted[bisect.bisect_right(ends, m.start) :]:
            if start >= m.end:
                break
            changes.append((max(start, m.start), min(end, m.end), m.prot, key))
    most = (room[1] - room[0]) // _CALL_BYTES
    for first in range(0, len(changes), most):
        calls = [(SYS.pkey_mprotect, start, end - start, prot, key) for start, end, prot, key in changes[first : first + most]]
        for (_, start, *_), result in zip(calls, stub.leader.calls(calls, room[0]), strict=True):
            check(result, f"the protection key of {start:x}")


def _keyed(pid: int) -> list[tuple[int, int, int, int]]:
    with open(f"/proc/{pid}/smaps", "rb") as source:
        return keyed_of(source.read())


def keyed_of(smaps: bytes) -> list[tuple[int, int, int, int]]:
    """Return start, end, PROT_* and key of the mappings that have one, of the text of /proc/PID/smaps."""
    found, place = [], (0, 0, 0)
    for start, end, r, w, x, key in _ROW.findall(smaps):
        if key:
            found.append((*place, int(key)))
        else:
            place = int(start, 16), int(end, 16), (r == b"r") | (w == b"w") << 1 | (x == b"x") << 2
    return found
