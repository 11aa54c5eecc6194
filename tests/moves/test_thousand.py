"""A thousand moves in a row of a mixed set: nothing is lost, and nodes have afterwards what they had before."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, Move
from tests.moves.figures import more, settled

MOVES = int(os.environ.get("FARHOME_SOAK_MOVES", "1000"))
NODES = (HOME, "n2", "n3")
GROWTH = 16 << 10
"""KiB that a daemon's memory may grow by: what it keeps of each process that has ended, and what its allocator keeps."""
KINDS = ("threads 4 50", "threads 16 50", "maps 500 50", "advised 1 50", "altstack 1 50", "pending 1 50")
"""Programs with rests, so that there is time for moves."""


def wandering(cluster: Cluster, moves: int, chosen: random.Random) -> list[Move]:
    """Makes that many moves, spread over all programs, which must all end well."""
    made: list[Move] = []
    with ExitStack() as stack:
        running = [stack.enter_context(Running(cluster, "kinds", kind, command="")) for kind in KINDS]
        counter = stack.enter_context(Running(cluster, "counter", "lines 1000000 20 32"))
        for process in (*running, counter):
            process.works(60)
        while sum(move.done for move in made) < moves:
            process = chosen.choice([*running, counter])
            here = process.where()
            move = cluster.migrate(process.pid, here, chosen.choice([node for node in NODES if node != here]))
            made.append(move)
            assert move.done or "stays" in move.said, move
        for process in running:
            process.works(60)
            (process.directory / "enough").touch()
            assert process.end(60) == "all is as it was\nstatus 0\n"
        counter.works()
        cluster.home.run("kill", "-TERM", str(counter.pid))
        assert counter.end().endswith("status 143\n")
    return made


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_moves_leave_nothing_behind() -> None:
    cluster = Cluster()
    chosen = random.Random(1)
    try:
        wandering(cluster, 60, chosen)
        before = settled(cluster)
        made = wandering(cluster, MOVES, chosen)
        after = settled(cluster, before)
        summarize(made)
        for node in NODES:
            for what in before[node]:
                print(f"{node}, {what}: {before[node][what]} before, {after[node][what]} after")
        for node in NODES:
            grown = after[node]["memory of mosd, KiB"] - before[node]["memory of mosd, KiB"]
            assert grown < GROWTH, f"mosd of {node} has grown by {grown} KiB"
        assert not more(after, before)
    finally:
        cluster.down()


def summarize(moves: list[Move]) -> None:
    """Prints how many moves of each kind were made, how long processes were frozen for them, and why others failed."""
    for kind in ("out", "hop", "home"):
        frozen = sorted(move.frozen_ms for move in moves if move.done and move.kind == kind)
        if frozen:
            print(f"{len(frozen)} x {kind}: frozen {frozen[len(frozen) // 2]:.0f} ms (median), {frozen[-1]:.0f} ms (longest)")
    for said, times in Counter(move.said for move in moves if not move.done).most_common():
        print(f"{times} x not made: {said}")
