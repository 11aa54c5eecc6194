"""Memory that follows a process has the process's contents, whatever the process does to it before it has arrived."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)

NODES = (HOME, "n2", "n3")
STEPS = 12000 if os.environ.get("FARHOME_LONG_TESTS") else 6000
"""Number of changes that it makes to its memory at least: enough for some thirty moves, or fifteen."""
LEAST, KINDS = 5, {"out", "hop", "home"}
"""Moves that are made, and those of them that memory has followed."""


SEEDS = [(2, "farhome-a"), *[pytest.param(seed, "", marks=pytest.mark.soak) for seed in (1, *range(3, 13))]]


@pytest.mark.parametrize(("seed", "user"), SEEDS)
def test_changes_to_memory_that_has_not_arrived_are_not_lost(cluster: Cluster, seed: int, user: str) -> None:
    chosen, moves, followed = random.Random(seed), 0, set()
    with Running(cluster, "ahead", f"{STEPS} {seed}", user=user) as ahead:
        ahead.works(60)
        while len(ahead.lines()) < STEPS // 100 or moves < LEAST or followed < KINDS:
            where = ahead.shown()
            assert where is not None, ahead.said
            here = cluster.where(where)
            target = chosen.choice([node for node in NODES if node != here])
            move = cluster.migrate(ahead.pid, here, target, user=user, memory="postcopy")
            print(move, f"{move.follows >> 20} MB follow")
            moves += move.done
            if move.follows > 16 << 20:
                followed.add(move.kind)
        (ahead.directory / "enough").touch()
        assert ahead.end(200) == "all is as it was written\nstatus 0\n"


HALVES = 0x404000
"""Bytes of what tests/programs/halves.c has protected in part."""


def has_in_one(program: Running, size: int) -> bool:
    """Whether one of its processes has a mapping of so many bytes that can be read and written."""
    found = []
    for pid in program.host_pids():
        lines: list[str] = []
        with contextlib.suppress(OSError):  # a copy of it has gone
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        for line in lines:
            span, mode = line.split()[:2]
            start, _, end = span.partition("-")
            found.append(mode == "rw-p" and int(end, 16) - int(start, 16) == size)
    return any(found)


WAYS = [
    *((("n2",), "postcopy", "none"), (("n2", "n3"), "precopy", "none"), (("n2", HOME), "postcopy", "read")),
    *(
        pytest.param(*way, marks=pytest.mark.soak)
        for way in (
            *((("n2",), "postcopy", "read"), (("n2",), "precopy", "none"), (("n2",), "precopy", "read")),
            *((("n2", "n3"), "postcopy", "none"), (("n2", "n3"), "postcopy", "read"), (("n2", "n3"), "precopy", "read")),
            *((("n2", HOME), "postcopy", "none"), (("n2", HOME), "precopy", "none"), (("n2", HOME), "precopy", "read")),
        )
    ),
]
"""Target, way of the memory, and protected memory: each of these three ways once, all combinations among the long tests."""


@pytest.mark.parametrize(("targets", "memory", "how"), WAYS)
def test_memory_that_is_protected_in_part_is_one_again(cluster: Cluster, targets: tuple[str, ...], memory: str, how: str) -> None:
    """Otherwise a program that moves it as one mapping (mremap(2)) would get an error that it would not get at home."""
    with Running(cluster, "halves", how) as halves:
        halves.works()
        for target in targets:
            halves.moved(target, memory)
        (halves.directory / "join").touch()
        until("it is one", lambda: has_in_one(halves, HALVES), seconds=5)
        (halves.directory / "move").touch()
        assert halves.end() == "all is as it was written\nstatus 0\n"


@pytest.fixture
def slow_links() -> Iterator[Cluster]:
    """Links that carry less than a process writes even if it has a small part of a processor."""
    cluster = Cluster(bandwidth="1gbit")
    yield cluster
    cluster.down()


def test_memory_written_faster_than_it_can_be_sent_follows(slow_links: Cluster) -> None:
    """Without a request for it, in all directions."""
    with Running(slow_links, "writer", "200") as writer:
        writer.works(30)
        for target in ("n2", "n3", HOME):
            move = writer.moved(target)
            assert move.follows > 100 << 20, move
            writer.works(30)
        slow_links.home.run("kill", "-TERM", str(writer.pid))
        assert writer.end() == "intact\nstatus 0\n"


def test_all_goes_ahead_if_that_is_wanted(cluster: Cluster) -> None:
    with Running(cluster, "writer", "64") as writer:
        writer.works(30)
        for target in ("n2", "n3", HOME):
            move = writer.moved(target, memory="precopy")
            assert (move.follows, move.ahead > 60 << 20) == (0, True), move
            writer.works(30)
        cluster.home.run("kill", "-TERM", str(writer.pid))
        assert writer.end() == "intact\nstatus 0\n"


ON = ("n2", "n3", HOME)
CHILDREN = """
import hashlib, os, subprocess, time
block = bytearray(os.urandom(1 << 20) * 200)
digest = hashlib.md5(block).digest()
print(1, file=open("lines", "a"))
while not os.path.exists("enough"):
    child = os.fork()
    if not child:
        os._exit(hashlib.md5(block).digest() != digest)
    assert os.waitpid(child, 0)[1] == 0
    assert subprocess.run(["true"]).returncode == 0
    print(1, file=open("lines", "a"))
assert hashlib.md5(block).digest() == digest
print("and so have its children")
"""


@pytest.mark.parametrize(
    "targets", [("n2", HOME), *(pytest.param(far, marks=pytest.mark.soak) for far in (ON, (*ON, "n2", HOME)))], ids=len
)
def test_children_have_memory_that_has_not_yet_reached_their_parent(cluster: Cluster, targets: tuple[str, ...]) -> None:
    with Running(cluster, "counter", "", command=f"python3 -c '{CHILDREN}'") as parent:
        parent.works(30)
        for target in targets:
            move = parent.moved(target, memory="postcopy")
            assert move.follows > 100 << 20, move
            parent.works(30)
        (parent.directory / "enough").touch()
        assert parent.end() == "and so have its children\nstatus 0\n"
