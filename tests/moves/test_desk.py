"""An interactive bash with its jobs, editors and a pager, on a real terminal in a storm: every screen is as it is natively."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.moves import desk
from tests.moves.cluster import HOME, Cluster, Move
from tests.moves.outcome import Here
from tests.moves.storm import Mover, new_seed

SECONDS = float(os.environ.get("FARHOME_SOAK_SECONDS", "1800"))
EVERY = (0.1, 0.5)
AT_ONCE = 4
FULL = [*desk.SCENES, *desk.EDITORS.values()]


class Storm(Mover):
    """Moves every process of the job in each round, several at once."""

    def step(self, at: float) -> Move | None:
        processes = self.cluster.processes(self.job)
        ways = [(process["pid"], source := self.cluster.where(process), self.anywhere(source)) for process in processes]
        if not ways:
            return None
        with ThreadPoolExecutor(AT_ONCE) as pool:
            moves = list(pool.map(lambda way: self.cluster.migrate(*way, at=at), ways))
        self.moves += moves
        return moves[-1]

    def anywhere(self, source: str) -> str:
        return self.chance.choice([name for name in (*self.cluster.names, HOME) if name != source])


def in_a_storm(cluster: Cluster, scenes: list[desk.Scene], seed: int) -> list[Move]:
    """Runs one session, natively and then in a storm. Returns the moves that were done."""
    steps = desk.script(seed, scenes)
    natively = desk.play(cluster.home, [], steps)
    job = f"desk-{seed}"
    storm = Storm(cluster, job, seed, EVERY)
    storm.start()
    try:
        desk.play(cluster.home, ["mosrun", "-L", "-J", job, "--"], steps, natively)
    finally:
        storm.over.set()
        moves = storm.stop()
        done = [move for move in moves if move.done]
        print(f"seed {seed}: {len(steps)} steps, {len(done)} of {len(moves)} moves done", *moves, sep="\n")
    return done


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_desk_is_the_same_each_time() -> None:
    """Without this property, the following tests would show nothing."""
    steps = desk.script(1, desk.SHORT)
    first, second = (desk.play(Here(), [], steps) for _ in range(2))
    assert first == second


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_desk_in_a_storm(cluster: Cluster) -> None:
    assert in_a_storm(cluster, desk.SHORT, new_seed())


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1800)
def test_half_an_hour_at_a_desk_in_a_storm(cluster: Cluster) -> None:
    """FARHOME_SOAK_SECONDS says how long, FARHOME_SEED which."""
    if left_out := desk.missing():
        print(f"without {', '.join(left_out)}: not installed here")
    seeds = random.Random(new_seed())
    end = time.monotonic() + SECONDS
    done: list[Move] = []
    while time.monotonic() < end:
        done += in_a_storm(cluster, FULL, seeds.randrange(1, 2**32))
    assert {move.kind for move in done} == {"out", "hop", "home"}
