"""Memory that is sent ahead of a process is what the process has, whatever it does to it meanwhile."""

from __future__ import annotations

import random

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(240)

NODES = (HOME, "n2", "n3")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_process_does_to_its_memory_meanwhile_is_not_lost(cluster: Cluster, seed: int) -> None:
    chosen, moves = random.Random(seed), 0
    with Running(cluster, "ahead", f"12000 {seed}") as ahead:
        ahead.works(60)
        while ahead.process.poll() is None:
            where = ahead.shown()
            if where is None:
                break
            here = cluster.where(where)
            move = ahead.cluster.migrate(ahead.pid, here, chosen.choice([node for node in NODES if node != here]))
            print(move)
            moves += move.done
        assert ahead.end(200) == "all is as it was written\nstatus 0\n"
    assert moves >= 10


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
