"""Memory that may be sent ahead of a process, and which of it is still valid in the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.mappings.layout import merge
from engine.mappings.mappings import PAGE, Mapping, read_mappings
from engine.pour import precopy
from kernel_helpers.process import seizing
from tests.engine.support import PYTHON
from wire.frames import WireError

BIG = "block = b'x' * (8 << 20); "
SAY = "import sys, time; sys.stdout.write('ready\\n'); sys.stdout.flush(); time.sleep(60)"


@contextmanager
def process(script: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([PYTHON, "-c", script + SAY], stdout=subprocess.PIPE, text=True) as found:
        try:
            assert found.stdout is not None
            assert found.stdout.readline() == "ready\n"
            yield found
        finally:
            found.kill()


def test_big_private_memory_goes_ahead_and_nothing_else() -> None:
    with process(BIG) as big, process("") as small:
        areas = precopy.areas_of(big.pid)
        assert sum(m.own for m in areas) >= 8 << 20
        maps = read_mappings(big.pid)
        inside = [m for m in maps for area in areas if area.start <= m.start and m.end <= area.end]
        assert inside
        assert all(not m.is_file and m.private and "[stack]" not in m.path for m in inside)
        assert precopy.areas_of(small.pid) == []


def test_nothing_goes_ahead_where_devices_write_into_memory(tmp_path: Path) -> None:
    """A file that is open with O_DIRECT: what comes from it comes past all that could notice."""
    with process(BIG + f"import os; file = os.open({str(tmp_path / 'x')!r}, os.O_CREAT | os.O_RDWR | os.O_DIRECT); ") as direct:
        assert precopy.writes_past_us(direct.pid)
        assert precopy.areas_of(direct.pid) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs ptrace of any process")
def test_memory_is_watched_until_it_is_let_go() -> None:
    with process(BIG) as big:
        areas = precopy.areas_of(big.pid)
        frozen = seizing.seize(big.pid)
        try:
            before = sorted(os.listdir(f"/proc/{big.pid}/fd"))
            ahead = precopy.Ahead(big.pid, precopy.userfaultfd(big.pid, frozen.leader), areas)
            assert sorted(os.listdir(f"/proc/{big.pid}/fd")) == before
            ahead._watch([(m.start, m.end) for m in areas])
            watched = [(m.start, m.end) for m in read_mappings(big.pid) if m.watched]
            assert all(any(start <= m.start and m.end <= end for start, end in merge(watched)) for m in areas)
            ahead.close()
            assert not any(m.watched for m in read_mappings(big.pid))
            ahead.close()
        finally:
            frozen.detach()


def mapping(start: int, end: int, watched: bool = True, prot: int = 3, flags: str = "ac", own: int = PAGE) -> Mapping:
    return Mapping(start * PAGE, end * PAGE, prot, 2, 0, "", False, frozenset(flags.split()), own, watched=watched)


def test_mappings_that_touch_go_as_one() -> None:
    """Else the kernel would not join them again, and mremap(2) over both would fail."""
    maps = [
        mapping(10, 20, own=4 << 20), mapping(20, 30, prot=1, own=8192), mapping(30, 40, own=4 << 20),  # one, of three
        mapping(40, 50, prot=0, flags="", own=0),  # never was writable
        mapping(50, 60, own=4 << 20), mapping(60, 70, flags="nr", own=4 << 20),
        mapping(80, 90, flags="ac gd", own=4 << 20),
    ]  # fmt: skip
    found = [(area.start // PAGE, area.end // PAGE, area.unreserved) for area in precopy.areas(maps)]
    assert found == [(10, 40, False), (50, 60, False), (60, 70, True)]


def test_only_watched_and_unspoilt_memory_is_kept() -> None:
    ahead = precopy.Ahead(os.getpid(), -1, [])
    ahead._history = precopy.History([(10 * PAGE, 20 * PAGE), (30 * PAGE, 40 * PAGE)])
    maps = [mapping(8, 12), mapping(14, 16, watched=False), mapping(16, 35)]
    kept = ahead.kept(maps, spoilt=[(17 * PAGE, 18 * PAGE)])
    assert [(start // PAGE, end // PAGE) for start, end in kept] == [(10, 12), (16, 17), (18, 20), (30, 35)]
    ahead.close()


@pytest.mark.parametrize(
    "areas", [None, 5, [[1]], [["x", 2]], [[1, 4096]], [[4096, 4096]], [[8192, 12288], [4096, 8192]], [[0, 4096]], [[4096, 1 << 60]]]
)
def test_areas_that_cannot_be_are_refused(areas: object) -> None:
    with pytest.raises(WireError):
        precopy.spans(areas)
