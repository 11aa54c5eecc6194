"""An attacker who can change packets between a guest and its home can only cut their connection: each call is made once, as intended."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.calls.link_pair import Pair
from kernel_helpers.link.ends.events import Kind
from kernel_helpers.link.ends.home import HomeLink
from tests.wire.relay import Relay

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="a filter without no_new_privs needs root")]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=[20_000, 100_000], ids=["one by one", "ahead"])
def lines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of lines that the guest writes: each write waits for its answer, or they run ahead."""
    monkeypatch.setattr(HomeLink, "runs_ahead", request.param != 20_000)
    return int(request.param)


@contextmanager
def relayed(directory: Path, lines: int) -> Iterator[tuple[Pair, Relay]]:
    """A guest that appends lines to a file, each once, and the relay that its calls pass."""
    relays: list[Relay] = []
    guest = directory / "guest"
    subprocess.run(["gcc", "-O2", "-w", "-pthread", "-o", guest, ROOT / "tests/link/guest.c"], check=True, timeout=60)

    def through(address: tuple[str, int]) -> tuple[str, int]:
        relays.append(Relay(address))
        return relays[0].address

    with Pair([str(guest), "append", str(lines)], directory=str(directory), through=through) as pair:
        try:
            yield pair, relays[0]
        finally:
            relays[0].close()


def whole(directory: Path, pair: Pair, lines: int) -> bool:
    """Returns whether the program ends well, having written each line once."""
    expected = b"".join(b"line %d\n" % number for number in range(lines))
    return pair.run() == (7, f"appended {lines}\n".encode()) and (directory / "appended").read_bytes() == expected


def test_a_changed_byte_ends_the_connection_and_each_call_is_made_once(tmp_path: Path, lines: int) -> None:
    chance, breaks = random.Random(24), 0
    with relayed(tmp_path, lines) as (pair, relay):
        while pair.status is None and breaks < 20:
            relay.flipped.clear()
            way = 0 if HomeLink.runs_ahead else breaks % 2  # of what runs ahead little comes back
            relay.flips[way] = chance.randrange(20000)
            pair.until(lambda: pair.status is not None or relay.flipped.is_set(), 20, "nothing more comes through")
            if pair.status is None:
                pair.until(lambda: any(event.kind == Kind.CONNECTION_LOST for event in pair.events), 20, "neither side noticed")
                pair.events.clear()
                pair.attach()
                breaks += 1
        assert whole(tmp_path, pair, lines)
    assert breaks >= 8


def test_the_relay_sees_no_plain_text(tmp_path: Path, lines: int) -> None:
    with relayed(tmp_path, lines) as (pair, relay):
        assert whole(tmp_path, pair, lines)
        seen = bytes(relay.seen[0]) + bytes(relay.seen[1])
    assert len(seen) > (tmp_path / "appended").stat().st_size
    assert b"line " not in seen
