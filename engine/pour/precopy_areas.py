"""Areas for memory that comes before its process does (engine/pour/precopy.py), in what is to become it."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set

from engine.mappings.layout import Span
from engine.mappings.mappings import PROT_READ, PROT_WRITE
from kernel_helpers.process.syscalls import SYS, U64
from kernel_helpers.process.thread import Thread

_MAP_PRIVATE_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x22, 0x4000, 0x100000
_MADV_DONTNEED = 4


def map_areas(thread: Thread, wanted: Sequence[Span], unreserved: Set[Span]) -> list[Span]:
    """Mappings in the process of a thread that is stopped for injected calls, each in one; returns those that could be made: where nothing
    else is. unreserved: of `wanted`, those that are not accounted for (MAP_NORESERVE). Errors: OSError.

    Each has had a page. Of memory that never had one the kernel gives back what is accounted for when a part of it is protected, and has
    the parts made of pages of their own later; and then does not join them again, which a program finds that moves them as one.
    """
    made = []
    memory = os.open(f"/proc/{thread.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        for start, end in wanted:
            flags = _MAP_PRIVATE_ANONYMOUS | _MAP_FIXED_NOREPLACE | (_MAP_NORESERVE if (start, end) in unreserved else 0)
            if thread.call(SYS.mmap, start, end - start, PROT_READ | PROT_WRITE, flags, U64, 0) != start:
                continue
            os.pwrite(memory, b"\0", start)
            thread.call(SYS.madvise, start, end - start, _MADV_DONTNEED)
            made.append((start, end))
    finally:
        os.close(memory)
    return made
