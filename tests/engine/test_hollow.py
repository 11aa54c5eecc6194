"""Memory that travels beside the images, and refusals of a peer's false description of it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.files.files import FileMapping
from engine.memory.hollow import LEAST, MOST_RANGES, choose, from_wire, to_wire
from kernel_helpers.common.errors import FarhomeError

BASE = 0x7F0000000000


def mapping(size: int = LEAST, permissions: str = "rw-p", inode: int = 0, path: str = "", start: int = BASE) -> FileMapping:
    return FileMapping(start, start + size, permissions, 0, "00:00", inode, path)


@pytest.mark.parametrize("path", ["", "[heap]", "[anon:arena]"])
def test_great_writable_private_anonymous_memory_travels_beside(path: str) -> None:
    assert choose([mapping(path=path)], []) == [(BASE, BASE + LEAST)]


@pytest.mark.parametrize(
    "other",
    [
        mapping(LEAST - 4096),
        mapping(permissions="r--p"),
        mapping(permissions="---p"),
        mapping(permissions="rw-s"),
        mapping(inode=5, path="/lib/libc.so.6"),
        mapping(path="[stack]"),
        mapping(path="[vvar]"),
        mapping(path="/memfd:x (deleted)"),
    ],
)
def test_all_other_memory_goes_with_the_images(other: FileMapping) -> None:
    assert choose([other], []) == []


def test_pages_that_must_go_with_the_images_are_left_out() -> None:
    keep = [(BASE + 8192 + 100, BASE + 8192 + 132), (BASE - 50, BASE + 1)]
    assert choose([mapping()], keep) == [(BASE + 4096, BASE + 8192), (BASE + 12288, BASE + LEAST)]


def test_of_too_many_spans_the_greatest_are_taken_in_order_of_address() -> None:
    maps = [mapping(LEAST + (4096 if number % 2 else 0), start=BASE + number * 2 * LEAST) for number in range(2 * MOST_RANGES)]
    chosen = choose(maps, [])
    assert chosen == sorted(chosen)
    assert len(chosen) == MOST_RANGES
    assert {end - start for start, end in chosen} == {LEAST + 4096}


def test_wire_form_comes_back_as_ranges() -> None:
    ranges = from_wire(to_wire([(4096, 8192), (8192, 12288)]))
    assert [(one.start, one.end, one.discard) for one in ranges] == [(4096, 8192, False), (8192, 12288, False)]
    assert from_wire([]) == []


@pytest.mark.parametrize(
    "message",
    [None, {}, "all", [[1, 4096]], [[4096, 4096]], [[8192, 4096]], [[-4096, 4096]], [[0, 1 << 56]], [["0", 4096]], [[4096]],
     [[8192, 12288], [4096, 8192]], [[4096, 12288], [8192, 16384]], [[0, 4096]] * (MOST_RANGES + 1), [4096, 8192]],
)  # fmt: skip
def test_nonsense_of_a_peer_is_refused(message: Any) -> None:
    with pytest.raises(FarhomeError):
        from_wire(message)
