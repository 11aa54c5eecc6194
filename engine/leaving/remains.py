"""What a deputy that was killed just before the commit has left in its process, which goes on at home: the loop and the slots of a stub
(deputy/stub/). They harm nothing, and are taken away at the next move."""

from __future__ import annotations

from collections.abc import Iterable

from engine.files.files import FileMapping
from engine.mappings.layout import Span
from engine.mappings.mappings import PAGE
from kernel_helpers.link.ends.home import SLOTS

BASES = tuple(0x3A00_0000_0000 + i * 0x0040_0000_0000 for i in range(64))
"""Where a stub's loop is, with the slots behind it: between where the kernel puts position-independent programs (0x55...) and libraries
(0x7f...), where nothing grows."""
GRID = 1 << 21
"""Bytes. A loop begins at a multiple of it also where a program has taken all of those places."""


def is_slots(mapping: FileMapping) -> bool:
    """Return whether it is such memory."""
    return mapping.path == f"/memfd:{SLOTS} (deleted)" and (mapping.start - PAGE) % GRID == 0


def remains(maps: Iterable[FileMapping]) -> list[Span]:
    """Of a process that runs at home."""
    return [(mapping.start - PAGE, mapping.end) for mapping in maps if is_slots(mapping)]
