"""Who can change packets between a guest and its home can cut their connection, and no more: every call is made once, as it was meant."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.link_pair import Pair
from kernel_helpers.link import Kind
from tests.programs.build import program
from tests.wire.relay import Relay

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.geteuid() != 0, reason="a filter without no_new_privs needs root")]
LINES = 4000


@contextmanager
def relayed(path: Path) -> Iterator[tuple[Pair, Relay]]:
    """A guest that appends lines to a file, each once, and the relay that its calls pass."""
    relays: list[Relay] = []

    def through(address: tuple[str, int]) -> tuple[str, int]:
        relays.append(Relay(address))
        return relays[0].address

    with Pair([str(program("appender")), str(path), str(LINES), "0"], through=through) as pair:
        try:
            yield pair, relays[0]
        finally:
            relays[0].close()


def test_a_changed_byte_ends_the_connection_and_each_call_is_made_once(tmp_path: Path) -> None:
    chance, path, breaks = random.Random(24), tmp_path / "lines", 0
    with relayed(path) as (pair, relay):
        while pair.status is None and breaks < 20:
            relay.flipped.clear()
            relay.flips[breaks % 2] = chance.randrange(20000)
            pair.until(lambda: pair.status is not None or relay.flipped.is_set(), 20, "nothing more comes through")
            if pair.status is None:
                pair.until(lambda: any(event.kind == Kind.CONNECTION_LOST for event in pair.events), 20, "nobody noticed")
                pair.events.clear()
                pair.attach()
                breaks += 1
        status, output = pair.run()
    assert breaks >= 8
    assert (status, output) == (0, f"appended {LINES}\n".encode())
    assert path.read_text().split() == [str(number) for number in range(LINES)]


def test_the_relay_sees_nothing_of_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with relayed(path) as (pair, relay):
        assert pair.run() == (0, f"appended {LINES}\n".encode())
        seen = bytes(relay.seen[0]) + bytes(relay.seen[1])
    assert len(seen) > 100 * LINES
    assert not any(b"%d\n" % number in seen for number in range(1000, LINES))
