"""Mappings as a table: the same ones, planned the same way, and made the same in a process."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from engine.context.marks import holding
from engine.mappings.address_space import Maps, read_mappings_quickly
from engine.mappings.layout import Plan, Span, make_plan, merge, page_ranges
from engine.mappings.mappings import CARRIED_FLAGS, MAP_PRIVATE, PAGE, Mapping, read_mappings
from engine.pour.shape import call_to_map
from kernel_helpers.pages.tables import plain
from kernel_helpers.process import batches, pause_loop
from kernel_helpers.process.batches import Calls, failed
from kernel_helpers.process.seizing import seize
from kernel_helpers.process.syscalls import SYS, U64
from tests.engine import roundtrip

MANY = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
count, base = 600, 0x100000000
for i in range(count):
    at = base + i * 4096 + i // 7 * 8192  # seven that touch, and a gap
    how = 0x100022 | (0x4000 if i % 5 == 0 else 0) | (0x100 if i % 97 == 0 else 0)
    if i % 101 == 0:
        how = 0x100028  # droppable
    assert libc.mmap(at, 4096, 3, how, -1, 0) == at
    if i % 3:
        ctypes.memset(at, i % 255 + 1, 100)
    advice = {1: 10, 2: 16, 4: 14, 5: 15, 7: 2, 8: 1, 10: 18, 11: 12}.get(i % 13)
    if advice is not None and (advice not in (10, 18) or sys.argv[1] == "all"):
        libc.madvise(ctypes.c_void_p(at), 4096, advice)
    if i % 17 == 0:
        assert libc.syscall(325, ctypes.c_void_p(at), 4096, i % 2) == 0  # mlock2
    if i % 19 == 0:
        libc.prctl(0x53564D41, 0, ctypes.c_void_p(at), ctypes.c_size_t(4096), b"name %d" % (i % 3))
    prot = (3, 1, 0, 5)[i % 4]
    assert libc.mprotect(ctypes.c_void_p(at), 4096, prot) == 0
print("ready", flush=True)
time.sleep(120)
"""


@contextmanager
def many(which: str = "all") -> Iterator[int]:
    """which: `all`, or those that a fork gives on as they are."""
    with subprocess.Popen([sys.executable, "-c", MANY, which], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def chance_mappings(chance: random.Random, count: int) -> list[Mapping]:
    found, at = [], 16
    for _ in range(count):
        at += chance.choice((0, 0, 0, 1, 5))
        size = chance.choice((1, 1, 2, 70))
        flags = frozenset(chance.sample(sorted(CARRIED_FLAGS), chance.choice((0, 1, 2, 4))))
        kind = chance.random()
        path = "[anon:some]" if kind < 0.1 else ""
        found.append(
            Mapping(
                at * PAGE, (at + size) * PAGE, chance.randrange(8), MAP_PRIVATE, 0, path, False, flags, chance.choice((0, PAGE)),
                watched=chance.random() < 0.3,
            )
        )  # fmt: skip
        at += size
    return found


def chance_spans(chance: random.Random, maps: list[Mapping]) -> list[Span]:
    """Makes spans that hold some mappings wholly, and some in part."""
    wanted = []
    for m in chance.sample(maps, len(maps) // 4):
        start, end = m.start, m.end
        if chance.random() < 0.2 and end - start > PAGE:
            start += PAGE
        wanted.append((start, end))
    return merge(wanted)


def calls_of(plan: Plan) -> list[tuple[str, tuple[int, ...]]]:
    """Returns all calls that the plan makes: those planned in Python and those of its tables."""

    def from_table(what: str, calls: Calls) -> list[tuple[str, tuple[int, ...]]]:
        return [(what, (one.number, *one.arguments[:6])) for one in calls]

    def whole(what: str, number: int, *arguments: int) -> tuple[str, tuple[int, ...]]:
        return what, (number, *[argument & U64 for argument in arguments], *[0] * (6 - len(arguments)))

    found = [whole("create", *call_to_map(m)) for m in plan.create]
    found += [whole("protect", SYS.mprotect, start, end - start, prot) for start, end, prot in plan.protect_filled]
    found += [whole("advise", SYS.madvise, start, end - start, advice) for start, end, advice in plan.advise]
    found += [whole("lock", SYS.mlock2, start, end - start, int(on_fault)) for start, end, on_fault in plan.lock]
    if plan.plain is not None:
        for what in ("create", "protect", "advise", "lock"):
            found += from_table(what, getattr(plan.plain, what))
    return sorted(found)


def test_a_table_is_planned_as_its_mappings_are() -> None:
    chance = random.Random(25)
    for _ in range(60):
        maps = chance_mappings(chance, 60)
        filled = chance_spans(chance, maps)
        free = maps[-1].end + 10 * PAGE
        reserved = [(free, free + PAGE)]
        stub = [Mapping(free - PAGE, free + 2 * PAGE, 3, MAP_PRIVATE, 0, "", False)]
        one, other = make_plan(stub, tuple(maps), reserved, filled), make_plan(stub, Maps.of(maps), reserved, filled)
        assert other.plain is not None
        assert len(other.plain.create) > 10
        assert calls_of(one) == calls_of(other)
        assert one.remove == other.remove
        for pages in (one.pages, other.pages):
            assert list(pages) == sorted(pages, key=lambda r: r.start)
        assert merge((r.start, r.end) for r in one.pages) == merge((r.start, r.end) for r in other.pages)


def test_mappings_beside_the_kernels_pages_are_checked() -> None:
    special = Mapping(40 * PAGE, 42 * PAGE, 5, MAP_PRIVATE, 0, "[vdso]", False)
    maps = [Mapping(at * PAGE, (at + 2) * PAGE, 3, MAP_PRIVATE, 0, "", False, own=PAGE) for at in (20, 40, 60)]
    one, other = make_plan([special], maps, []), make_plan([special], Maps.of(maps), [])
    assert calls_of(one) == calls_of(other)
    assert one.pages == other.pages
    assert [r.discard for r in other.pages] == [False, True, False]


def test_a_table_lists_the_same_mappings() -> None:
    chance = random.Random(26)
    maps = chance_mappings(chance, 500)
    table = Maps.of(maps)
    assert len(table) == len(maps)
    assert len(table.table) > 300
    assert table == tuple(maps)
    assert [m.watched for m in table] == [m.watched for m in maps]
    assert merge(table.spans) == merge((m.start, m.end) for m in maps)
    assert merge(table.locked()) == merge((m.start, m.end) for m in maps if m.vmflags & {"lo", "lf"})
    assert merge((r.start, r.end) for r in page_ranges(table)) == merge((r.start, r.end) for r in page_ranges(maps))
    writable = plain.BIT["ac"] | 2
    fit = [m for m in maps if not m.path and not m.vmflags & {"gd"} and (m.prot & 2 or "ac" in m.vmflags)]
    assert table.table.spans(writable, plain.BIT["gd"]) == merge((m.start, m.end) for m in fit)
    sent = plain.Table.from_bytes(bytes(table.table))
    assert list(sent) == [(start, end, own, kind & ~plain.WATCHED) for start, end, own, kind in table.table]
    for address in (0, maps[0].start, maps[7].end - 1, maps[7].end, maps[-1].end):
        after = [start for start, end, _, _ in table.table if end > address]
        assert table.table.at(address) == len(table.table) - len(after)


def test_mappings_that_hold_spans_are_found_in_the_table_and_beside_it() -> None:
    chance = random.Random(27)
    maps = chance_mappings(chance, 200)
    for count in (0, 1, 7, 60):
        spans = merge((at, at + PAGE) for at in (chance.randrange(maps[0].start, maps[-1].end) // PAGE * PAGE for _ in range(count)))
        held = [(m.start, m.end) for m in maps if any(start < m.end and m.start < end for start, end in spans)]
        assert merge(holding(Maps.of(maps), spans)) == merge(held)


def test_the_kernel_is_asked_for_all_of_many() -> None:
    with many() as pid:
        said = tuple(replace(m, own=PAGE if m.own and m.private and not m.special else 0) for m in read_mappings(pid))
        found = read_mappings_quickly(pid)
        assert found == said
        assert len(found.table) > 500


@pytest.mark.parametrize("by_batch", [True, False])
def test_many_mappings_come_home_as_they_were(by_batch: bool) -> None:
    with many("forks") as pid, roundtrip.away(pid) as guest:
        _, context = guest.capture()
        if by_batch:
            code = guest.reserved[0] + PAGE // 2
            guest.stub.write_forced(code, pause_loop.CODE)
            guest.stub.batch_code = code
        refilled = roundtrip.pour(guest, context)
        assert refilled.notes == []
        roundtrip.assert_same_memory(context, guest.pid, pid)
        here = tuple(m for m in read_mappings(pid) if m.start not in range(*guest.reserved))
        assert roundtrip.merged(here) == roundtrip.merged(context.maps)
        guest.stub.batch_code = 0
        roundtrip.go_on(guest)


def test_failed_calls_of_a_table_are_reported() -> None:
    with many() as pid, seize(pid) as frozen:
        table = plain.Table.of([(number << 40, (number << 40) + PAGE, 0, 3 | plain.BIT["ac"]) for number in range(1, 130)])
        calls = table.plan([], []).create
        frozen.call(SYS.mmap, 1 << 40, PAGE, 3, 0x100022, U64, 0)
        with frozen.scratch(256) as room:
            for batch in (0, pause_loop.make(frozen)):
                frozen.batch_code = batch
                batches.make(frozen, calls, room, 256)
                wrong = [(call.arguments[0], error.errno) for call, error in failed(frozen, calls)]
                assert wrong[0] == (1 << 40, 17)
                if batch:
                    with pytest.raises(FileExistsError, match="mmap at 10000000000"):
                        batches.make_all(frozen, calls, room, 256)
