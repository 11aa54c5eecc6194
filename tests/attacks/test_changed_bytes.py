"""Who can change packets between a guest and its home can cut their connection, and no more: every call is made once, as it was meant."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.link_pair import Pair
from kernel_helpers.link.link import Kind
from tests.wire.relay import Relay

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="a filter without no_new_privs needs root")]
LINES = 20_000
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def relayed(directory: Path) -> Iterator[tuple[Pair, Relay]]:
    """A guest that appends lines to a file, each once, and the relay that its calls pass."""
    relays: list[Relay] = []
    guest = directory / "guest"
    subprocess.run(["gcc", "-O2", "-w", "-pthread", "-o", guest, ROOT / "tests/link/guest.c"], check=True, timeout=60)

    def through(address: tuple[str, int]) -> tuple[str, int]:
        relays.append(Relay(address))
        return relays[0].address

    with Pair([str(guest), "append", str(LINES)], directory=str(directory), through=through) as pair:
        try:
            yield pair, relays[0]
        finally:
            relays[0].close()


def whole(directory: Path, pair: Pair) -> bool:
    """Whether the program ends well, having written each line once."""
    expected = b"".join(b"line %d\n" % number for number in range(LINES))
    return pair.run() == (7, f"appended {LINES}\n".encode()) and (directory / "appended").read_bytes() == expected


def test_a_changed_byte_ends_the_connection_and_each_call_is_made_once(tmp_path: Path) -> None:
    chance, breaks = random.Random(24), 0
    with relayed(tmp_path) as (pair, relay):
        while pair.status is None and breaks < 20:
            relay.flipped.clear()
            relay.flips[breaks % 2] = chance.randrange(20000)
            pair.until(lambda: pair.status is not None or relay.flipped.is_set(), 20, "nothing more comes through")
            if pair.status is None:
                pair.until(lambda: any(event.kind == Kind.CONNECTION_LOST for event in pair.events), 20, "nobody noticed")
                pair.events.clear()
                pair.attach()
                breaks += 1
        assert whole(tmp_path, pair)
    assert breaks >= 8


def test_the_relay_sees_nothing_of_what_is_written(tmp_path: Path) -> None:
    with relayed(tmp_path) as (pair, relay):
        assert whole(tmp_path, pair)
        seen = bytes(relay.seen[0]) + bytes(relay.seen[1])
    assert len(seen) > 100 * LINES
    assert b"line " not in seen
