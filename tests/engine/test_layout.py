"""The plan for a stub's mappings: a pure function, so every case can be written down."""

from __future__ import annotations

import pytest

from engine.mappings.layout import Duplicate, LayoutImpossible, ReservedOverlap, make_plan, merge, subtract
from engine.mappings.mappings import MAP_PRIVATE, MAP_SHARED, PAGE, Mapping
from kernel_helpers.pages.pages import PageRange

READ, WRITE = 1, 2


def anonymous(start: int, end: int, prot: int = READ | WRITE, flags: str = "", own: int = PAGE) -> Mapping:
    """Returns an anonymous mapping; its place is given in pages."""
    return Mapping(start * PAGE, end * PAGE, prot, MAP_PRIVATE, 0, "", False, frozenset(flags.split()), own)


def file(start: int, end: int, offset: int = 0, path: str = "/a", prot: int = READ, sharing: int = MAP_PRIVATE,
         flags: str = "", own: int = 0) -> Mapping:  # fmt: skip
    """Returns a mapping of a file; its place and offset are given in pages."""
    return Mapping(
        start * PAGE, end * PAGE, prot, sharing, offset * PAGE, path, True, frozenset(flags.split()), own
    )  # fmt: skip


def special(start: int, end: int) -> Mapping:
    return Mapping(start * PAGE, end * PAGE, 5, MAP_PRIVATE, 0, "[vdso]", False)


def span(start: int, end: int) -> tuple[int, int]:
    return start * PAGE, end * PAGE


RESERVED = [span(900, 902)]
STUB_OWN = anonymous(900, 902, prot=7)


def test_subtract_and_merge() -> None:
    assert subtract((0, 10), [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert subtract((0, 10), [(0, 10)]) == []
    assert merge([(5, 6), (1, 3), (3, 5), (8, 9)]) == [(1, 6), (8, 9)]


def test_same_files_stay_and_memory_is_made() -> None:
    plan = make_plan([file(1, 5), STUB_OWN, special(950, 952)], [file(1, 5), anonymous(10, 12), special(950, 952)], RESERVED)
    assert plan.remove == () and plan.duplicates == () and plan.protect == ()
    assert plan.create == (anonymous(10, 12),)
    assert plan.pages == (PageRange(*span(1, 5)), PageRange(*span(10, 12)))


def test_unmapped_memory_is_removed_and_reserved_memory_stays() -> None:
    stub = [file(1, 5), anonymous(20, 22), file(899, 900, path="/b"), STUB_OWN]
    plan = make_plan(stub, [file(1, 2), file(3, 5, offset=2, prot=READ | WRITE)], RESERVED)
    assert plan.remove == (span(2, 3), span(20, 22), span(899, 900))
    assert plan.protect == ((*span(3, 5), READ | WRITE),)


def test_memory_of_the_stub_that_merged_with_its_reserved_pages_goes_alone() -> None:
    plan = make_plan([anonymous(898, 903)], [], RESERVED)
    assert plan.remove == (span(898, 900), span(902, 903))


def test_another_offset_or_file_at_the_same_address_is_not_kept() -> None:
    plan = make_plan([file(1, 5), file(6, 10, path="/b")], [file(1, 3, offset=2), file(6, 8, path="/a")], [])
    assert plan.duplicates == (
        Duplicate(3 * PAGE, 2 * PAGE, 1 * PAGE),
        Duplicate(1 * PAGE, 2 * PAGE, 6 * PAGE),
    )
    assert plan.remove == (span(1, 10),)


def test_parts_of_a_file_that_follow_one_another_are_duplicated_together() -> None:
    """The case of a library: the stub has it as a whole, aside."""
    stub = [file(700, 710), file(100, 101, path="/b"), special(105, 106), file(711, 712, path="/c"), file(713, 714, path="/d")]
    wanted = [
        file(20, 22), file(22, 25, offset=2, prot=5), file(25, 27, offset=5), file(28, 29, offset=7, flags="ac"),
        file(29, 30, offset=8, prot=READ | WRITE, flags="ac"), file(712, 713, path="/b"),
    ]  # fmt: skip
    plan = make_plan(stub, wanted, [])
    assert plan.duplicates == (
        Duplicate(700 * PAGE, 7 * PAGE, 20 * PAGE),
        Duplicate(707 * PAGE, 2 * PAGE, 28 * PAGE),
        Duplicate(100 * PAGE, 1 * PAGE, 712 * PAGE),
    )
    both = READ | WRITE
    assert plan.protect == ((*span(22, 25), 5), (*span(28, 29), both), (*span(29, 30), both))
    assert plan.protect_filled == ((*span(28, 29), READ),)
    assert plan.remove == (span(100, 101), span(700, 712), span(713, 714)), "not what lies between"


def test_moved_mapping_is_pieced_together_and_grown() -> None:
    stub = [file(1, 3), file(3, 4, offset=2, prot=READ | WRITE)]
    plan = make_plan(stub, [file(20, 26)], [])
    assert plan.duplicates == (
        Duplicate(1 * PAGE, 2 * PAGE, 20 * PAGE),
        Duplicate(3 * PAGE, 1 * PAGE, 22 * PAGE),
        Duplicate(3 * PAGE, 1 * PAGE, 23 * PAGE, grow=3 * PAGE),
    )
    assert plan.protect == ((*span(22, 23), READ), (*span(23, 26), READ))


def test_renamed_and_deleted_files_are_the_same() -> None:
    stub = [file(1, 3, path="/new"), file(5, 7, path="/lib (deleted)"), file(9, 10, path="/x")]
    wanted = [file(1, 3, path="/old"), file(5, 7, path="/lib"), file(9, 10, path="/x.cr.1f.ghost (deleted)")]
    plan = make_plan(stub, wanted, [])
    assert plan.remove == () and plan.duplicates == ()


def test_file_that_the_stub_has_not_is_refused() -> None:
    with pytest.raises(LayoutImpossible, match="/b"):
        make_plan([file(1, 5)], [file(1, 5), file(7, 9, path="/b"), file(11, 12, path="/a")], [])
    with pytest.raises(LayoutImpossible, match="not mapped"):
        make_plan([file(1, 3)], [file(7, 9, offset=5)], [])
    with pytest.raises(LayoutImpossible):
        make_plan([file(1, 3)], [file(1, 3, sharing=MAP_SHARED)], [])


def test_shared_file_takes_no_pages() -> None:
    plan = make_plan([file(1, 3, sharing=MAP_SHARED)], [file(1, 3, sharing=MAP_SHARED)], [])
    assert plan.pages == () and plan.remove == ()


def test_wanted_where_the_stub_is() -> None:
    with pytest.raises(ReservedOverlap):
        make_plan([STUB_OWN], [anonymous(901, 904)], RESERVED)
    with pytest.raises(LayoutImpossible):
        make_plan([special(10, 12)], [anonymous(11, 14)], [])


def test_copy_of_the_kernels_pages_that_the_guest_brought_is_thrown_away() -> None:
    plan = make_plan([special(10, 12)], [anonymous(10, 12, prot=5), special(70, 72), anonymous(80, 81)], [])
    assert plan.create == (anonymous(80, 81),)
    assert plan.pages == (PageRange(*span(10, 12), discard=True), PageRange(*span(80, 81)))


def test_read_only_memory_with_pages_is_writable_until_they_are_there() -> None:
    wanted = [
        anonymous(1, 2, prot=READ, flags="ac"),
        anonymous(3, 4, prot=0, flags="ac", own=0),
        anonymous(5, 6, prot=0, flags="nr"),
    ]
    plan = make_plan([], wanted, [])
    assert [m.prot for m in plan.create] == [READ | WRITE, 0, 0]
    assert plan.protect_filled == ((*span(1, 2), READ),)


def test_stale_pages_of_the_stub_are_dropped() -> None:
    plan = make_plan([file(1, 3, own=PAGE), file(4, 5)], [file(1, 2), file(4, 5)], [])
    assert plan.stale == (span(1, 2),)


def test_flags_of_memory() -> None:
    plan = make_plan([file(1, 2, flags="rr dd")], [file(1, 2), anonymous(4, 5, flags="hg dd lo lf"), anonymous(6, 7, flags="wf")], [])
    assert plan.advise == ((*span(1, 2), 17), (*span(1, 2), 0), (*span(4, 5), 16), (*span(4, 5), 14), (*span(6, 7), 18))
    assert plan.lock == ((*span(4, 5), True),)
