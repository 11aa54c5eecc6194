"""Forwarded calls give what the same calls give natively: results, errors, bytes, and nothing else is touched."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from bench.calls.link_pair import GO_HOME, Pair
from tests.link.conftest import Native

pytestmark = pytest.mark.timeout(120)


FAMILIES = ["files", "directories", "pipes", "sockets", "identity", "threads", "clocks"]
WAYS = [
    *((family, "notify") for family in FAMILIES), ("files", "ptrace"), ("threads", "ptrace"),
    *(pytest.param(family, "ptrace", marks=pytest.mark.soak) for family in FAMILIES if family not in ("files", "threads")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "interception"), WAYS)
def test_family_is_the_same_as_native(family: str, interception: str, guest: Path, native: Native, tmp_path: Path) -> None:
    threads = 4 if family == "threads" else 1
    with Pair([str(guest), family], threads, directory=str(tmp_path), interception=interception) as pair:
        result = pair.run()
    assert result == native(family)


def test_cpu_clocks_are_asked_at_home_only_after_something_was_done_there(guest: Path, native: Native, tmp_path: Path) -> None:
    with Pair([str(guest), "clocks"], directory=str(tmp_path)) as pair:
        result = pair.run()
        assert pair.link is not None
        asked, _ = pair.link.calls
    assert result == native("clocks")
    assert asked < 100


@pytest.mark.parametrize("size", [1 << 20, 40 << 20])
def test_big_buffers_arrive_whole(size: int, guest: Path, native: Native, tmp_path: Path) -> None:
    with Pair([str(guest), "big", str(size)], directory=str(tmp_path)) as pair:
        result = pair.run()
        assert pair.link is not None
        assert pair.link.kept_bytes < 1 << 20
        assert pair.link.carried_bytes >= size
    assert result == native("big", str(size))


def test_more_than_a_slot_holds_goes_home(guest: Path, tmp_path: Path) -> None:
    with Pair([str(guest), "big", str(100 << 20)], directory=str(tmp_path)) as pair:
        pair.until(lambda: [e for e in pair.events if e.kind == GO_HOME], 20, "no call that only home can make")
        assert pair.events[-1].data == b"1"


def test_blocking_read_ends_with_the_byte(guest: Path) -> None:
    reader, writer = os.pipe()
    with Pair([str(guest), "block", "read"], stdin=reader) as pair:
        os.close(reader)
        pair.until(lambda: b"waiting" in pair.output, 10, "not begun")
        assert pair.link is not None
        link = pair.link
        pair.until(link.busy, 10, "no call under way")
        os.write(writer, b"abc")
        os.close(writer)
        status, output = pair.run()
    assert (status, output) == (7, b"waiting\nread(0, buffer, 10) = 3 (ok)\n")


def _ended_or_grown(pair: Pair, file: Path, size: int) -> bool:
    return pair.status is not None or (file.exists() and file.stat().st_size > size)


def test_every_write_is_done_once_across_broken_connections(guest: Path, tmp_path: Path) -> None:
    count = 100_000
    with Pair([str(guest), "append", str(count)], directory=str(tmp_path)) as pair:
        written = tmp_path / "appended"
        breaks = 0
        while pair.status is None and breaks < 12:
            wanted = (written.stat().st_size if written.exists() else 0) + 5000
            pair.until(functools.partial(_ended_or_grown, pair, written, wanted), 20, "nothing is written any more")
            if pair.status is None:
                pair.break_connection()
                breaks += 1
        status, output = pair.run()
    assert breaks >= 5
    assert (status, output) == (7, f"appended {count}\n".encode())
    expected = b"".join(b"line %d\n" % i for i in range(count))
    assert hashlib.sha256(written.read_bytes()).digest() == hashlib.sha256(expected).digest()


def test_stub_keeps_its_command_line_and_gives_up_its_memory(guest: Path) -> None:
    reader, writer = os.pipe()
    with Pair([str(guest), "block", "read"], stdin=reader) as pair:
        pair.until(lambda: b"waiting" in pair.output, 10, "not begun")
        shown = subprocess.run(
            ["ps", "-o", "args=", "-p", str(pair.process.pid)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert shown.strip() == f"{guest} block read"
        status = Path(f"/proc/{pair.process.pid}/status").read_text()
        anonymous = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
        assert anonymous <= 16
        os.close(reader)
        os.close(writer)
        assert pair.run()[0] == 7
