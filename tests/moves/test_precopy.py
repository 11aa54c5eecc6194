"""Memory that is sent ahead of a process has the process's contents, whatever the process does to it meanwhile."""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)

NODES = (HOME, "n2", "n3")
STEPS = 12000 if os.environ.get("FARHOME_LONG_TESTS") else 6000
"""Number of changes that it makes to its memory at least: enough for some thirty moves, or fifteen."""
LEAST = 2
"""Moves that are made."""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_changes_to_memory_during_the_transfer_are_not_lost(cluster: Cluster, seed: int) -> None:
    chosen, moves = random.Random(seed), 0
    with Running(cluster, "ahead", f"{STEPS} {seed}") as ahead:
        ahead.works(60)
        while len(ahead.lines()) < STEPS // 100 or moves < LEAST:
            where = ahead.shown()
            assert where is not None, ahead.said
            here = cluster.where(where)
            move = ahead.cluster.migrate(ahead.pid, here, chosen.choice([node for node in NODES if node != here]))
            print(move)
            moves += move.done
        (ahead.directory / "enough").touch()
        assert ahead.end(200) == "all is as it was written\nstatus 0\n"


def test_memory_goes_ahead_in_all_directions(cluster: Cluster) -> None:
    with Running(cluster, "counter", "lines 100000 50 64") as counter:
        counter.works()
        for target in ("n2", "n3", HOME):
            move = cluster.migrate(counter.pid, counter.where(), target)
            assert move.done, move
            assert move.ahead > 60 << 20, move
            counter.works()
        cluster.home.run("kill", "-TERM", str(counter.pid))
        assert counter.end().endswith("status 143\n")


FORKS = """
import hashlib, os, time
block = bytearray(os.urandom(1 << 20) * 64)
digest = hashlib.md5(block).digest()
def work(name):
    while not os.path.exists("enough"):
        assert hashlib.md5(block).digest() == digest
        print(1, file=open(name, "a"))
        time.sleep(0.02)
while not os.path.exists("fork"):
    time.sleep(0.05)
child = os.fork()
work("lines" if not child else "others")
if child:
    print("child:", os.waitpid(child, 0)[1])
"""


def test_memory_of_a_child_that_was_born_away_goes_ahead(cluster: Cluster) -> None:
    """It was not watched from the beginning: for that it stands still for a moment."""
    with Running(cluster, "counter", "", command=f"python3 -c '{FORKS}'") as parent:
        parent.moved("n2")
        (parent.directory / "fork").touch()
        child = until("the child is known", lambda: next((p for p in cluster.processes(parent.job) if p["pid"] != parent.pid), None))
        assert cluster.where(child) == "n2"
        for source, target in (("n2", "n3"), ("n3", HOME), (HOME, "n2"), ("n2", HOME)):
            move = cluster.migrate(child["pid"], source, target)
            assert move.done, move
            assert move.ahead > 60 << 20, move
            parent.works()
        (parent.directory / "enough").touch()
        assert parent.end() == "child: 0\nstatus 0\n"
