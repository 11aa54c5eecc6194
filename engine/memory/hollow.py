"""Memory that travels beside the images: straight from the frozen process into the restored one, copied once on each side.

CRIU would write it to a file, which is sent, written to a file, and read again. So the copy that it dumps is made hollow: great
private anonymous mappings are there and empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.files.files import FileMapping, mappings
from engine.mappings.layout import Span, merge, subtract
from engine.mappings.mappings import PAGE
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.pages.pages import PageRange
from kernel_helpers.process.seizing import Frozen

LEAST = 1 << 16
"""Bytes; in a smaller mapping CRIU is as quick."""
MOST_RANGES = 4000
"""What fits into one message."""


def choose(maps: Iterable[FileMapping], keep: Iterable[Span]) -> list[Span]:
    """Return the spans of writable private anonymous memory that are worth it, without the pages that `keep` touches."""
    pages = merge((start & -PAGE, (end + PAGE - 1) & -PAGE) for start, end in keep)
    spans = [
        part
        for m in maps
        if m.permissions.startswith("rw") and m.permissions.endswith("p") and not m.inode
        and (not m.path or m.path == "[heap]" or m.path.startswith("[anon:")) and m.end - m.start >= LEAST
        for part in subtract((m.start, m.end), pages)
    ]  # fmt: skip
    return sorted(sorted(spans, key=lambda span: span[0] - span[1])[:MOST_RANGES])


def hollow_spans(frozen: Frozen, wiped: Sequence[Span]) -> list[Span]:
    """Return what of a frozen process is to travel beside the images. Errors: ProcessLookupError, OSError.

    Not the pages in which threads have their restartable-sequence areas: the kernel writes the number of the processor there,
    and need not do so again after we had written the one of the node that was left.
    """
    keep = list(wiped)
    for thread in frozen.threads.values():
        area = thread.rseq()
        if area.pointer:
            keep.append((area.pointer, area.pointer + area.size))
    return choose(mappings(frozen.pid), keep)


def to_wire(spans: Iterable[Span]) -> list[list[int]]:
    return [list(span) for span in spans]


def from_wire(message: object) -> list[PageRange]:
    """Return where pages may come. Errors: FarhomeError for what is no such list."""
    ranges: list[PageRange] = []
    if not isinstance(message, list) or len(message) > MOST_RANGES:
        raise FarhomeError("the images came without word of the memory beside them")
    end = 0
    for item in message:
        if not isinstance(item, list) or len(item) != 2 or not all(isinstance(bound, int) for bound in item):
            raise FarhomeError("memory beside the images without sound bounds")
        start, limit = item
        if not end <= start < limit < 1 << 56 or start % PAGE or limit % PAGE:
            raise FarhomeError("memory beside the images without sound bounds")
        ranges.append(PageRange(start, limit))
        end = limit
    return ranges


def page_ranges(spans: Iterable[Span]) -> list[PageRange]:
    """For sending."""
    return [PageRange(start, end) for start, end in spans]
